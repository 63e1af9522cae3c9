"""Prompts as token ids: the user's template, then the model's chat template."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template

from arkv_sglang.batch.config import PromptConfig, StrategyConfig
from arkv_sglang.batch.pretrained import load_pretrained
from arkv_sglang.batch.templates import compiled
from arkv_sglang.batch.types import Document, Part, Request
from arkv_sglang.config import ConfigError


class TokenizedPrompts:
    """Builds requests with a Hugging Face tokenizer (or anything that behaves like one)."""

    def __init__(
        self, tokenizer: Any, config: PromptConfig, strategy: StrategyConfig | None = None
    ) -> None:
        if config.chat_template and not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "prompt.chat_template must be false for a model that has none, got true; "
                "pass --set prompt.chat_template=false or use an instruction-tuned model"
            )
        self._tokenizer = tokenizer
        strategy = strategy or StrategyConfig()
        self._template = compiled(config.template)
        self._parts: dict[Part, Template] = {
            "map": compiled(strategy.map_template),
            "combine": compiled(strategy.combine_template),
            "refine": compiled(strategy.refine_template),
        }
        self._system = config.system
        self._chat = config.chat_template

    def build(self, document: Document) -> Request:
        """Render and tokenize; nothing is ever cut off."""
        prompt = document.prompt
        if prompt is None:
            prompt = self._rendered(self._template, document, document.text)
        return self._request(document, prompt)

    def build_part(self, document: Document, part: Part, text: str, summary: str = "") -> Request:
        extra = {"summary": summary} if part == "refine" else {}
        prompt = self._rendered(self._parts[part], document, text, **extra)
        return self._request(document, prompt)

    def token_starts(self, text: str) -> Sequence[int]:
        tokens = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        return array("Q", (begin for begin, _ in tokens["offset_mapping"]))

    def _request(self, document: Document, prompt: str | Sequence[Mapping[str, str]]) -> Request:
        is_chat = not isinstance(prompt, str)
        if is_chat:
            prompt = self._tokenizer.apply_chat_template(
                prompt, tokenize=False, add_generation_prompt=True
            )
        # A chat template writes the special tokens itself.
        ids = self._tokenizer(prompt, add_special_tokens=not is_chat, verbose=False)
        return Request(document.doc_id, array("I", ids["input_ids"]), document.sampling)

    def _rendered(
        self, template: Template, document: Document, text: str, **extra: str
    ) -> str | list[dict[str, str]]:
        prompt = template.render(text=text, title=document.title, doc_id=document.doc_id, **extra)
        if not self._chat:
            return f"{self._system}\n\n{prompt}" if self._system else prompt
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, {"role": "user", "content": prompt}]


def load_tokenizer(engine: dict[str, Any]) -> Any:
    """The tokenizer that the engine itself will use. Raises ConfigError."""
    from transformers import AutoTokenizer

    path = engine.get("tokenizer_path") or engine["model_path"]
    remedy = "correct it or set engine.tokenizer_path"
    return load_pretrained(AutoTokenizer, path, engine, "a tokenizer", remedy)
