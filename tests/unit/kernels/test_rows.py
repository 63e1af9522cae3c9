"""write_rows, read_rows and move_rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arkv_sglang.core import NO_ROW, Arena, Tier, row_code
from arkv_sglang.kernels import api
from tests.unit.kernels.naive import EPS, noise_arena, place, read

TIERS = st.lists(st.sampled_from([-1, 0, 1]), min_size=0, max_size=17)
WIDTHS = st.sampled_from([(1, 8), (2, 24), (3, 64), (1, 1), (5, 6)])
SEEDS = st.integers(0, 2**16)


def bytes_of(arena: Arena) -> list[torch.Tensor]:
    return [x.clone() for x in (arena.k, arena.v, arena.k_scale, arena.v_scale)]


@settings(max_examples=60, deadline=None)
@given(TIERS, WIDTHS, SEEDS, st.sampled_from([torch.bfloat16, torch.float32]))
def test_written_rows_read_back(
    tiers: list[int], width: tuple[int, int], seed: int, dtype: torch.dtype
) -> None:
    arena = noise_arena(*width, 2 * len(tiers) + 4, seed)
    rows = place(tiers, arena.num_units, seed)
    torch.manual_seed(seed)
    k, v = (torch.randn(len(tiers), *width).mul(3).to(dtype) for _ in range(2))
    api.write_rows(arena, rows, k, v)
    tier = torch.tensor(tiers, dtype=torch.int64)
    got_k, got_v = api.read_rows(arena, rows, torch.float32)
    naive_k, naive_v = read(arena, rows)
    assert torch.equal(got_k.double(), naive_k) and torch.equal(got_v.double(), naive_v)
    for got, wanted in ((got_k, k.float()), (got_v, v.float())):
        original, quantized = tier == Tier.ORIGINAL, tier == Tier.QUANTIZED
        assert torch.equal(got[original], wanted[original].bfloat16().float())
        amax = wanted[quantized].abs().amax(-1, keepdim=True)
        # Steps of 2**-3 of the value, or of 2**-9 scales, and a scale is below amax / 224.
        bound = torch.maximum(wanted[quantized].abs() * 2.0**-4, amax / 224 * 2.0**-10)
        assert ((got[quantized] - wanted[quantized]).abs() <= bound * (1 + EPS)).all()
        assert (got[tier == Tier.EVICTED] == 0).all()


def test_bf16_rows_are_bit_exact() -> None:
    arena = noise_arena(2, 128, 600, 0)
    patterns = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    k = patterns[: 250 * 256].view(250, 2, 128)
    v = patterns[-250 * 256 :].view(250, 2, 128)
    rows = place([0] * 250, 600, 0)
    api.write_rows(arena, rows, k, v)
    for got, wanted in zip(api.read_rows(arena, rows), (k, v), strict=True):
        assert torch.equal(got.view(torch.int16), wanted.view(torch.int16))


def test_only_the_rows_named_are_written() -> None:
    arena = noise_arena(2, 16, 40, 1)
    before = bytes_of(arena)
    rows = torch.cat((row_code(torch.tensor([4, 9]), torch.tensor([0, 1])), torch.tensor([NO_ROW])))
    api.write_rows(arena, rows.int(), *torch.randn(2, 3, 2, 16))
    others = [u for u in range(40) if u not in (4, 5, 9)]
    for old, new in zip(before, bytes_of(arena), strict=True):
        assert torch.equal(old[others], new[others])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3), (2, 1, 3)])
def test_rows_of_any_shape_are_read(shape: tuple[int, ...]) -> None:
    arena = noise_arena(2, 8, 40, 2)
    rows = place([1, 0, -1, 1, 0, 1], 40, 3)
    api.write_rows(arena, rows, *torch.randn(2, 6, 2, 8))
    asked = rows[: torch.Size(shape).numel()].view(shape)
    k, v = api.read_rows(arena, asked)
    assert k.shape == v.shape == (*shape, 2, 8)
    flat_k, flat_v = read(arena, asked.flatten())
    assert torch.equal(k.double().view_as(flat_k), flat_k.bfloat16().double())
    assert torch.equal(v.double().view_as(flat_v), flat_v.bfloat16().double())


@settings(max_examples=60, deadline=None)
@given(TIERS, WIDTHS, SEEDS, st.data())
def test_moved_rows_keep_their_values(
    tiers: list[int], width: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    demote = [t if t != 0 else data.draw(st.sampled_from([0, 1])) for t in tiers]
    # So few units that sources and destinations overlap.
    arena = noise_arena(*width, 2 * len(tiers) + 2, seed)
    src = place(tiers, arena.num_units, seed)
    dst = place(demote, arena.num_units, seed + 1)
    api.write_rows(arena, src, *torch.randn(2, len(tiers), *width))
    k, v = read(arena, src)
    demoted = torch.tensor(demote, dtype=torch.int64) != torch.tensor(tiers, dtype=torch.int64)
    api.move_rows(arena, src, dst)
    for got, wanted in zip(read(arena, dst), (k, v), strict=True):
        assert torch.equal(got[~demoted], wanted[~demoted])
        again = api.dequantize(*api.quantize(wanted[demoted].float()), torch.float32)
        assert torch.equal(got[demoted].float(), again)


def test_a_pair_is_quantized_in_place_and_rows_swap() -> None:
    arena = noise_arena(3, 16, 8, 4)
    src = row_code(torch.tensor([0, 2, 4, 6, 7]), torch.tensor([0, 0, 0, 1, 1]))
    dst = row_code(torch.tensor([0, 4, 2, 7, 6]), torch.tensor([1, 0, 0, 1, 1]))
    api.write_rows(arena, src, *torch.randn(2, 5, 3, 16))
    k, v = read(arena, src)
    api.move_rows(arena, src, dst)
    for got, wanted in zip(read(arena, dst), (k, v), strict=True):
        assert torch.equal(got[1:], wanted[1:])
        assert ((got[0] - wanted[0]).abs() <= wanted[0].abs().amax() * 2.0**-4).all()


def test_a_row_is_never_promoted() -> None:
    arena = noise_arena(1, 8, 8, 5)
    before = bytes_of(arena)
    src, dst = row_code(torch.tensor([0]), 1), row_code(torch.tensor([2]), 0)
    with pytest.raises(ValueError, match="dst must not be ORIGINAL where src is QUANTIZED"):
        api.move_rows(arena, src, dst)
    with pytest.raises(ValueError, match="NO_ROW at the same places"):
        api.move_rows(arena, src, torch.tensor([NO_ROW], dtype=torch.int32))
    assert all(torch.equal(a, b) for a, b in zip(before, bytes_of(arena), strict=True))


def test_nan_in_a_row_that_is_quantized_writes_nothing() -> None:
    arena = noise_arena(1, 8, 8, 6)
    before = bytes_of(arena)
    k, v = torch.zeros(2, 2, 1, 8)
    v[1] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        api.write_rows(arena, row_code(torch.tensor([0, 3]), torch.tensor([0, 1])), k, v)
    assert all(torch.equal(a, b) for a, b in zip(before, bytes_of(arena), strict=True))
