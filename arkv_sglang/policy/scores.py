"""Token scores and the original/quantized ratio (ARKV, arXiv 2603.08727, sections as in its code).

Higher scores are more important, everywhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from arkv_sglang.config import Pooling


def heavy_hitter(mean: torch.Tensor, variance: torch.Tensor, gamma: float) -> torch.Tensor:
    """``S_k = mu_k + gamma * sigma_k^2`` of each token's attention; any shape, fp32."""
    return mean + gamma * variance


def merge(
    first: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    second: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, unbiased variance and count of two samples as one; any shapes that broadcast.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", 1979. A count of 0 is no sample, whatever its mean.
    """
    (mean_a, variance_a, a), (mean_b, variance_b, b) = first, second
    n = (a + b).clamp_min(1)
    delta = mean_b - mean_a
    squares = variance_a * (a - 1).clamp_min(0) + variance_b * (b - 1).clamp_min(0)
    squares = squares + delta.square() * (a * b / n)
    return mean_a + delta * (b / n), squares / (n - 1).clamp_min(1), a + b


def pool(scores: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Smooth [..., T] over neighbouring tokens; edges use the neighbours that exist."""
    if pooling.kind == "none" or pooling.width in (None, 1) or scores.shape[-1] == 0:
        return scores
    flat = scores.reshape(-1, 1, scores.shape[-1])
    half = pooling.width // 2
    if pooling.kind == "max":
        pooled = F.max_pool1d(flat, pooling.width, stride=1, padding=half)
    else:
        pooled = F.avg_pool1d(flat, pooling.width, stride=1, padding=half, count_include_pad=False)
    return pooled.reshape(scores.shape)


def oq_ratio(
    entropy: torch.Tensor,
    variance: torch.Tensor,
    kurtosis: torch.Tensor,
    tau: tuple[float, float, float],
) -> torch.Tensor:
    """Share of each layer's tokens that stay original, fp32 [L] in [0, 1].

    ``OQ_l = H^(1/tau1) * Var^(1/tau2) * Kurt^(1/tau3)``, divided by its largest layer. Inputs fp32
    [L], the layer sums over heads, window queries and the keys outside the window.
    """
    # In logarithms, so that no exponent overflows.
    log_oq = torch.zeros_like(entropy)
    for part, exponent in zip((entropy, variance, kurtosis), tau, strict=True):
        log_oq = log_oq + part.clamp_min(0).log() / exponent
    # One query has no variance, hence no ratio: every layer is then as good as the best.
    largest = log_oq.max()
    return torch.where(largest > -torch.inf, (log_oq - largest).exp(), torch.ones_like(log_oq))
