"""Real engines on the CPU, started once per setting and shared."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from engines import SHALLOW, OneEngine
from transformers import AutoTokenizer

from arkv_sglang.demo.corpus import build_corpus
from arkv_sglang.demo.model import ensure_model

# Files that share an engine stand together: each start costs half a minute.
ORDER = (
    "test_bench",  # starts none, nor do the next six
    "test_chunks",
    "test_reclaim",
    "test_replay",
    "test_refusals",
    "test_sampling_names",
    "test_admission",
    "test_lossless",  # ends with stock
    "test_cpu_platform",  # stock
    "test_quality",  # begins with stock
    "test_concurrency",  # ends with what the next three share
    "test_lifecycle",
    "test_tristate",
    "test_pressure",
    "test_shared_prefix",
    "test_larger_than_the_arena",
    "test_models",
    "test_server",
    "test_eval",  # starts its own
    "test_thrown_out",
    "test_load",
    "test_overlap",
)
ENGINE = OneEngine()
INSTRUCTION = "Summarize the following text in a few sentences.\n\n"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    in_order = iter(sorted(ours, key=lambda item: ORDER.index(item.path.stem)))
    items[:] = [next(in_order) if item in ours else item for item in items]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For small tensors, where more threads spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer():
    return AutoTokenizer.from_pretrained(ensure_model())


@pytest.fixture(scope="session")
def documents(tokenizer, tmp_path_factory) -> list[list[int]]:
    """Token ids of real documents, the longest first."""
    path = build_corpus(Path(tmp_path_factory.mktemp("corpus")) / "corpus.parquet")
    texts = pq.read_table(path).column("text").to_pylist()
    ids = [tokenizer(text)["input_ids"] for text in texts]
    return sorted(ids, key=len, reverse=True)


@pytest.fixture(scope="session")
def prompt(tokenizer, documents):
    """``prompt(i, n)``: a chat of exactly ``n`` tokens that asks for a summary of document i."""
    before, after = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in _chat_frame(tokenizer)
    )

    def make(index: int, num_tokens: int) -> list[int]:
        body = documents[index % len(documents)]
        body = (body * (num_tokens // len(body) + 1))[: num_tokens - len(before) - len(after)]
        return [*before, *body, *after]

    return make


def _chat_frame(tokenizer) -> list[str]:
    message = [{"role": "user", "content": f"{INSTRUCTION}@@@"}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return text.split("@@@")


@pytest.fixture(scope="session")
def generate():
    """``generate(engine, ids, n)``: one greedy request; its output dict."""

    def run(running: Any, ids: list[int], num_tokens: int, **kwargs: Any) -> dict[str, Any]:
        params = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
        params |= kwargs.pop("sampling_params", {})
        return running.generate(input_ids=ids, sampling_params=params, **kwargs)

    return run


@pytest.fixture(scope="session")
def one_engine() -> OneEngine:
    return ENGINE


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """The tests of other folders get the memory back."""
    yield
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        ENGINE.stop()


@pytest.fixture(scope="session")
def arkv_arena() -> dict[str, Any]:
    return SHALLOW | {"max_total_tokens": 6000, "chunked_prefill_size": 512}


@pytest.fixture
def arkv(one_engine, arkv_arena):
    """The policy as users run it: a quarter of the bytes, prompts in several chunks."""
    return one_engine.start("arkv", {"budget": 0.25}, **arkv_arena)
