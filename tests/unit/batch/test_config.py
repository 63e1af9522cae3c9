import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.load import load_config
from arkv_sglang.config import ConfigError

ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
GOOD: dict[str, Any] = {
    "input": {"path": "docs.jsonl"},
    "engine": {
        "model_path": "some/model",
        "kv_policy": "arkv",
        "kv_policy_config": {"budget": 0.5},
    },
    "output": {"dir": "/out"},
}
NO_POLICY = ["engine.kv_policy=none", "engine.kv_policy_config=null"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    return path


def test_engine_arguments_pass_as_they_are_and_overrides_win(path: Path) -> None:
    config = load_config(path, ["engine.kv_policy_config.budget=0.25", "output.dir=s3://b/out/"])
    assert config.engine == GOOD["engine"] | {"kv_policy_config": {"budget": 0.25}}
    assert config.output.dir == "s3://b/out"
    assert config.sampling.max_new_tokens == 256


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("output.dir=out", "output.dir must be an absolute path or a URI, got 'out'; .*whole path"),
        ("run.max_failure_rate=2", "run.max_failure_rate must be less than or equal to 1, got 2; "),
        ("input.format=pdf", "input.format must be 'auto', 'parquet', .* 'text' or 'openai', got "),
        ("sampling.max_tokens=5", "sampling.max_tokens must be a known key, .* max_new_tokens,"),
        ("input.path=[]", r"input.path must have at least 1 item, got \[\]; "),
        ("output.dir=", "output.dir must be given, got nothing; correct it .* output.dir=VALUE"),
        ("sampling.top_p=null", "sampling.top_p must be given, got nothing; "),
        (
            "audit=true",
            "audit must be a section with the keys fraction, seed, .*, got True; .*audit.fraction=",
        ),
        ("strategy=3", "strategy must be a section with the keys kind, .*, got 3; "),
        ("input=3", "input must be a section with the keys path, .*, got 3; "),
        ("prompt=[a]", r"prompt must be a section with the keys system, .*, got \['a'\]; "),
        ("output=", "output must be a section with the keys dir, .*, got nothing; "),
        ("engine=3", "engine must be a mapping of keys to values, got 3; "),
        ("engines.env=3", "engines.env must be a mapping of keys to values, got 3; "),
        ("speed=5", "speed must be a known key, got an unknown one; the known ones are input,"),
        ("prompt.template={{ body }}", "prompt.template must use the variable text and no other"),
        ("prompt.template=Sum up!", "prompt.template must use the variable text and no other"),
        ("prompt.template='{{ text '", "prompt.template must be a Jinja2 template "),
        (
            "engine.model_path=/no/such",
            "engine.model_path must be a folder that exists, got '/no/such'; ",
        ),
        ("engine.model_path=", "engine.model_path must be a folder or a hub name, got nothing; "),
        ("engine.kv_policy=fast", "engine.kv_policy must be one of none, .* got 'fast'"),
        ("engine.kv_policy_config={budgte: 1}", "engine.kv_policy_config field 'budgte' is unk"),
        (
            "engine.kv_policy=none",
            r"engine.kv_policy_config must be empty with engine.kv_policy none, got \['budget'\]; "
            "choose a policy or pass --set engine.kv_policy_config=null$",
        ),
        (
            "engine.kv_policy_config={pooling: max}",
            "engine.kv_policy_config field pooling is 'max': must be a mapping with the keys",
        ),
        ("engine.kv_policy_config='{'", "engine.kv_policy_config must be a JSON object or @file"),
        ("engine.kv_policy_config='@/no'", "engine.kv_policy_config file '/no' must be readable"),
        ("engine.kv_policy_config={policy: none}", "engine.kv_policy_config names policy 'none' "),
        ("engine.kv_policy_config={budget: 2.5}", "engine.kv_policy_config: budget must be a "),
        ("engine.allow_auto_truncate=true", "engine.allow_auto_truncate must not be .*got True"),
        ("input={}", "input.path must be given, got nothing; add it .* --set input.path=VALUE"),
        ("engines.count", "--set must be dotted.key=value, got 'engines.count'; "),
        ("input.path.deep=1", "--set must reach a key in a section, got 'input.path.deep' where "),
        ("run.progress_period_s=.inf", "run.progress_period_s must be a finite number, got inf; "),
        ("run.max_failure_rate=.nan", "run.max_failure_rate must be a finite number, got nan; "),
        ("sampling.temperature=.inf", "sampling.temperature must be a finite number, got inf; "),
        ("engines.num_gpus=.inf", "engines.num_gpus must be a finite number, got inf; "),
        ("sampling.max_new_tokens=true", "max_new_tokens must be a valid integer, got True; "),
        ("sampling.max_new_tokens='5'", "max_new_tokens must be a valid integer, got '5'; "),
        ("engines.count=0", "engines.count must be greater than 0, got 0; "),
        ("engines.cuont=2", "engines.cuont must be a known key, got an unknown one; "),
        ("engines.count=true", "engines.count must be a valid integer, got True; "),
        ("run.sample_period_s='1'", "run.sample_period_s must be a valid number, got '1'; "),
        ("sampling.stop_token_ids=[true]", "stop_token_ids.0 must be a valid integer, got True; "),
        ("sampling.top_k=0", "sampling.top_k must be at least 1, or -1 for all tokens, got 0; "),
        ("sampling.top_k=-5", "sampling.top_k must be at least 1, or -1 for all tokens, got -5; "),
        ("input.id_column=''", "input.id_column must have at least 1 character, got ''; "),
        ("engine.day=2024-01-01", r"engine.day must be a value that JSON has too, got datetime"),
        ("engine.a={b: [1, {c: .nan}]}", r"engine.a.b.1.c must be a finite number, got nan; "),
        ("engine.a={list: {1: 2}}", r"engine.a.list.1 must be a valid string, got 1; "),
        ("engine.a=&a [*a]", r"engine.a.0 must not contain itself, got a loop; "),
        ("engine.kv_policy_config=5", "engine.kv_policy_config must be a .*mapping, got int"),
        ("engine.kv_policy_config={sinks: 4, sinks: 5}", "--set .*_config must name each key once"),
        (
            """engine.kv_policy_config='{"sinks": 4, "sinks": 5}'""",
            "engine.kv_policy_config must name each key once, got 'sinks' twice; remove one of the",
        ),
        (
            "strategy=split",
            "strategy.kind must be 'single', 'map_reduce' or 'refine', got 'split'; ",
        ),
        ("strategy.chunk_tokens=0", "strategy.chunk_tokens must be greater than 0, got 0; "),
        (
            "strategy={kind: refine, chunk_tokens: 9, overlap_tokens: 9}",
            "overlap_tokens must be less than chunk_tokens, which is 9, got 9; lower it",
        ),
        (
            "strategy.map_template={{ summary }}",
            "strategy.map_template must use the variable text and",
        ),
        (
            "strategy.refine_template={{ text }}",
            "must use the variables summary and text and no other than summary, text, title and ",
        ),
        (
            "strategy.refine_template={{ text }}",
            r"got '{{ text }}'; write {{ summary }} where the summary so far belongs$",
        ),
        (
            "strategy.refine_template={{ summary }}",
            r"got '{{ summary }}'; write {{ text }} where the document belongs$",
        ),
        (
            "prompt.template={{ text }} {{ boby }}",
            r"no other than text, title and doc_id, got '.*'; take out boby$",
        ),
        (
            "strategy.refine_template={{ a }}{{ b }}{{ text }}",
            r"; write {{ summary }} where the summary so far belongs and take out a, b$",
        ),
        (
            "strategy.chunk_tokens=9",
            "^strategy.chunk_tokens must be left out with strategy.kind single, which cuts nothing,"
            " got 9; remove it, or pass --set strategy=map_reduce or --set strategy=refine$",
        ),
        (
            "strategy.overlap_tokens=9",
            "^strategy.overlap_tokens must be left out with strategy.kind single, .* got 9; remove",
        ),
        ("prompt.template={{ text | no }}", r"a Jinja2 template \(No filter named 'no'.\), got"),
        (
            "audit={fraction: 0.1, seed: x}",
            "audit.seed must be a valid integer, got 'x'; ",
        ),
        ("audit.fraction=2", "audit.fraction must be less than or equal to 1, got 2; "),
    ],
)
def test_each_mistake_is_one_sentence(path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path, [override])
    assert "\n" not in str(caught.value)
    assert "--kv" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "--config must be YAML, got "),
        ("- 1", "--config must hold sections, got list"),
        ("", "--config must hold sections, got NoneType"),
        (
            "run:\n  lookahead_docs: 1\n  lookahead_docs: 2",
            "name each key once, got 'lookahead_docs' twice in lines 2 and 3 of '.*job.yaml'; ",
        ),
        ("run: {}\ninput: {}\nrun: {}", "each key once, got 'run' twice in lines 1 and 3 of "),
        ("a: [{b: [{c: 1, c: 1}]}]", "each key once, got 'c' twice in lines 1 and 1 of "),
        ("a: 2024-13-45", r"--config must be YAML, got .* \(month must be in 1..12\)"),
    ],
)
def test_a_file_that_is_no_configuration(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config must name a readable file"):
        load_config(tmp_path / "no.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_are_valid_and_explain_every_key(path: Path) -> None:
    load_config(path)
    for line in path.read_text().splitlines():
        is_key = line.strip() and not line.startswith(("#", "    "))
        if is_key and line.startswith("  ") and line.strip()[0].isalpha():
            assert "#" in line, f"{line.strip()!r} has no comment"


def test_the_reference_configuration_has_every_key_and_its_default() -> None:
    shipped = yaml.safe_load((ROOT / "configs/longdoc.yaml").read_text())
    defaults = JobConfig.model_validate(GOOD).model_dump()
    assert shipped.keys() == defaults.keys()
    for section, keys in defaults.items():
        if section != "engine":
            given = {"input": ["path"], "output": ["dir"]}.get(section, [])
            own = {key: shipped[section][key] for key in given}
            assert shipped[section] == keys | own, section


def test_a_strategy_is_named_in_a_word_and_keeps_its_settings(path: Path) -> None:
    assert load_config(path, ["strategy=refine"]).strategy.kind == "refine"
    both = ["strategy=refine", "strategy.chunk_tokens=90", "strategy=map_reduce"]
    strategy = load_config(path, both).strategy
    assert (strategy.kind, strategy.chunk_tokens) == ("map_reduce", 90)
    path.write_text(yaml.safe_dump(GOOD | {"strategy": "map_reduce"}))
    strategy = load_config(path, ["strategy.overlap_tokens=5"]).strategy
    assert (strategy.kind, strategy.overlap_tokens) == ("map_reduce", 5)


def test_a_value_that_is_no_yaml_is_text(path: Path) -> None:
    assert load_config(path, ["prompt.system=2024-13-45"]).prompt.system == "2024-13-45"


@pytest.mark.parametrize(
    "override",
    [
        "engines.env={HF_TOKEN: 12345}",
        "engine.model_path={api_key: 12345}",
        "input.format=s3://me:12345@bucket",
        "engines.env.HF_TOKEN.deep=12345",
    ],
)
def test_sentences_show_no_secret(path: Path, override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["engines.env={HF_TOKEN: abcde}", override])
    assert "12345" not in str(caught.value) and "abcde" not in str(caught.value)


def test_snapshots_blank_secrets_and_nothing_else() -> None:
    env = {"HF_TOKEN": "s", "AWS_SECRET_ACCESS_KEY": "s", "TOKENS": "3"}
    secret = GOOD | {"output": {"dir": "s3://me:s@bucket/out"}, "engines": {"env": env}}
    config = JobConfig.model_validate(secret)
    blanked = {"HF_TOKEN": "***", "AWS_SECRET_ACCESS_KEY": "***", "TOKENS": "3"}
    plain = JobConfig.model_validate(GOOD)
    assert config.snapshot() == plain.model_dump() | {
        "engines": plain.engines.model_dump() | {"env": blanked},
        "output": plain.output.model_dump() | {"dir": "s3://***@bucket/out"},
    }
    assert config.output.dir == "s3://me:s@bucket/out"
    json.dumps(config.snapshot(), allow_nan=False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (NO_POLICY, "audit.fraction must be 0 with engine.kv_policy none, .* got 0.05; choose"),
        (["sampling.temperature=0.3"], "audit.fraction must be 0 with random .*, got 0.05; "),
    ],
)
def test_an_audit_that_would_say_nothing_is_refused(
    path: Path, overrides: list[str], message: str
) -> None:
    audited = ["engine.kv_policy=arkv", "audit.fraction=0.05"]
    assert load_config(path, audited).audit.fraction == 0.05
    assert load_config(path, [*overrides, "audit.fraction=0"]).audit.fraction == 0
    with pytest.raises(ConfigError, match=message):
        load_config(path, [*audited, *overrides])


def test_one_most_likely_token_is_no_random_sampling(path: Path) -> None:
    overrides = ["engine.kv_policy=arkv", "sampling.temperature=0.3", "sampling.top_k=1"]
    assert load_config(path, [*overrides, "audit.fraction=1"]).audit.fraction == 1
