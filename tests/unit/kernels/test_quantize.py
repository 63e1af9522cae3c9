"""quantize and dequantize."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arkv_sglang.kernels import api
from tests.unit.kernels.naive import e4m3

FORMAT_MAX = 448.0 * 2.0 ** (246 - 127)


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_error_is_half_a_step_at_most(values: list[float], dtype: torch.dtype) -> None:
    x = torch.tensor(values).to(dtype).view(1, 1, -1)
    data, scale = api.quantize(x)
    unit = 2.0 ** (scale.double().unsqueeze(-1) - 127)
    wanted = x.double().clamp(-FORMAT_MAX, FORMAT_MAX)
    error = (e4m3(data, scale) - wanted).abs()
    # 3 mantissa bits: half a step is 2**-4 of the value, and 2**-10 scales among the subnormals.
    assert (error <= torch.maximum(wanted.abs() * 2.0**-4, unit * 2.0**-10)).all()


@given(st.floats(min_value=2.0**-110, max_value=FORMAT_MAX, width=32))
def test_scale_is_the_smallest_that_fits(amax: float) -> None:
    _, scale = api.quantize(torch.tensor([[[0.0, -amax]]]))
    unit = 2.0 ** (int(scale) - 127)
    assert amax / unit <= 448.0 < amax / (unit / 2)


@pytest.mark.parametrize("exponent", [-100, -8, 0, 8, 100])
def test_edges_of_a_scale(exponent: int) -> None:
    edge = 448.0 * 2.0**exponent
    above = torch.nextafter(torch.tensor(edge), torch.tensor(torch.inf)).item()
    _, scale = api.quantize(torch.tensor([[[edge]], [[above]]]))
    assert scale.flatten().tolist() == [127 + exponent, 128 + exponent]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_infinities_saturate(dtype: torch.dtype) -> None:
    data, scale = api.quantize(torch.tensor([[[torch.inf, -torch.inf, 1.0]]], dtype=dtype))
    assert e4m3(data, scale).flatten().tolist() == [FORMAT_MAX, -FORMAT_MAX, 0.0]
    assert api.dequantize(data, scale, torch.float32).isfinite().all()


def test_zeros_stay_zeros() -> None:
    data, scale = api.quantize(torch.zeros(3, 2, 8))
    assert (api.dequantize(data, scale, torch.float32) == 0).all()


def test_nan_is_an_error() -> None:
    x = torch.zeros(4, 2, 8)
    x[2, 1, 5] = torch.nan
    with pytest.raises(ValueError, match="x must hold numbers, got NaN"):
        api.quantize(x)


def test_no_rows() -> None:
    data, scale = api.quantize(torch.zeros(0, 2, 8))
    assert data.shape == (0, 2, 8) and scale.shape == (0, 2)


@pytest.mark.parametrize("scale_byte", [1, 119, 127, 200, 246])
def test_dequantize_is_exact_for_every_byte(scale_byte: int) -> None:
    data = torch.arange(256, dtype=torch.uint8)
    data = data[(data & 0x7F) != 0x7F].view(1, -1)  # without the two NaN
    scale = torch.full((1,), scale_byte, dtype=torch.uint8)
    got = api.dequantize(data, scale, torch.float32)
    assert torch.equal(got.double(), e4m3(data, scale))


def test_values_of_the_format_survive() -> None:
    data = torch.arange(256, dtype=torch.uint8)
    data = data[((data & 0x7F) != 0x7F) & (data != 0x80)].view(1, 1, -1)
    scale = torch.full((1, 1), 120, dtype=torch.uint8)
    again, again_scale = api.quantize(api.dequantize(data, scale, torch.bfloat16))
    assert torch.equal(again, data) and torch.equal(again_scale, scale)
