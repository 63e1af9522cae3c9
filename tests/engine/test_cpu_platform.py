"""SGLang runs a real model on a plain CPU, and machines with an accelerator do not notice us."""

import os
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
import sglang
import torch
from transformers import AutoTokenizer

from arkv_sglang.demo.model import ensure_model
from arkv_sglang.engine import cpu_platform
from arkv_sglang.engine.cpu_platform import (
    PLATFORM_GROUP,
    PLATFORM_NAME,
    SPIN_COUNT,
    ArkvCpuPlatform,
    activate,
)
from arkv_sglang.engine.launch import flush

OURS = "arkv_sglang.engine.cpu_platform.ArkvCpuPlatform"
NEEDLE = "The access code of the archive is 7315924."
GREEDY = {"temperature": 0, "max_new_tokens": 32}


@pytest.fixture
def plain_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SGLANG_PLATFORM", "SGLANG_USE_CPU_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.usefixtures("plain_machine")
class TestActivate:
    def test_serves_a_plain_cpu_unasked(self) -> None:
        assert activate() == OURS

    def test_stands_aside_for_an_accelerator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        assert activate() is None

    def test_stands_aside_for_stock_cpu_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        assert activate() is None

    def test_stands_aside_for_another_platform(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = (PLATFORM_NAME, "other")
        found = [EntryPoint(name, "module:activate", PLATFORM_GROUP) for name in names]
        monkeypatch.setattr(cpu_platform, "entry_points", lambda group: found)
        assert activate() is None

    def test_obeys_its_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SGLANG_PLATFORM", PLATFORM_NAME)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        assert activate() == OURS


@pytest.mark.parametrize("asked", [None, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_threads_give_up_spinning_early_unless_told(
    monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if asked:
        monkeypatch.setenv(asked, "7")
    ArkvCpuPlatform().apply_server_args_defaults(SimpleNamespace(attention_backend="torch_native"))
    wanted = {None: SPIN_COUNT, "OMP_WAIT_POLICY": None, "GOMP_SPINCOUNT": "7"}[asked]
    assert os.environ.get("GOMP_SPINCOUNT") == wanted


@pytest.fixture
def engine(one_engine: Any) -> sglang.Engine:
    return one_engine.start("none")


def ask(engine: sglang.Engine, question: str) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(ensure_model())
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return engine.generate(prompt, GREEDY)


def test_engine_answers_and_stops(engine: sglang.Engine) -> None:
    result = ask(engine, "What is the capital of France?")
    assert "Paris" in result["text"]
    assert result["meta_info"]["finish_reason"]["type"] == "stop"


def test_engine_recalls_and_reuses_a_prefix(engine: sglang.Engine) -> None:
    haystack = f"{'The sky was blue. ' * 40}{NEEDLE} {'The grass was green. ' * 40}"
    question = f"{haystack}\n\nWhat is the access code of the archive?"
    flush(engine)
    first, second = (ask(engine, question) for _ in range(2))
    assert "7315924" in first["text"] and first["text"] == second["text"]
    assert first["meta_info"]["prompt_tokens"] > 400
    assert second["meta_info"]["cached_tokens"] == first["meta_info"]["prompt_tokens"] - 1


def test_engine_takes_torch_paths(engine: sglang.Engine) -> None:
    info = engine.get_server_info()
    assert info["attention_backend"] == "torch_native"
    assert info["sampling_backend"] == "pytorch"
