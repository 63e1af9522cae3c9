"""Force known continuations through decode and keep the distributions that the model had.

SGLang returns log-probabilities after custom logit processors have changed the logits (even with
``SGLANG_RETURN_ORIGINAL_LOGPROB=1``: that undoes the temperature alone), so the processor that does
the forcing saves them first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class TeacherForcing(CustomLogitProcessor):
    """Custom params: ``token_ids``, the continuation, and ``folder`` for one file per step."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        for row, params in zip(logits, custom_param_list or [], strict=True):
            step = len(params["__req__"].output_ids)
            np.save(Path(params["folder"]) / f"{step:05d}.npy", row.float().log_softmax(-1).numpy())
            row.fill_(-torch.inf)[params["token_ids"][step]] = 0.0
        return logits


def force(
    engine: Any,
    prompts: list[list[int]],
    continuations: list[list[int]],
    folder: Path,
    processor: type[TeacherForcing] = TeacherForcing,
) -> list[torch.Tensor]:
    """Log-probabilities fp32 [N, V] at each of the N tokens of every continuation.

    ``engine`` must run with ``enable_custom_logit_processor=True``. Row 0 comes from prefill, which
    sees the whole cache; the rest are decode steps. Files are written below ``folder`` and kept.
    """
    found = []
    for index, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        steps = folder / str(index)
        steps.mkdir(parents=True)
        found.append(force_one(engine, prompt, continuation, steps, processor)[0])
    return found


def force_one(
    engine: Any,
    prompt: list[int],
    continuation: list[int],
    folder: Path,
    processor: type[TeacherForcing] = TeacherForcing,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The same of one, and the engine's answer; ``folder`` is there and empty."""
    out = engine.generate(
        input_ids=prompt,
        sampling_params={
            "temperature": 0,
            "max_new_tokens": len(continuation),
            "ignore_eos": True,
            "custom_params": {"token_ids": continuation, "folder": str(folder)},
        },
        custom_logit_processor=processor.to_str(),
    )
    files = sorted(folder.iterdir())
    return torch.from_numpy(np.stack([np.load(file) for file in files])), out
