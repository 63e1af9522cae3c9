"""Requests in OpenAI's batch format: each line is a document with a prompt of its own."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError, field_validator

from arkv_sglang.batch.config import (
    Name,
    Positive,
    SamplingConfig,
    Section,
    as_list,
    broken_rule,
)
from arkv_sglang.batch.load import rule_of
from arkv_sglang.batch.types import Document

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Line(Section):
    custom_id: str | int
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions"]
    body: dict[str, Any]


class Message(Section):
    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _one_text(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        return " ".join(map(_text_of_part, content))  # as SGLang's server joins them


def _text_of_part(part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise broken_rule("be text, or parts of type text", "")


def _json_schema(value: Any) -> Any:
    match value:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return '{"type": "object"}'
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return json.dumps(schema)
    raise broken_rule("be of the type text, json_object, or json_schema with a schema", "")


class RequestSampling(SamplingConfig):
    """SGLang's sampling parameters by the names that OpenAI's requests, or SGLang's additions to
    them, have for them."""

    max_new_tokens: Positive = Field(
        1, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
    )
    min_new_tokens: int = Field(0, ge=0, validation_alias="min_tokens")
    stop: Annotated[list[str], BeforeValidator(as_list)] = Field([])
    sampling_seed: int = Field(0, ge=-(2**63), lt=2**63, validation_alias="seed")
    json_schema: Annotated[str | None, BeforeValidator(_json_schema)] = Field(
        None, validation_alias="response_format"
    )
    regex: Name | None = None
    ebnf: Name | None = None
    skip_special_tokens: bool = True
    no_stop_trim: bool = False


SAMPLING = set(RequestSampling.model_fields)


class Body(RequestSampling):
    """What is not here is refused, so that no request gets another answer than it asks for."""

    model: str | None = None
    n: Literal[1] = 1
    stream: Literal[False] = False
    logprobs: Literal[False] = False
    # These change no answer.
    metadata: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None


class ChatBody(Body):
    messages: list[Message] = Field(min_length=1)


class CompletionBody(Body):
    prompt: str
    best_of: Literal[1] = 1
    echo: Literal[False] = False


def read_request(models: Collection[str], custom_id: str, record: dict[str, Any]) -> Document:
    """The document of a batch line. Raises ValueError with a sentence that names the field."""
    try:
        line = Line.model_validate(record)
    except ValidationError as error:
        raise ValueError(_sentence(error)) from None
    given = _without_nulls(line.body)
    body: ChatBody | CompletionBody
    try:
        body = (ChatBody if line.url == CHAT else CompletionBody).model_validate(given)
    except ValidationError as error:
        raise ValueError(_sentence(error, "body.")) from None
    if models and body.model is not None and body.model not in models:
        raise ValueError(
            f"body.model must be {' or '.join(sorted(models))}, got {body.model!r}; "
            "set engine.served_model_name to the name that the requests use"
        )
    sampling = body.model_dump(include=SAMPLING, exclude_unset=True, exclude_none=True)
    if isinstance(body, CompletionBody):
        return Document(custom_id, body.prompt, prompt=body.prompt, sampling=sampling)
    text = "\n\n".join(message.content for message in body.messages)
    return Document(custom_id, text, prompt=[*map(_plain, body.messages)], sampling=sampling)


def _without_nulls(body: dict[str, Any]) -> dict[str, Any]:
    """Clients write null for what they leave open."""
    body = {name: value for name, value in body.items() if value is not None}
    if isinstance(messages := body.get("messages"), list):
        body["messages"] = [
            {name: value for name, value in message.items() if value is not None}
            if isinstance(message, dict)
            else message
            for message in messages
        ]
    return body


def _plain(message: Message) -> dict[str, str]:
    """For a chat template, which knows the older name of a developer's message only."""
    role = "system" if message.role == "developer" else message.role
    return message.model_dump(exclude_none=True) | {"role": role}


def _sentence(error: ValidationError, prefix: str = "") -> str:
    first = error.errors()[0]
    name = prefix + ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"{name} is not supported; remove it"
    if first["type"] == "missing":
        return f"{name} must be given, got nothing"
    return f"{name} must {rule_of(first)}, got {reprlib.repr(first['input'])}"
