"""How many requests a step runs, counted where the step is: works for stock SGLang too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class CountRunning(CustomLogitProcessor):
    """Custom param ``path``: a file that gets the largest number of requests of one step."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        assert custom_param_list
        path = Path(custom_param_list[0]["path"])
        before = int(path.read_text()) if path.exists() else 0
        if logits.shape[0] > before:
            path.write_text(str(logits.shape[0]))
        return logits
