"""OpenAI's batch format: requests in, responses out."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from arkv_sglang.batch.commit import OutputFolder
from arkv_sglang.batch.config import InputConfig, JobConfig
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.openai_responses import response_lines
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.types import BadDocument, Document

from .fakes import FakeEngine, FakePrompts

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = [{"role": "user", "content": "Sum up."}]


def chat(custom_id: Any = "a", url: str = CHAT, method: str = "POST", **body: Any) -> bytes:
    line = {"custom_id": custom_id, "method": method, "url": url}
    return json.dumps(line | {"body": {"model": "m", "messages": ASK} | body}).encode()


def completion(custom_id: str = "a", **body: Any) -> bytes:
    line = {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS}
    return json.dumps(line | {"body": {"prompt": "Once"} | body}).encode()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[Document | BadDocument]]:
    def documents(*lines: bytes) -> list[Document | BadDocument]:
        path = tmp_path / "batch.jsonl"
        path.write_bytes(b"\n".join(lines))
        return list(open_documents(InputConfig(path=[str(path)], format="openai"), {"m", "/m"}))

    return documents


def test_what_a_request_says_about_sampling_goes_to_sglang_by_its_names(read: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [None, 1]}}}
    [document] = read(
        chat(
            max_completion_tokens=7,
            temperature=0.5,
            top_p=0.9,
            stop="END",
            seed=3,
            frequency_penalty=0.1,
            presence_penalty=-0.1,
            top_k=5,
            min_p=0.2,
            min_tokens=2,
            repetition_penalty=1.1,
            stop_token_ids=[1],
            ignore_eos=True,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "n", "strict": True, "schema": schema},
            },
            stream=False,
            n=1,
            user="me",
            tools=None,
        )
    )
    assert json.loads(document.sampling.pop("json_schema")) == schema
    assert document.sampling == {
        "max_new_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END"],
        "sampling_seed": 3,
        "frequency_penalty": 0.1,
        "presence_penalty": -0.1,
        "top_k": 5,
        "min_p": 0.2,
        "min_new_tokens": 2,
        "repetition_penalty": 1.1,
        "stop_token_ids": [1],
        "ignore_eos": True,
    }
    [plain] = read(chat(max_tokens=9, temperature=None, response_format={"type": "text"}))
    assert plain.sampling == {"max_new_tokens": 9}


def test_messages_and_prompts_stay_as_they_are(read: Any) -> None:
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "me"},
        {"role": "assistant", "content": "Yes?", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "Go on."},
    ]
    first, second = read(chat(7, messages=messages), completion("b", max_tokens=4))
    assert first == Document(
        "7",
        "Be brief.\n\nOne. Two.\n\nYes?\n\nGo on.",
        prompt=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "One. Two.", "name": "me"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "Go on."},
        ],
    )
    assert second == Document("b", "Once", prompt="Once", sampling={"max_new_tokens": 4})


IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (chat(n=2), "body.n must be 1, got 2"),
        (chat(tools=[{}]), "body.tools is not supported; remove it"),
        (chat(stream=True), "body.stream must be False, got True"),
        (chat(logprobs=True), "body.logprobs must be False, got True"),
        (chat(temperature=-1), "body.temperature must be greater than or equal to 0, got -1"),
        (chat(max_tokens="9"), "body.max_tokens must be a valid integer, got '9'"),
        (chat(max_new_tokens=9), "body.max_new_tokens is not supported; remove it"),
        (chat(top_k=0), "body.top_k must be at least 1, or -1 for all tokens, got 0"),
        (chat(seed=2**63), "body.seed must be less than "),
        (chat(stop=[1]), "body.stop.0 must be a valid string, got 1"),
        (chat(response_format={"type": "xml"}), "body.response_format must be of the type text, "),
        (chat(messages=[]), "body.messages must have at least 1 item, got []"),
        (chat(messages=[{"role": "tool", "content": ""}]), "body.messages.0.role must be 'system'"),
        (
            chat(messages=[{"role": "user", "content": IMAGE}]),
            "body.messages.0.content must be text, or parts of type text, got [",
        ),
        (
            chat(messages=[{"role": "user", "content": ["x"]}]),
            "body.messages.0.content must be text, or parts of type text, got ['x']",
        ),
        (chat(messages=[{"role": "user"}]), "body.messages.0.content must be given, got nothing"),
        (chat(messages=[{"role": "user", "content": " "}]), "the text is empty"),
        (chat(messages=5), "body.messages must be a valid list, got 5"),
        (chat(model="gpt"), "body.model must be /m or m, got 'gpt'; set engine.served_model_name"),
        (completion(prompt=["a", "b"]), "body.prompt must be a valid string, got ['a', 'b']"),
        (completion(echo=True), "body.echo must be False, got True"),
        (completion(messages=ASK), "body.messages is not supported; remove it"),
        (completion(prompt=None), "body.prompt must be given, got nothing"),
        (chat(url="/v1/embeddings"), "url must be '/v1/chat/completions' or '/v1/completions', "),
        (chat(method="GET"), "method must be 'POST', got 'GET'"),
        (
            b'{"custom_id": "a", "method": "POST", "url": "%b"}' % CHAT.encode(),
            "body must be given, got nothing",
        ),
    ],
)
def test_a_request_that_cannot_be_kept_to_names_its_field(
    read: Any, line: bytes, error: str
) -> None:
    bad, good = read(line, chat("good"))
    assert isinstance(bad, BadDocument) and bad.doc_id == "a"
    assert bad.error.startswith(error)
    assert isinstance(good, Document)


def run(tmp_path: Path, *lines: bytes) -> tuple[list[dict[str, Any]], FakeEngine]:
    """The response lines of a whole run with one engine."""
    path = tmp_path / "batch.jsonl"
    path.write_bytes(b"\n".join(lines))
    config = JobConfig.model_validate(
        {
            "input": {"path": str(path), "format": "openai"},
            "engine": {"model_path": "models/m", "served_model_name": "m"},
            "sampling": {"max_new_tokens": 10},
            "output": {"dir": str(tmp_path / "out")},
        }
    )
    engine = FakeEngine()
    source = open_documents(config.input, {"m"})
    folder = OutputFolder(config.output)
    asyncio.run(run_job(config, lambda: [engine], source, FakePrompts(), folder, lambda line: None))
    data = (tmp_path / "out/responses.jsonl").read_bytes()
    return [json.loads(line) for line in data.splitlines()], engine


def test_a_run_leaves_one_response_line_for_each_request(tmp_path: Path) -> None:
    lines, engine = run(
        tmp_path,
        chat("a"),
        completion("b"),
        chat("c", n=2),
        b"{",
        chat("d", max_tokens=999),
        completion("a"),
    )
    assert sorted(engine.seen) == ["a", "b"]
    by_id = {line["custom_id"]: line for line in lines}
    assert len(by_id) == len(lines) == len({line["id"] for line in lines}) == 6
    bodies = {}
    for name in "ab":
        line = by_id.pop(name)
        assert line["error"] is None and line["response"]["status_code"] == 200
        bodies[name] = line["response"]["body"]
    answer = ChatCompletion.model_validate(bodies["a"], strict=True)
    assert answer.choices[0].message.content == "summary of a"
    assert answer.choices[0].finish_reason == "stop" and answer.model == "m"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    # "Sum up." is seven tokens to the fake tokenizer, and the fake engine finds half of them.
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 5)
    assert answer.usage.total_tokens == 12 and answer.usage.prompt_tokens_details.cached_tokens == 3
    text = Completion.model_validate(bodies["b"], strict=True)
    assert text.choices[0].text == "summary of b" and text.object == "text_completion"
    assert all(line["response"] is None for line in by_id.values())
    assert {name: line["error"]["code"] for name, line in by_id.items()} == {
        "c": "invalid_request",
        "batch.jsonl#4": "invalid_request",
        "d": "context_length_exceeded",
        "batch.jsonl#6": "invalid_request",
    }
    assert by_id["c"]["error"]["message"] == "body.n must be 1, got 2"
    assert "at most 0 fit beside 999 new ones" in by_id["d"]["error"]["message"]


def test_a_request_that_failed_on_the_engine_is_a_server_error() -> None:
    row = {"doc_id": "grün", "status": "error", "error": "its engine died"}
    [line] = response_lines([row], (), "m", 0)
    assert line.endswith(b"\n") and "grün".encode() in line
    error = {"code": "server_error", "message": "its engine died"}
    assert json.loads(line)["error"] == error
