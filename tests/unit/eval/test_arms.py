"""Policies and budgets to arms; refusals."""

import pytest

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.arms import make_arms


def test_each_policy_at_each_budget_and_full_kv_once():
    arms = make_arms(["none", "arkv", "original"], [0.5, 256], None)
    assert [arm.name for arm in arms] == [
        *("none", "arkv 0.5", "arkv 256", "original 0.5", "original 256")
    ]
    assert arms[0].config is None
    assert arms[1].config["budget"] == 0.5 and arms[1].config["min_tokens"] == 512
    assert {arm.line for arm in arms} == {"none", "arkv", "original"}


def test_a_small_budget_leaves_longer_prompts_as_they_are():
    """So that the tokens which are never evicted fit it."""
    (_, arm) = make_arms(["arkv"], [0.0625], None)
    assert arm.config["min_tokens"] == 575


def test_arms_from_a_file(tmp_path):
    path = tmp_path / "arms.yaml"
    path.write_text(
        "wide: {policy: arkv, window: 64}\n"
        "one: {policy: quantized, budget: 0.55, pooling: {kind: max}}\n"
    )
    arms = make_arms([], [0.5, 0.25], path)
    assert [arm.name for arm in arms] == ["none", "wide 0.5", "wide 0.25", "one 0.55"]
    assert arms[1].config["window"] == 64 and arms[3].config["pooling"]["kind"] == "max"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("wide: {window: 64}", "must map names of arms to a policy"),
        ("- arkv", "must map names of arms to a policy"),
        ("a: {policy: arkv}\na: {policy: arkv}", "must name each key once, got 'a' twice"),
        ("a: {policy: arkv, windows: 3}", "field 'windows' is unknown"),
        ("a: [", "must be YAML"),
    ],
)
def test_refused_files(tmp_path, content, sentence):
    path = tmp_path / "arms.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        make_arms([], [0.5], path)


def test_refused_policies(tmp_path):
    with pytest.raises(ConfigError, match=r"must be one of none, original, .* got 'arvk'"):
        make_arms(["arvk"], [0.5], None)
    with pytest.raises(ConfigError, match="budget"):
        make_arms(["arkv"], [1.5], None)
    with pytest.raises(ConfigError, match="--arms must name a file that can be read"):
        make_arms([], [0.5], tmp_path / "absent")
