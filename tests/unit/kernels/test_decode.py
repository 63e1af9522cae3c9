"""decode_attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arkv_sglang.core import Tier
from arkv_sglang.kernels import api
from tests.unit.kernels.naive import BF16_HALF_ULP, HEADS, attention, filled, read


def check(
    lens: list[int], tiers: list[int], heads: tuple[int, int, int], dtype: torch.dtype, seed: int
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    arena, rows = filled(tiers, num_kv_heads, head_dim, seed)
    indptr = torch.tensor([0, *lens]).cumsum(0).int()
    q = torch.randn(len(lens), num_heads, head_dim).mul(2).to(dtype)
    scale = head_dim**-0.5
    out, probs = api.decode_attention(q, arena, rows, indptr, lens, scale)
    assert out.dtype == dtype and probs.dtype == torch.float32 and probs.shape == rows.shape
    k, v = read(arena, rows)
    start = 0
    for b, length in enumerate(lens):
        own = slice(start, start + length)
        start += length
        live = rows[own] >= 0
        if not live.any():
            assert (out[b] == 0).all() and (probs[own] == 0).all()
            continue
        wanted, p, error = attention(q[b : b + 1], k[own], v[own], live[None], scale)
        by_row = p.mean(0)[0]
        assert ((probs[own] - by_row).abs() <= error * by_row).all()
        assert (probs[own][~live] == 0).all()
        rounding = 0.0 if dtype == torch.float32 else BF16_HALF_ULP
        bound = error * v[own].abs().amax() + rounding * wanted[0].abs()
        assert ((out[b].double() - wanted[0]).abs() <= bound).all()


LENS = [[1], [5], [128], [129, 1], [0, 3], [3, 0, 0, 260], [127, 128, 129, 1, 300]]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("lens", LENS, ids=str)
@pytest.mark.parametrize("tier", list(Tier), ids=lambda t: t.name)
def test_rows_of_one_tier(lens: list[int], tier: Tier, heads: tuple[int, int, int]) -> None:
    check(lens, [int(tier)] * sum(lens), heads, torch.float32, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 150), min_size=1, max_size=5),
    st.sampled_from(HEADS),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.tuples(*[st.integers(0, 3)] * 3).filter(any),
    st.integers(0, 2**16),
)
def test_rows_of_mixed_tiers(
    lens: list[int],
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    shares: tuple[int, int, int],
    seed: int,
) -> None:
    torch.manual_seed(seed)
    weights = torch.tensor(shares, dtype=torch.float32)
    tiers = (torch.multinomial(weights, max(sum(lens), 1), True) - 1)[: sum(lens)].tolist()
    check(lens, tiers, heads, dtype, seed)


def test_order_of_rows_does_not_matter() -> None:
    arena, rows = filled([0, 1] * 100, 2, 16, 3)
    q = torch.randn(1, 4, 16)
    order = torch.randperm(200)
    indptr = torch.tensor([0, 200])
    out, probs = api.decode_attention(q, arena, rows, indptr, [200], 0.25)
    again, shuffled = api.decode_attention(q, arena, rows[order], indptr, [200], 0.25)
    torch.testing.assert_close(again, out)
    torch.testing.assert_close(shuffled, probs[order])


def test_large_logits_do_not_overflow() -> None:
    arena, rows = filled([1] * 50, 1, 16, 4)
    q = torch.randn(1, 2, 16) * 1e4
    out, probs = api.decode_attention(q, arena, rows, torch.tensor([0, 50]), [50], 1.0)
    assert out.isfinite().all()
    torch.testing.assert_close(probs.sum(), torch.tensor(1.0))


def test_rows_of_others_cannot_spoil_a_request() -> None:
    arena, rows = filled([1] * 30 + [0] * 30, 1, 16, 5)
    q = torch.randn(2, 2, 16)
    lens, indptr = [30, 30], torch.tensor([0, 30, 60])
    out, _ = api.decode_attention(q, arena, rows, indptr, lens, 0.25)
    api.write_rows(arena, rows[30:], *torch.full((2, 30, 1, 16), torch.inf))
    again, _ = api.decode_attention(q, arena, rows, indptr, lens, 0.25)
    assert torch.equal(again[0], out[0]) and again[1].isnan().any()


def test_out_may_be_a_view() -> None:
    arena, rows = filled([1] * 9, 1, 16, 6)
    q = torch.randn(1, 2, 16)
    wanted, _ = api.decode_attention(q, arena, rows, torch.tensor([0, 9]), [9], 0.25)
    buffer = torch.zeros(1, 2, 32)
    out, _ = api.decode_attention(
        q, arena, rows, torch.tensor([0, 9]), [9], 0.25, out=buffer[..., ::2]
    )
    assert torch.equal(out, wanted) and torch.equal(buffer[..., ::2], wanted)
