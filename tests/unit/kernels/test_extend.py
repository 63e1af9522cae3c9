"""extend_attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arkv_sglang.kernels import api
from tests.unit.kernels.naive import BF16_HALF_ULP, HEADS, attention, filled, read


def check(
    prefix_lens: list[int],
    extend_lens: list[int],
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    seed: int,
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    torch.manual_seed(seed)
    tiers = torch.randint(0, 2, (sum(prefix_lens),)).tolist()
    arena, rows = filled(tiers, num_kv_heads, head_dim, seed)
    num_tokens = sum(extend_lens)
    q = torch.randn(num_tokens, num_heads, head_dim).mul(2).to(dtype)
    k, v = torch.randn(2, num_tokens, num_kv_heads, head_dim).to(dtype)
    scale = head_dim**-0.5
    out = api.extend_attention(q, k, v, arena, rows, prefix_lens, extend_lens, scale)
    assert out.dtype == dtype
    before_k, before_v = read(arena, rows)
    token = row = 0
    for num_prefix, num_new in zip(prefix_lens, extend_lens, strict=True):
        own, before = slice(token, token + num_new), slice(row, row + num_prefix)
        token, row = token + num_new, row + num_prefix
        if num_new == 0:
            continue
        keys = torch.cat((before_k[before], k[own].double()))
        values = torch.cat((before_v[before], v[own].double()))
        seen = torch.ones(num_new, num_prefix + num_new, dtype=torch.bool).tril(num_prefix)
        wanted, _, error = attention(q[own], keys, values, seen, scale)
        rounding = 0.0 if dtype == torch.float32 else BF16_HALF_ULP
        # The result is rounded, and in one pass each probability before it meets its value.
        bound = (error + rounding) * values.abs().amax() + rounding * wanted.abs()
        assert ((out[own].double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize(
    ("prefix_lens", "extend_lens"),
    [([0], [1]), ([1], [1]), ([0, 7, 0], [5, 1, 0]), ([300, 3], [37, 520])],
    ids=str,
)
def test_prefixes_and_chunks(
    prefix_lens: list[int], extend_lens: list[int], heads: tuple[int, int, int]
) -> None:
    check(prefix_lens, extend_lens, heads, torch.float32, 0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 70)), min_size=1, max_size=4),
    st.sampled_from(HEADS),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 2**16),
)
def test_random_batches(
    lens: list[tuple[int, int]], heads: tuple[int, int, int], dtype: torch.dtype, seed: int
) -> None:
    check([p for p, _ in lens], [e for _, e in lens], heads, dtype, seed)


def test_one_part_may_outweigh_the_other() -> None:
    """Logits of the prefix far above or below the chunk's: the merge must not overflow."""
    for size in (1e3, -1e3):
        arena, rows = filled([0] * 4, 1, 8, 1)
        api.write_rows(arena, rows, torch.full((4, 1, 8), size), torch.ones(4, 1, 8))
        q, k = torch.ones(3, 1, 8), torch.zeros(3, 1, 8)
        out = api.extend_attention(q, k, torch.full((3, 1, 8), 2.0), arena, rows, [4], [3], 1.0)
        torch.testing.assert_close(out, torch.full((3, 1, 8), 1.0 if size > 0 else 2.0))


def test_out_is_written() -> None:
    arena, rows = filled([1] * 4, 1, 8, 1)
    q, k = torch.randn(3, 2, 8), torch.randn(3, 1, 8)
    out = torch.empty(3, 2, 8)
    got = api.extend_attention(q, k, k, arena, rows, [4], [3], 1.0, out=out)
    assert got is out and out.isfinite().all()
