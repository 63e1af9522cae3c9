"""A wrong flag, config, feature or version is refused while SGLang resolves its arguments."""

import json
import re
import subprocess
import sys

import pytest
import sglang.srt.plugins
import yaml

from arkv_sglang.config import ConfigError
from arkv_sglang.demo.model import ensure_model
from arkv_sglang.engine import plugin
from arkv_sglang.support import ENVIRONMENT, REFUSALS

# A value that each refused field would have when somebody asked for it.
ASKED_FOR = {
    "disable_radix_cache": True,
    "page_size": 16,
    "tp_size": 2,
    "pp_size": 2,
    "dcp_size": 2,
    "attn_cp_size": 2,
    "kv_cache_dtype": "fp8_e4m3",
    "attention_backend": "triton",
    "prefill_attention_backend": "triton",
    "decode_attention_backend": "triton",
    "radix_cache_backend": "flexkv",
    "radix_eviction_policy": "lfu",
    "radix_eviction_policy_config": {"threshold": 1},
    "speculative_algorithm": "NGRAM",
    "disaggregation_mode": "prefill",
    "kv_canary": "log",
    "rl_on_policy_target": "fsdp",
    "dllm_algorithm": "LowConfidence",
    "cuda_graph_config": {"decode": {"backend": "full"}},
    "num_continuous_decode_steps": 2,
}


@pytest.fixture(scope="module", autouse=True)
def plugins():
    sglang.srt.plugins.load_plugins()


@pytest.fixture(scope="module")
def resolve(plugins):
    from arkv_sglang.engine.server_args import ArkvServerArgs

    def run(**settings):
        fields = {
            "model_path": str(ensure_model()),
            "device": "cpu",
            "max_total_tokens": 4000,
            "chunked_prefill_size": 2048,
        }
        args = ArkvServerArgs(**fields | settings)
        args.resolve_once()
        return args

    return run


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.field)
def test_each_feature(resolve, refusal):
    value = ASKED_FOR.get(refusal.field, True)
    with pytest.raises(ConfigError) as caught:
        resolve(kv_policy="arkv", **{refusal.field: value})
    message = str(caught.value)
    assert f"--{refusal.field.replace('_', '-')}" in message
    assert refusal.reason in message and "\n" not in message


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_each_environment_variable(resolve, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=name):
        resolve(kv_policy="arkv")


def test_priority_preemption(resolve):
    with pytest.raises(ConfigError, match="--disable-priority-preemption"):
        resolve(kv_policy="arkv", enable_priority_scheduling=True)
    resolve(kv_policy="arkv", enable_priority_scheduling=True, disable_priority_preemption=True)


def test_wrong_settings(resolve):
    with pytest.raises(ConfigError, match=r"budget.*\(0, 1\].*got 7\.5"):
        resolve(kv_policy="arkv", kv_policy_config={"budget": 7.5})
    with pytest.raises(ConfigError, match="must be one of none, original"):
        resolve(kv_policy="akrv")
    with pytest.raises(ConfigError, match="must be empty with --kv-policy none"):
        resolve(kv_policy_config={"budget": 0.5})


def test_memory_that_cannot_hold_a_chunk(resolve):
    """The numbers in the sentence are those that would do."""
    with pytest.raises(ConfigError, match=r"one prefill chunk \(2048 tokens\)") as caught:
        resolve(kv_policy="arkv", max_total_tokens=1500)
    enough = int(re.search(r"at least (\d+) tokens", str(caught.value))[1])
    chunk = int(re.search(r"at most (\d+)", str(caught.value))[1])
    resolve(kv_policy="arkv", max_total_tokens=enough)
    resolve(kv_policy="arkv", max_total_tokens=1500, chunked_prefill_size=chunk)
    for settings in ({"max_total_tokens": enough - 1}, {"chunked_prefill_size": chunk + 1}):
        with pytest.raises(ConfigError, match="must hold one prefill chunk"):
            resolve(kv_policy="arkv", **{"max_total_tokens": 1500} | settings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "supports LlamaForCausalLM"),
        ({"torch_dtype": "float16", "dtype": "float16"}, "--dtype bfloat16"),
    ],
    ids=["architecture", "dtype"],
)
def test_models(resolve, tmp_path, changes, words):
    for file in ensure_model().iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_text(file.read_text())
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=words):
        resolve(kv_policy="arkv", model_path=str(tmp_path))


def test_none_resolves_as_stock(resolve):
    from sglang.srt.arg_groups.overrides import resolving_view

    view = resolving_view(resolve())
    assert (view.radix_cache_backend, view.attention_backend) == (None, "torch_native")
    assert view.disable_overlap_schedule is False


def test_what_a_policy_chooses(resolve):
    from sglang.srt.arg_groups.overrides import resolving_view

    view = resolving_view(resolve(kv_policy="arkv", kv_policy_config='{"budget": 0.25}'))
    assert (view.attention_backend, view.radix_cache_backend) == ("arkv", "arkv")
    assert (view.page_size, view.disable_overlap_schedule) == (1, False)
    assert view.kv_policy_config["budget"] == 0.25
    assert view.kv_policy_config["window"] == 32


def test_another_version(monkeypatch):
    """The plugin installs nothing; the flag stops the command line and the engine."""
    from sglang.srt.entrypoints.engine import Engine

    monkeypatch.setattr(plugin, "version", lambda _: "0.6.0")
    monkeypatch.setattr(Engine, "server_args_class", Engine.server_args_class)
    monkeypatch.setattr(sys, "argv", ["sglang", "serve", "--kv-policy", "arkv"])
    with pytest.raises(SystemExit, match=r"sglang==0\.5\.23, got 0\.6\.0"):
        plugin.register()
    monkeypatch.setattr(sys, "argv", ["python"])
    plugin.register()
    with pytest.raises(ConfigError, match=r"got 0\.6\.0"):
        sglang.Engine(model_path="none", kv_policy="arkv")


def test_a_hook_that_did_not_take(monkeypatch):
    from sglang.srt.plugins.hook_registry import HookRegistry

    target = "sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len"
    monkeypatch.setattr(HookRegistry, "_patched", HookRegistry._patched - {target})
    with pytest.raises(ConfigError, match="_compute_max_prefix_len"):
        plugin.verify_hooks()


def test_command_line_and_yaml(tmp_path):
    """`sglang serve` exits with one sentence, from flags and from a YAML file alike."""
    path = tmp_path / "serve.yaml"
    settings = {
        "model-path": str(ensure_model()),
        "device": "cpu",
        "kv-policy": "arkv",
        "kv-policy-config": {"budget": 0.25, "windows": 3},
    }
    path.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "sglang.launch_server", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "field 'windows' is unknown (value 3)" in done.stderr
