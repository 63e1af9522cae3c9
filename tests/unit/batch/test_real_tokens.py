"""Cutting with the tokenizer of the demo's model: tokens of pieces do not add up to a text's."""

from typing import Any

import pytest

from arkv_sglang.batch.config import PromptConfig, StrategyConfig
from arkv_sglang.batch.prompts import TokenizedPrompts, load_tokenizer
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.task import Task, task_of
from arkv_sglang.batch.types import Document, Result
from arkv_sglang.demo.model import ensure_model

TEXTS = {
    "prose": "It was late. The train didn't come, and 1,234 people waited!\n\n" * 60,
    "one line": "never-ending " * 800,
    "no spaces": "supercalifragilistic" * 200,
    "CJK": "人工智能改变了世界。很多人还不知道。" * 60,
    "emoji": "👩‍👩‍👧‍👦🇪🇺é" * 60,
    "code": "".join(f"def f{n}(x):\n    return x + {n}\n\n\n" for n in range(150)),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer({"model_path": str(ensure_model())})


@pytest.mark.parametrize("kind", ["map_reduce", "refine"])
@pytest.mark.parametrize("name", TEXTS)
def test_no_prompt_is_longer_than_allowed_and_no_text_is_left_out(
    tokenizer: Any, kind: str, name: str
) -> None:
    config, text = StrategyConfig(kind=kind, overlap_tokens=10), TEXTS[name]
    prompts = TokenizedPrompts(tokenizer, PromptConfig(), config)
    whole = task_of(Document("d", text), prompts)
    assert isinstance(whole, Task)
    task = Strategy(config, prompts).split(whole, 300, 40)
    seen, sizes = 0, []
    while steps := task.advance():
        for step in steps:
            sizes.append(step.request.prompt_tokens)
            if step.level == 0:
                piece = text[step.begin : step.end]
                assert piece in tokenizer.decode(step.request.input_ids)
                assert step.begin <= seen or not text[seen : step.begin].strip()
                seen = step.end
            task.take(step, Result(" so it went" * 10, 1, 1, 0, "stop", 0.0, 0.0), "e")
    assert not text[seen:].strip()
    assert 200 < max(sizes) <= 300
