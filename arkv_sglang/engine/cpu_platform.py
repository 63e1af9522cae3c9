"""SGLang on any CPU, without compiled kernels (entry-point group `sglang.srt.platforms`).

Stock SGLang reaches a CPU only with `SGLANG_USE_CPU_ENGINE=1` and kernels that are built from
source. As an out-of-tree platform the CPU runs on torch alone. A machine with an accelerator never
gets it unless `SGLANG_PLATFORM=arkv_cpu` asks for it by name.
"""

import os
from importlib.metadata import entry_points
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

PLATFORM_NAME = "arkv_cpu"
PLATFORM_GROUP = "sglang.srt.platforms"
SPIN_COUNT = "1000"


class ArkvCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Everything takes SGLang's torch-native path."""

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def post_load_model(self, model: torch.nn.Module) -> None:
        # Imported late: SGLang is still choosing its platform when this module is loaded.
        from arkv_sglang.engine.cpu_linear import widen_linear_layers

        widen_linear_layers(model)

    def apply_server_args_defaults(self, server_args: Any) -> None:
        # Threads that spin at the end of each op starve whoever computes, where cores are shared.
        # The engine's processes inherit it.
        if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
            os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
        # SGLang's own default for a CPU with AMX, which needs the kernels that are not here.
        if server_args.attention_backend == "intel_amx":
            server_args.attention_backend = "torch_native"


def activate() -> str | None:
    """Return the platform's dotted name, or None to stand aside."""
    asked_by_name = os.environ.get("SGLANG_PLATFORM") == PLATFORM_NAME
    if asked_by_name or _is_plain_cpu_machine():
        return f"{__name__}.{ArkvCpuPlatform.__qualname__}"
    return None


def _is_plain_cpu_machine() -> bool:
    stock_cpu_engine = os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"
    # SGLang refuses to choose between two platforms: leave the choice to the other one.
    other_platforms = {ep.name for ep in entry_points(group=PLATFORM_GROUP)} - {PLATFORM_NAME}
    return not (torch.accelerator.is_available() or stock_cpu_engine or other_platforms)
