"""Means of few samples, and what can be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from arkv_sglang.report.audit import MIN_FOR_INTERVAL

NUM_RESAMPLES = 10_000
LEVEL = 0.95
SMALLEST_DIFFERENCE = 1e-9


class Mean(NamedTuple):
    """With a bootstrap's interval of `LEVEL`, which few samples do not have: it would be too
    narrow."""

    mean: float
    low: float | None
    high: float | None


class Paired(NamedTuple):
    """Of the same samples under two arms: how often the first is better, worse, and as good."""

    wins: int
    losses: int
    ties: int


def bootstrap_mean(*groups: Sequence[float]) -> Mean:
    """The mean of the groups' means, whatever their sizes. Samples are drawn again within each
    group, with replacement, always alike."""
    rng = np.random.default_rng(0)
    found = [np.asarray(group, dtype=np.float64) for group in groups]
    mean = float(np.mean([values.mean() for values in found]))
    if min(map(len, found)) < MIN_FOR_INTERVAL:
        return Mean(mean, None, None)
    resampled = np.zeros(NUM_RESAMPLES)
    for values in found:
        draws = rng.integers(len(values), size=(NUM_RESAMPLES, len(values)))
        resampled += values[draws].mean(axis=1) / len(found)
    low, high = np.quantile(resampled, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Mean(mean, float(low), float(high))


def paired(found: Sequence[float], other: Sequence[float]) -> Paired:
    differences = np.asarray(found, dtype=np.float64) - np.asarray(other, dtype=np.float64)
    wins = int((differences > SMALLEST_DIFFERENCE).sum())
    losses = int((differences < -SMALLEST_DIFFERENCE).sum())
    return Paired(wins, losses, len(differences) - wins - losses)
