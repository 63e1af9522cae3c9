"""The distributions of full KV at each step of a forced continuation, in a few bytes."""

from __future__ import annotations

import io

import numpy as np
import torch

from arkv_sglang.eval.divergence import TopTokens, top_kl_of, top_tokens


def pack(log_probs: torch.Tensor) -> bytes:
    """The top tokens of log-probabilities [N, V]."""
    top = top_tokens(log_probs)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, ids=top.ids.to(torch.int32).numpy(), log_probs=top.log_probs.float().numpy()
    )
    return buffer.getvalue()


def compare(packed: bytes, log_probs: torch.Tensor) -> dict[str, float]:
    """Means over decode steps: ``top1``, the share of them at which the most likely token is the
    same (one of several as likely, which bf16 logits often have), and ``kl`` in nats. Step 0 is
    prefill, which sees the whole cache and proves nothing.

    ``log_probs``: [N, V] of the same N steps.
    """
    with np.load(io.BytesIO(packed)) as arrays:
        top = TopTokens(
            torch.from_numpy(arrays["ids"]).long(), torch.from_numpy(arrays["log_probs"])
        )
    kl = top_kl_of(top, log_probs)[1:]
    best = top.log_probs == top.log_probs[:, :1]
    found_best = log_probs.gather(-1, top.ids) == log_probs.amax(-1, keepdim=True)
    same = (best & found_best).any(-1)[1:]
    return {"top1": same.double().mean().item(), "kl": kl.mean().item()}
