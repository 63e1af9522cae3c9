"""Statistics of the attention of a prompt's last queries (the formulas of arXiv 2603.08727)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

ENTROPY_EPSILON = 1e-10
MIN_SECOND_MOMENT = 1e-8


@dataclass(frozen=True)
class WindowStatistics:
    """Attention of the last W queries over T keys, fp32.

    ``mean``, ``variance`` [Hq, T]: over the queries, per key. The variance is unbiased, and zero
    for one query. ``entropy``, ``variance_sum``, ``kurtosis_sum`` []: sums over heads, over the
    keys before the window, and (entropy) over queries.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    entropy: torch.Tensor
    variance_sum: torch.Tensor
    kurtosis_sum: torch.Tensor


def window_statistics(q: torch.Tensor, k: torch.Tensor, scale: float) -> WindowStatistics:
    num_keys, num_kv_heads, _ = k.shape
    q = q[-num_keys:]  # earlier queries see no key
    num_queries, num_heads, _ = q.shape
    group = num_heads // num_kv_heads
    mean = torch.empty(num_heads, num_keys, dtype=torch.float32, device=q.device)
    variance = torch.empty_like(mean)
    sums = torch.zeros(3, dtype=torch.float32, device=q.device)
    # One KV head at a time bounds the workspace to a few [G, W, T] tensors.
    for head in range(num_kv_heads):
        heads = slice(head * group, (head + 1) * group)
        probs = _attention(q[:, heads], k[:, head], scale)
        mean[heads] = probs.mean(1)
        outside = num_keys - num_queries
        second = _variance_and_sums(probs, mean[heads], outside, sums)
        variance[heads] = second
    return WindowStatistics(mean, variance, *sums.unbind())


def _attention(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """Probabilities [G, W, T] of ``q`` [W, G, D] over the keys ``k`` [T, D] of one KV head."""
    num_queries, num_keys = q.shape[0], k.shape[0]
    logits = torch.matmul(q.float().transpose(0, 1) * scale, k.float().t())
    future = torch.ones(num_queries, num_queries, dtype=torch.bool, device=q.device).triu_(1)
    logits[..., num_keys - num_queries :].masked_fill_(future, float("-inf"))
    return logits.softmax(-1)


def _variance_and_sums(
    probs: torch.Tensor, mean: torch.Tensor, outside: int, sums: torch.Tensor
) -> torch.Tensor:
    """Variance [G, T] over the queries; adds entropy, variance and kurtosis to ``sums``."""
    num_queries = probs.shape[1]
    entropy = -(probs * (probs + ENTROPY_EPSILON).log())[..., :outside].sum()
    squares = (probs - mean.unsqueeze(1)).square_()
    second_moment = squares.mean(1)
    variance = second_moment * (num_queries / max(num_queries - 1, 1))
    fourth_moment = squares.square_().mean(1)
    kurtosis = fourth_moment / second_moment.clamp_min(MIN_SECOND_MOMENT).square()
    sums += torch.stack((entropy, variance[:, :outside].sum(), kurtosis[:, :outside].sum()))
    return variance
