"""window_statistics."""

from __future__ import annotations

import pytest
import torch

from arkv_sglang.kernels import api
from tests.unit.kernels.naive import HEADS, attention

CASES = [(1, 1), (1, 9), (2, 2), (5, 5), (32, 200), (32, 33), (7, 1), (40, 12)]
"""(W, T): one query, no key before the window, more queries than keys."""


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize(("num_queries", "num_keys"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_against_fp64(
    num_queries: int, num_keys: int, heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(num_queries * 1000 + num_keys)
    num_heads, num_kv_heads, head_dim = heads
    q = torch.randn(num_queries, num_heads, head_dim).mul(2).to(dtype)
    k = torch.randn(num_keys, num_kv_heads, head_dim).to(dtype)
    got = api.window_statistics(q, k, head_dim**-0.5)

    q = q[max(num_queries - num_keys, 0) :]
    window = q.shape[0]
    outside = num_keys - window
    seen = torch.ones(window, num_keys, dtype=torch.bool).tril(outside)
    _, probs, error = attention(q, k, k, seen, head_dim**-0.5)
    mean = probs.mean(1)
    variance = probs.var(1, correction=1) if window > 1 else torch.zeros_like(mean)
    assert ((got.mean - mean).abs() <= 2 * error * mean).all()
    # |d(x**2)| <= 2 |x| |dx| per query, |x| and |dx| bounded by the largest probability of the key.
    peak = probs.amax(1).square()
    assert ((got.variance - variance).abs() <= 8 * error * peak).all()

    far = probs[..., :outside]
    torch.testing.assert_close(
        got.entropy.double(), -(far * (far + 1e-10).log()).sum(), rtol=20 * error, atol=1e-7
    )
    bound = (8 * error * peak[:, :outside]).sum().item()
    torch.testing.assert_close(
        got.variance_sum.double(), variance[:, :outside].sum(), rtol=error, atol=bound
    )
    deviation = far - far.mean(1, keepdim=True)
    second, fourth = deviation.square().mean(1), deviation.pow(4).mean(1)
    kurtosis = fourth / second.clamp_min(1e-8).square()
    # Above the floor, deviations are 1e-4 at least, known to the error of a probability.
    relative = 8 * error * max(far.amax().item(), 1e-4) / 1e-4 if outside else 0.0
    torch.testing.assert_close(got.kurtosis_sum.double(), kurtosis.sum(), rtol=relative, atol=1e-6)


def test_a_single_query_has_no_variance() -> None:
    got = api.window_statistics(torch.randn(1, 4, 8), torch.randn(20, 2, 8), 0.3)
    assert (got.variance == 0).all() and got.variance_sum == 0 and got.kurtosis_sum == 0
    torch.testing.assert_close(got.mean.sum(-1), torch.ones(4))
    assert got.entropy > 0


def test_a_window_that_is_the_whole_prompt() -> None:
    got = api.window_statistics(torch.randn(6, 4, 8), torch.randn(6, 2, 8), 0.3)
    assert got.entropy == got.variance_sum == got.kurtosis_sum == 0
    torch.testing.assert_close(got.mean.sum(-1), torch.ones(4))
