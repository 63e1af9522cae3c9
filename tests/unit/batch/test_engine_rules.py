from pathlib import Path
from typing import Any

import pytest

from arkv_sglang.batch.config import EnginesConfig
from arkv_sglang.batch.engine_rules import check_engines
from arkv_sglang.config import ConfigError


def check(engine: dict[str, Any], **engines: Any) -> None:
    check_engines({"model_path": "some/model"} | engine, EnginesConfig.model_validate(engines))


@pytest.mark.parametrize(
    ("engine", "engines"),
    [
        ({}, {}),
        ({}, {"num_gpus": 0, "num_cpus": 0.5}),
        ({"tp_size": 2, "pp_size": 2}, {"num_gpus": 4}),
        ({"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}, {"num_gpus": 4}),
        ({"tp_size": 2, "dp_size": 2}, {"num_gpus": 4}),
        ({"mem_fraction_static": 0.9}, {"num_gpus": 0.5, "count": 1}),
        ({"mem_fraction_static": 0.5}, {"num_gpus": 0.5, "count": 2}),
        ({"mem_fraction_static": 0.9}, {"num_gpus": 0.6, "count": 2}),
        ({"max_total_tokens": 1000}, {"num_gpus": 0.5, "count": 2}),
        ({"nccl_port": 29500}, {"count": 1}),
        ({"tp_size": None}, {"min_engines": 2, "count": 2}),
    ],
)
def test_what_fits_together(engine: dict[str, Any], engines: dict[str, Any]) -> None:
    check(engine, **engines)


@pytest.mark.parametrize(
    ("engine", "engines", "sentence"),
    [
        (
            {},
            {"count": 2, "min_engines": 3},
            "engines.min_engines must be at most engines.count 2, got 3; correct one of them",
        ),
        (
            {},
            {"num_gpus": 0, "num_cpus": 0},
            "engines.num_cpus must be greater than 0 for engines without a GPU, got 0; ",
        ),
        (
            {"tp_size": 2},
            {},
            "engines.num_gpus must be the GPUs that an engine uses, engine.tp_size 2 x pp_size 1 "
            "x dp_size 1 = 2, got 1; correct one of them",
        ),
        ({"tp_size": 2}, {"num_gpus": 0.5}, "engines.num_gpus must be the GPUs .* = 2, got 0.5; "),
        ({}, {"num_gpus": 1.5}, "engines.num_gpus must be the GPUs .* = 1, got 1.5; "),
        ({}, {"num_gpus": 2}, "engines.num_gpus must be the GPUs .* = 1, got 2; "),
        ({"tp_size": "2"}, {}, "engine.tp_size must be a whole number above 0, got '2'; "),
        ({"nnodes": 2}, {}, "engine.nnodes must be 1, got 2; "),
        (
            {"mem_fraction_static": 0.6},
            {"num_gpus": 0.5, "count": 2},
            r"engine.mem_fraction_static must be at most 0.5 where 2 engines share a GPU "
            r"\(engines.num_gpus 0.5\), got 0.6; lower it, or give each engine a GPU",
        ),
        (
            {},
            {"num_gpus": 0.25, "count": 3},
            r"engine.mem_fraction_static must be at most 0.33 .*, got nothing; ",
        ),
        (
            {"nccl_port": 29500},
            {"count": 2},
            "engine.nccl_port must not be set for 2 engines, got 29500, ",
        ),
    ],
)
def test_what_does_not_is_one_sentence(
    engine: dict[str, Any], engines: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}") as caught:
        check(engine, **engines)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ({"tp_size": 2}, "engine.tp_size (got 2): attention scores differ per rank"),
        ({"disable_radix_cache": True}, "engine.disable_radix_cache (got True): the radix tree is"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "engine.kv_cache_dtype (got 'fp8_e5m2'): the policy "),
        ({"enable_priority_scheduling": True}, "priority preemption: "),
    ],
)
def test_what_a_policy_does_not_support_is_refused_before_an_engine_is_started(
    argument: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(argument | {"kv_policy": "arkv"}, num_gpus=2)
    assert str(caught.value).startswith("engine.kv_policy arkv does not support " + reason)
    check(argument | {"kv_policy": "none"}, num_gpus=argument.get("tp_size", 1))
    check(dict.fromkeys(argument) | {"kv_policy": "arkv"})


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    engine = {"model_path": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"^engine\.model_path must hold a config\.json, got "):
        check(engine)
    (tmp_path / "config.json").touch()
    check(engine)
