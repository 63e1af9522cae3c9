"""How many requests a decode step runs, counted where the step is: works for stock SGLang too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


@dataclass(frozen=True)
class Running:
    """Requests of the decode steps so far: ``peak`` of one step, and ``total`` over ``steps``."""

    peak: int = 0
    total: int = 0
    steps: int = 0

    @property
    def mean(self) -> float:
        return self.total / max(self.steps, 1)

    @classmethod
    def read(cls, path: Path) -> Running:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


class CountRunning(CustomLogitProcessor):
    """Custom param ``path``: a file that gets a `Running` after each decode step."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        assert custom_param_list
        # A pass of prompts gives each of its requests the first token.
        if custom_param_list[0]["__req__"].output_ids:
            path, n = Path(custom_param_list[0]["path"]), logits.shape[0]
            before = Running.read(path)
            now = Running(max(before.peak, n), before.total + n, before.steps + 1)
            path.write_text(json.dumps(asdict(now)))
        return logits
