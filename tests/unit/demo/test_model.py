"""The converted model is right, and its folder is whole whatever happened before."""

import json
import threading
from pathlib import Path

import pytest
import torch

from arkv_sglang.demo import model as demo_model
from arkv_sglang.demo.model import ensure_model

NEEDLE = "The access code of the archive is 7315924."


@pytest.fixture
def fake_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the conversion by one small file; the list tells how often it ran."""
    calls: list[Path] = []

    def convert(source: Path, folder: Path) -> None:
        calls.append(folder)
        (folder / "config.json").write_text("{}")

    monkeypatch.setenv("ARKV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(demo_model, "convert_gguf", convert)
    return calls


def test_second_call_converts_nothing(fake_conversion: list[Path], tmp_path: Path) -> None:
    folder = ensure_model()
    assert ensure_model() == folder
    assert folder.parent == tmp_path / "cache"
    assert len(fake_conversion) == 1


def test_half_finished_earlier_run_is_redone(fake_conversion: list[Path], tmp_path: Path) -> None:
    leftover = tmp_path / "cache" / "SmolLM2-135M-Instruct-v1.partial-abc"
    leftover.mkdir(parents=True)
    folder = ensure_model()
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]
    assert (folder / "config.json").is_file()


def test_failed_conversion_leaves_no_model(
    fake_conversion: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(demo_model, "convert_gguf", lambda source, folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ensure_model()
    assert not fake_conversion
    assert (ensure_model() / "config.json").is_file()


def test_concurrent_callers_convert_once(fake_conversion: list[Path]) -> None:
    threads = [threading.Thread(target=ensure_model) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake_conversion) == 1


def test_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "GGUF_PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match=r"install arkv_sglang\[demo\]"):
        demo_model.gguf_path()


def test_rotary_halves_are_put_apart() -> None:
    num_heads, head_dim, columns = 3, 8, 5
    original = torch.randn(num_heads * head_dim, columns)
    halves = original.view(num_heads, 2, head_dim // 2, columns)
    as_in_llama_cpp = halves.transpose(1, 2).reshape(original.shape)
    assert torch.equal(demo_model._rotary_halves_apart(as_in_llama_cpp, num_heads), original)


def test_chat_format_ends_where_the_model_stops() -> None:
    folder = ensure_model()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    # The template writes every special token itself: the tokenizer must not add one.
    assert tokenizer.decode(tokenizer("Hello")["input_ids"]) == "Hello"


def test_model_recalls_a_needle_and_stops() -> None:
    folder = ensure_model()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    # In float32, which every CPU multiplies fast.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    haystack = f"{'The sky was blue. ' * 8}{NEEDLE} {'The grass was green. ' * 8}"
    question = f"{haystack}\n\nWhat is the access code of the archive?"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    output = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0]
    assert "7315924" in tokenizer.decode(output[prompt["input_ids"].shape[1] :])
    assert output[-1] == tokenizer.eos_token_id
