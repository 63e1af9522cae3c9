"""e4m3 bytes to floats and back by integer arithmetic.

torch converts float8 one element at a time on the CPU; shifts of whole vectors are ten times as
fast.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
MIN_SCALE, MAX_SCALE = 1, 246
"""Range of scale bytes: 2**(s - 127), and 2**8 times it, are normal fp32 numbers."""

HALF_BIAS_GAP = 8
"""e4m3 bits moved under fp16's exponent read as the value times 2**-8 (biases 7 and 15)."""


def scale_bytes(amax: torch.Tensor) -> torch.Tensor:
    """Biased exponent, int32, of the smallest power of two that brings ``amax`` to 448 or less."""
    # 448 = 1.75 * 2**8: the addend carries into the exponent when the mantissa is above 1.75.
    exponent = (amax.view(torch.int32) + 0x1FFFFF) >> 23
    return (exponent - 8).clamp_(MIN_SCALE, MAX_SCALE)


def power_of_two(biased_exponent: torch.Tensor) -> torch.Tensor:
    """fp32 ``2**(biased_exponent - 127)`` of biased exponents in 1..254."""
    return (biased_exponent.to(torch.int32) << 23).view(torch.float32)


def widen(data: torch.Tensor, half_bits: torch.Tensor) -> torch.Tensor:
    """fp16 values times 2**-8 of int8 views of e4m3 bytes, in the int16 buffer ``half_bits``."""
    half_bits.copy_(data)
    half_bits.mul_(128).bitwise_and_(~0x4000)  # the sign was copied into the exponent's top bit
    return half_bits.view(torch.float16)
