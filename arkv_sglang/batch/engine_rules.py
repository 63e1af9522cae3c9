"""Settings of engines that cannot work together, found before any of them starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arkv_sglang.batch.config import EnginesConfig
from arkv_sglang.config import ConfigError
from arkv_sglang.support import refuse_arguments


def check_engines(engine: Mapping[str, Any], engines: EnginesConfig) -> None:
    """The sections ``engine`` and ``engines`` of a job. Raises ConfigError."""
    _check_model(Path(engine["model_path"]))
    policy = engine.get("kv_policy") or "none"
    if policy != "none":
        refuse_arguments(policy, engine)
    _check_counts(engines)
    _check_ports(engine, engines)
    if engines.num_gpus:
        _check_devices(engine, engines.num_gpus)
        _check_shares(engine, engines)


def _check_model(path: Path) -> None:
    # params.json is Mistral's.
    if path.is_dir() and not any(
        (path / name).is_file() for name in ("config.json", "params.json")
    ):
        raise ConfigError(
            f"engine.model_path must hold a config.json, got {str(path)!r}; "
            "name the folder that has the weights"
        )


def _check_counts(engines: EnginesConfig) -> None:
    if engines.min_engines > engines.count:
        raise ConfigError(
            f"engines.min_engines must be at most engines.count {engines.count}, "
            f"got {engines.min_engines}; correct one of them"
        )
    if not engines.num_gpus and not engines.num_cpus:
        raise ConfigError(
            "engines.num_cpus must be greater than 0 for engines without a GPU, got 0; "
            "give each engine the cores that it may use"
        )


def _check_ports(engine: Mapping[str, Any], engines: EnginesConfig) -> None:
    for name in ("nccl_port", "dist_init_addr"):
        if engine.get(name) is not None and engines.count > 1:
            raise ConfigError(
                f"engine.{name} must not be set for {engines.count} engines, got "
                f"{engine[name]!r}, since two of them may be on one machine; "
                "remove it, and each takes a port that is free"
            )


def _check_devices(engine: Mapping[str, Any], num_gpus: float) -> None:
    if _whole(engine, "nnodes") != 1:
        raise ConfigError(
            f"engine.nnodes must be 1, got {engine['nnodes']}; "
            "an engine has the GPUs of one machine, and engines.count may be as large as you like"
        )
    sizes = {name: _whole(engine, name) for name in ("tp_size", "pp_size", "dp_size")}
    if engine.get("enable_dp_attention"):
        # Its replicas share the GPUs of tensor parallelism.
        del sizes["dp_size"]
    devices = math.prod(sizes.values())
    if num_gpus != devices and (devices > 1 or num_gpus > 1):
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(
            f"engines.num_gpus must be the GPUs that an engine uses, engine.{product} = {devices}, "
            f"got {num_gpus:g}; correct one of them"
        )


def _check_shares(engine: Mapping[str, Any], engines: EnginesConfig) -> None:
    sharing = min(engines.count, math.floor(1 / engines.num_gpus + 1e-6))
    share = engine.get("mem_fraction_static")
    if sharing < 2 or (share is None and engine.get("max_total_tokens") is not None):
        return
    if not isinstance(share, int | float) or share * sharing > 1 + 1e-6:
        raise ConfigError(
            f"engine.mem_fraction_static must be at most {1 / sharing:.2g} where {sharing} engines "
            f"share a GPU (engines.num_gpus {engines.num_gpus:g}), got {share or 'nothing'}; "
            "lower it, or give each engine a GPU"
        )


def _whole(engine: Mapping[str, Any], name: str) -> int:
    size = engine.get(name)
    if size is None:
        return 1
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"engine.{name} must be a whole number above 0, got {size!r}; correct it")
    return size
