"""The specification of every op, in torch. It runs on any device and is tuned for the CPU."""

from arkv_sglang.kernels.reference.decode import decode_attention
from arkv_sglang.kernels.reference.extend import extend_attention
from arkv_sglang.kernels.reference.rows import (
    dequantize,
    move_rows,
    quantize,
    read_rows,
    require_numbers,
    write_rows,
)
from arkv_sglang.kernels.reference.window import WindowStatistics, window_statistics

__all__ = [
    "WindowStatistics",
    "decode_attention",
    "dequantize",
    "extend_attention",
    "move_rows",
    "quantize",
    "read_rows",
    "require_numbers",
    "window_statistics",
    "write_rows",
]
