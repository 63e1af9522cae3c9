"""Linear layers on a CPU without bf16 instructions: widen to fp32, multiply, round back.

There torch's bf16 matrix product is about four times slower than the fp32 one, casts included
(1,024 tokens, 576 to 3,072 features, two AVX-512 cores: 60 ms against 14). Sums are in fp32 either
way.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

# Below, reading the weights dominates and casting them costs more than it saves.
MIN_TOKENS = 64


class WideningLinearMethod(UnquantizedLinearMethod):
    """`UnquantizedLinearMethod` for many bf16 tokens at once; weights stay as they are."""

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        if x.dtype != torch.bfloat16 or x.shape[:-1].numel() < MIN_TOKENS:
            return super().apply(layer, x, bias)
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        wide_bias = None if bias is None else bias.float()
        return F.linear(x.float(), weight.float(), wide_bias).to(x.dtype)


def widen_linear_layers(model: torch.nn.Module) -> None:
    """Give every plain linear layer of ``model`` the method above, where the CPU gains by it."""
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return
    for layer in model.modules():
        if type(getattr(layer, "quant_method", None)) is UnquantizedLinearMethod:
            layer.quant_method = WideningLinearMethod()
