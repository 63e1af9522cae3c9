"""Scores and the OQ ratio against the formulas of arXiv 2603.08727, written out plainly."""

import pytest
import torch

from arkv_sglang import policy
from arkv_sglang.config import PAPER_TAU, Pooling
from arkv_sglang.policy import heavy_hitter, oq_ratio, pool


def test_heavy_hitter():
    mean, variance = torch.tensor([0.1, 0.2]), torch.tensor([0.01, 0.0])
    torch.testing.assert_close(heavy_hitter(mean, variance, 263.0), torch.tensor([2.73, 0.2]))


@pytest.mark.parametrize("width", [1, 3, 5, 31])
@pytest.mark.parametrize("num_tokens", [1, 4, 40])
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_pooling(kind, width, num_tokens):
    scores = torch.rand(3, 2, num_tokens)
    reduce = torch.mean if kind == "avg" else torch.amax
    half = width // 2
    wanted = torch.stack(
        [reduce(scores[..., max(0, t - half) : t + half + 1], dim=-1) for t in range(num_tokens)],
        dim=-1,
    )
    torch.testing.assert_close(pool(scores, Pooling(kind, width)), wanted)


def test_pooling_none_keeps_scores():
    scores = torch.rand(2, 9)
    assert pool(scores, Pooling("none")) is scores


def test_oq_ratio():
    entropy, variance, kurtosis = torch.rand(3, 4) + 0.1
    oq = [
        h ** (1 / PAPER_TAU[0]) * v ** (1 / PAPER_TAU[1]) * k ** (1 / PAPER_TAU[2])
        for h, v, k in zip(entropy.tolist(), variance.tolist(), kurtosis.tolist(), strict=True)
    ]
    wanted = torch.tensor([value / max(oq) for value in oq])
    torch.testing.assert_close(oq_ratio(entropy, variance, kurtosis, PAPER_TAU), wanted)


@pytest.mark.parametrize("tau", [(0.01, 1.0, 1.0), (1e-3, 1e-3, 1e-3), (1e6, 1e6, 1e6)])
def test_oq_ratio_of_extreme_exponents(tau):
    ratio = oq_ratio(torch.tensor([900.0, 800.0]), torch.ones(2), torch.full((2,), 1e8), tau)
    assert ratio[0] == 1 and 0 <= ratio[1] <= 1


def test_oq_ratio_of_a_single_query():
    """No variance anywhere: no layer is worse than another."""
    ratio = oq_ratio(torch.ones(3), torch.zeros(3), torch.zeros(3), PAPER_TAU)
    assert ratio.tolist() == [1.0, 1.0, 1.0]


def test_two_samples_as_one():
    first, second = torch.rand(5, 7), torch.rand(9, 7)
    parts = [(x.mean(0), x.var(0), torch.tensor(float(len(x)))) for x in (first, second)]
    mean, variance, count = policy.merge(*parts)
    whole = torch.cat((first, second))
    torch.testing.assert_close(mean, whole.mean(0))
    torch.testing.assert_close(variance, whole.var(0))
    nothing = (torch.full((7,), 3.0), torch.zeros(7), torch.tensor(0.0))
    torch.testing.assert_close(policy.merge(nothing, parts[1])[:2], parts[1][:2])
    assert count == 14
