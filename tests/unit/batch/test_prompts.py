import sys
from types import SimpleNamespace
from typing import Any

import pytest

from arkv_sglang.batch.config import PromptConfig, StrategyConfig
from arkv_sglang.batch.prompts import TokenizedPrompts, load_tokenizer
from arkv_sglang.batch.types import Document
from arkv_sglang.config import ConfigError

DOCUMENT = Document("d", "the text", "a title")


class Tokenizer:
    """One token per character; says in the first one whether it added special tokens."""

    chat_template: str | None = "yes"

    def __call__(self, text: str, add_special_tokens: bool, verbose: bool) -> dict[str, Any]:
        return {"input_ids": [int(add_special_tokens), *map(ord, text)]}

    def apply_chat_template(
        self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize and add_generation_prompt
        return "|".join(f"{message['role']}:{message['content']}" for message in messages)


def prompt_of(**settings: Any) -> tuple[bool, str]:
    ids = TokenizedPrompts(Tokenizer(), PromptConfig(**settings)).build(DOCUMENT).input_ids
    return bool(ids[0]), "".join(map(chr, ids[1:]))


def test_the_chat_template_wraps_system_and_document() -> None:
    template = "{{ title }} ({{ doc_id }}): {{ text }}"
    assert prompt_of(system="Be brief.", template=template) == (
        False,
        "system:Be brief.|user:a title (d): the text",
    )
    assert prompt_of(template="{{ text }}\n") == (False, "user:the text\n")


def test_without_a_chat_template_the_tokenizer_adds_its_special_tokens() -> None:
    assert prompt_of(template="{{ text }}", chat_template=False) == (True, "the text")
    assert prompt_of(system="S", template="{{ text }}", chat_template=False) == (
        True,
        "S\n\nthe text",
    )


def test_a_prompt_of_its_own_takes_the_place_of_the_template() -> None:
    prompts = TokenizedPrompts(Tokenizer(), PromptConfig(system="unused"))
    messages = [{"role": "user", "content": "Why?"}]
    chat = prompts.build(Document("d", "Why?", prompt=messages, sampling={"top_k": 3}))
    assert "".join(map(chr, chat.input_ids)) == "\0user:Why?" and chat.sampling == {"top_k": 3}
    text = prompts.build(Document("d", "Why?", prompt="Once"))
    assert "".join(map(chr, text.input_ids)) == "\1Once"


def test_a_model_without_a_chat_template_is_refused() -> None:
    tokenizer = Tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match=r"prompt\.chat_template must be false"):
        TokenizedPrompts(tokenizer, PromptConfig())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("m has no tokenizer\nand more of the kind"), "m has no tokenizer"),
        (Exception("data did not match any variant"), "data did not match any variant"),
        (RecursionError(), "RecursionError"),
    ],
)
def test_a_model_without_a_tokenizer_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    class AutoTokenizer:
        @staticmethod
        def from_pretrained(path: str, **settings: Any) -> None:
            raise error

    # Transformers itself takes long to import.
    stand_in = SimpleNamespace(AutoTokenizer=AutoTokenizer)
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    sentence = rf"engine\.model_path must hold a tokenizer, got 'm' \({reason}\)"
    with pytest.raises(ConfigError, match=sentence):
        load_tokenizer({"model_path": "m"})


def test_parts_of_documents_have_templates_of_their_own() -> None:
    strategy = StrategyConfig(
        map_template="part of {{ title }}: {{ text }}",
        combine_template="all of {{ doc_id }}: {{ text }}",
        refine_template="{{ summary }} and {{ text }}",
    )
    document = Document("d", "unused", "a title", sampling={"top_k": 3})
    prompts = TokenizedPrompts(Tokenizer(), PromptConfig(system="S"), strategy)
    parts: list[Any] = ["map", "combine", "refine"]
    made = [prompts.build_part(document, part, "piece", "draft") for part in parts]
    assert ["".join(map(chr, request.input_ids[1:])) for request in made] == [
        "system:S|user:part of a title: piece",
        "system:S|user:all of d: piece",
        "system:S|user:draft and piece",
    ]
    assert made[0].sampling == {"top_k": 3}
