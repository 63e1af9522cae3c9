"""Every wrong setting is one sentence that names field, value and rule."""

import json

import pytest
import yaml

from arkv_sglang.config import ArkvConfig, ConfigError, load_config

POLICIES = ["original", "quantized", "arkv-paper", "arkv"]


@pytest.mark.parametrize("policy", POLICIES)
def test_defaults(policy):
    config = load_config(policy)
    assert config.policy == policy
    assert (config.min_tokens, config.window, config.when) == (512, 32, "prefill")
    assert config.sinks == (0 if policy == "arkv-paper" else 4)
    kind, width = (config.pooling.kind, config.pooling.width)
    assert (kind, width) == (("max", 31) if policy == "arkv" else ("avg", 5))


def test_none_has_no_config():
    assert load_config("none") is None
    assert load_config("none", {}) is None


def test_the_three_doors_agree(tmp_path):
    wanted = {"budget": 0.25, "pooling": {"kind": "avg", "width": 7}, "tau": [1.0, 2.0, 3.0]}
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(wanted))
    from_dict = load_config("arkv", wanted)
    assert from_dict == load_config("arkv", json.dumps(wanted)) == load_config("arkv", f"@{path}")
    assert from_dict.budget == 0.25 and from_dict.pooling.width == 7


@pytest.mark.parametrize("policy", POLICIES)
def test_description_builds_the_same_config(policy):
    config = load_config(policy, {"budget": 900})
    again = load_config(policy, json.dumps(config.describe()))
    assert again == config and isinstance(again.budget, int)


def test_integers_and_ratios_are_told_apart():
    config = load_config("arkv", '{"budget": 2048}')
    assert config.budget_bytes(10_000, 10) == 20_480
    assert load_config("arkv", '{"budget": 1.0}').budget_bytes(10_000, 10) == 100_000
    # The whole budget holds whatever must be held.
    assert load_config("arkv", {"budget": 1.0, "min_tokens": 0}).budget == 1.0


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"budget": 1}, ["budget", "at least 37", "got 1", "1.0"]),
        ({"budget": 0}, ["budget", "at least 37", "got 0"]),
        ({"budget": -5}, ["budget", "got -5"]),
        ({"budget": 1.5}, ["budget", "(0, 1]", "1.5"]),
        ({"budget": 0.0}, ["budget", "(0, 1]", "0.0"]),
        ({"budget": float("nan")}, ["budget", "nan"]),
        ({"budget": True}, ["budget", "True", "number"]),
        ({"budget": "0.5"}, ["budget", "'0.5'", "number"]),
        ({"budget": None}, ["budget", "None", "number"]),
        ({"min_tokens": -1}, ["min_tokens", "-1", "0"]),
        ({"min_tokens": 1.5}, ["min_tokens", "1.5", "integer"]),
        ({"sinks": -1}, ["sinks", "-1"]),
        ({"window": 0}, ["window", "0", "1"]),
        ({"window": 5000}, ["window", "5000", "1024"]),
        ({"when": "later"}, ["when", "later", "prefill", "pressure", "always"]),
        ({"budget": 0.05}, ["budget", "36 tokens", "513 tokens", "0.05", "0.0702", "719"]),
        ({"budget": 0.5, "min_tokens": 10}, ["11 tokens", "use min_tokens of at least 71"]),
        ({"budget": 0.25, "min_tokens": 100}, ["shortest prompt", "101 tokens", "0.25", "143"]),
        ({"pooling": {"kind": "median"}}, ["pooling.kind", "median", "avg"]),
        ({"pooling": {"kind": "avg", "width": 4}}, ["pooling.width", "odd", "4"]),
        ({"pooling": {"kind": "avg", "weight": 3}}, ["pooling.weight"]),
        ({"pooling": 5}, ["pooling", "5"]),
        ({"slack": -0.1}, ["slack", "-0.1"]),
        ({"slack": "much"}, ["slack", "much"]),
        ({"scorer": "oracle"}, ["scorer", "oracle", "heavy-hitter"]),
        ({"gamma": float("inf")}, ["gamma", "inf"]),
        ({"gamma": 1e10}, ["gamma", "1000000"]),
        ({"sinks": 10**9}, ["sinks", "1024"]),
        ({"budget": 10**400}, ["budget", "at most"]),
        ({"tau": [1, 2]}, ["tau", "three numbers"]),
        ({"tau": [1, 2, 3, 4]}, ["tau", "three numbers"]),
        ({"tau": 5}, ["tau", "three numbers", "5"]),
        ({"tau": {1.0, 2.0, 3.0}}, ["tau", "three numbers"]),
        ({"tau": [1, 2, 0]}, ["tau", "0"]),
        ({"budgets": 0.5}, ["budgets", "unknown", "0.5", "budget"]),
        ('{"budget": 0.5', ["JSON", "budget"]),
        ("[1, 2]", ["mapping", "list"]),
        ('{"budget": 0.5, "sinks": 4, "budget": 0.25}', ["each key once", "'budget' twice"]),
        ('{"pooling": {"width": 5, "width": 5}}', ["each key once", "'width' twice"]),
        ("@absent.yaml", ["absent.yaml", "readable"]),
        ("@a\0b", ["YAML"]),
        ("[" * 100_000, ["JSON"]),
        (5, ["mapping", "int"]),
        (True, ["mapping", "bool"]),
        ([1], ["mapping", "list"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_one_sentence(raw, words):
    with pytest.raises(ConfigError) as caught:
        load_config("arkv", raw)
    message = str(caught.value)
    assert message.startswith("--kv-policy-config")
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("policy", "pooling", "wanted"),
    [
        ("arkv", {}, ("max", 31)),
        ("arkv", {"kind": "avg"}, ("avg", 5)),
        ("arkv", {"kind": "none"}, ("none", 1)),
        ("arkv", {"width": 5}, ("max", 5)),
        ("original", {}, ("avg", 5)),
        ("original", {"kind": "max"}, ("max", 31)),
        ("arkv-paper", {"width": 7}, ("avg", 7)),
    ],
)
def test_pooling_left_out_in_part(policy, pooling, wanted):
    found = load_config(policy, {"pooling": pooling}).pooling
    assert (found.kind, found.width) == wanted


def test_broken_yaml(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("budget: [")
    with pytest.raises(ConfigError, match="must be YAML"):
        load_config("arkv", f"@{path}")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("budget: 0.5\nsinks: 4\nbudget: 0.5\n", "'budget' twice in lines 1 and 3; remove"),
        ("pooling:\n  width: 5\n  'width': 7\n", "'width' twice in lines 2 and 3; remove"),
        ("{sinks: 4, sinks: 5}", "'sinks' twice in lines 1 and 1; remove"),
    ],
)
def test_a_key_given_twice_is_refused(tmp_path, text, where):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"policy.yaml' must name each key once, got {where}"):
        load_config("arkv", f"@{path}")


def test_a_merged_key_may_be_given_again(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("pooling:\n  <<: &a {<<: {kind: avg, width: 3}, width: 5}\n  width: 9\n")
    pooling = load_config("arkv", f"@{path}").pooling
    assert (pooling.kind, pooling.width) == ("avg", 9)


def test_unknown_policy():
    with pytest.raises(ConfigError, match=r"--kv-policy must be one of none, .*'akrv'"):
        load_config("akrv")


def test_settings_without_a_policy():
    with pytest.raises(ConfigError, match="must be empty with --kv-policy none"):
        load_config("none", {"budget": 0.5})
    with pytest.raises(ConfigError, match="must be empty with --kv-policy none"):
        load_config("none", {True: 1, "budget": 0.5})


def test_two_policies_disagree():
    with pytest.raises(ConfigError, match=r"'original'.*'arkv'"):
        load_config("arkv", {"policy": "original"})


def test_frozen():
    with pytest.raises(AttributeError):
        ArkvConfig().budget = 0.1
