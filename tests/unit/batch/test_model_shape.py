import json
from pathlib import Path
from typing import Any

import pytest

from arkv_sglang.batch.model_shape import ModelShape, load_model_shape
from arkv_sglang.config import ConfigError
from arkv_sglang.core import Geometry

QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
LINEAR = {"rope_type": "linear", "factor": 2.0}


def shape(folder: Path, config: dict[str, Any], **engine: Any) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(config))
    return load_model_shape({"model_path": str(folder), **engine})


@pytest.mark.parametrize(
    ("config", "engine", "expected"),
    [
        (QWEN3, {}, ModelShape(40_960, Geometry(36, 8, 128))),
        (LLAMA, {}, ModelShape(8192, Geometry(30, 3, 64))),
        (LLAMA, {"context_length": 4096}, ModelShape(4096, Geometry(30, 3, 64))),
        (LLAMA | {"rope_scaling": LINEAR}, {}, ModelShape(16_384, Geometry(30, 3, 64))),
        (QWEN3 | {"rope_scaling": YARN}, {}, ModelShape(40_960, Geometry(36, 8, 128))),
        # Each of 16 ranks has a head of its own, so that 8 are kept twice.
        (QWEN3, {"tp_size": 16}, ModelShape(40_960, Geometry(36, 16, 128))),
    ],
)
def test_rows_and_context_are_what_the_config_says(
    tmp_path: Path, config: dict[str, Any], engine: dict[str, Any], expected: ModelShape
) -> None:
    assert shape(tmp_path, config, **engine) == expected


def test_rows_of_another_kind_are_not_guessed(tmp_path: Path) -> None:
    latent = {"model_type": "deepseek_v3", "kv_lora_rank": 512}
    assert shape(tmp_path, latent).geometry is None
    kinds = ["full_attention", "sliding_attention"] * 18
    sliding = shape(tmp_path, QWEN3 | {"layer_types": kinds})
    assert sliding.geometry is None and "sliding_attention" in str(sliding.unknown)


def test_a_folder_without_a_config_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^engine\.model_path must hold a config\.json, got "):
        load_model_shape({"model_path": str(tmp_path)})
