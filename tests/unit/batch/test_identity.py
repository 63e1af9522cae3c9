import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.identity import (
    OTHER_ENGINE_SETTINGS,
    OTHER_SECTIONS,
    config_hash,
    model_identity,
)

from .runs import configured


def hashed(tmp_path: Path, **sections: dict[str, Any]) -> str:
    return config_hash(configured(tmp_path, **sections))


@pytest.mark.parametrize(
    "sections",
    [
        {"output": {"dir": "/elsewhere", "rows_per_part": 3, "existing": "replace"}},
        {"engines": {"count": 8, "num_gpus": 0.5, "env": {"A": "B"}}},
        {"run": {"progress_period_s": 3.0}},
        {"input": {"path": "elsewhere", "limit": 3}},
        {"engine": {"mem_fraction_static": 0.5, "max_running_requests": 4, "log_level": "error"}},
        {"engine": {"revision": None, "api_key": "secret"}},
        {"engine": {"kv_policy_config": '{"budget": 0.55}'}},
        {"sampling": {"max_new_tokens": 10, "temperature": 0.0}},
        {"strategy": {"map_template": "{{ text }}", "refine_template": "{{ summary }}{{ text }}"}},
    ],
)
def test_what_changes_no_answer_changes_no_hash(tmp_path: Path, sections: Any) -> None:
    assert hashed(tmp_path, **sections) == hashed(tmp_path)


def test_what_may_change_an_answer_changes_the_hash(tmp_path: Path) -> None:
    changes: list[Any] = [
        {},
        {"prompt": {"system": "Be brief."}},
        {"prompt": {"template": "{{ text }}"}},
        {"sampling": {"temperature": 0.5}},
        {"engine": {"model_path": "another/model"}},
        {"engine": {"revision": "v2"}},
        {"engine": {"dtype": "float16"}},
        {"engine": {"random_seed": 7}},
        {"engine": {"a_setting_of_tomorrow": 1}},
        {"engine": {"kv_policy": "none"}},
        {"engine": {"kv_policy_config": {"budget": 0.25}}},
        {"strategy": {"kind": "map_reduce"}},
        {"strategy": {"kind": "refine"}},
        {"strategy": {"kind": "refine", "chunk_tokens": 500}},
        {"strategy": {"kind": "refine", "map_template": "{{ text }}"}},
    ]
    hashes = [hashed(tmp_path, **change) for change in changes]
    assert len(set(hashes)) == len(changes)
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in hashes)


def test_a_policy_is_known_by_its_settings_and_not_by_their_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("budget: 0.25")
    from_file = hashed(tmp_path, engine={"kv_policy_config": f"@{path}"})
    assert from_file == hashed(tmp_path, engine={"kv_policy_config": {"budget": 0.25}})
    path.write_text("budget: 0.5")
    assert from_file != hashed(tmp_path, engine={"kv_policy_config": f"@{path}"})


def make_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(17 << 20))
    (folder / "README.md").write_text("about")
    return folder


def test_a_folder_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    before = hashed(tmp_path, engine={"model_path": str(model)})
    (model / "README.md").write_text("more about")
    model = model.rename(tmp_path / "moved")
    assert hashed(tmp_path, engine={"model_path": str(model)}) == before
    assert model_identity({"model_path": str(model)})["hash"]
    weights = model / "model.safetensors"
    # As long as it was, and trained further.
    weights.write_bytes(bytes((17 << 20) - 1) + b"1")
    trained = hashed(tmp_path, engine={"model_path": str(model)})
    (model / "config.json").write_text('{"a": 1}')
    assert len({before, trained, hashed(tmp_path, engine={"model_path": str(model)})}) == 3


def test_a_name_on_a_hub_says_its_revision(tmp_path: Path) -> None:
    engine = {"model_path": "some/model", "revision": "v1"}
    expected = {"id": "some/model", "revision": "v1", "commit": None, "hash": None}
    assert model_identity(engine) == expected


def test_only_settings_and_sections_that_exist_are_left_out() -> None:
    assert JobConfig.model_fields.keys() >= OTHER_SECTIONS
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("SGLang is not installed")
    fields = Path(spec.submodule_search_locations[0]) / "srt/arg_groups/fields"
    names = re.findall(r"^    (\w+): ", "".join(p.read_text() for p in fields.glob("*.py")), re.M)
    assert set(names) >= OTHER_ENGINE_SETTINGS
