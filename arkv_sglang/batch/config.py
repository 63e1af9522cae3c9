"""The job's configuration: one YAML file, one pydantic model per section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from jinja2 import TemplateSyntaxError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from arkv_sglang.batch import templates
from arkv_sglang.batch.redact import redact
from arkv_sglang.batch.types import OK, STATUSES

_OF_DOCUMENT = {"title", "doc_id"}
_PLACES = {"text": "the document", "summary": "the summary so far"}

Positive = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]


def broken_rule(rule: str, remedy: str, key: str | None = None) -> PydanticCustomError:
    """An error whose message load.py turns into "<field> must <rule>, got ...; <remedy>". ``key``:
    which one of a section breaks it."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "remedy": remedy, "key": key})


def is_uri(path: str) -> bool:
    return "://" in path


def is_greedy(sampling: Mapping[str, Any]) -> bool:
    """Whether the same prompt always gets the same answer, up to rounding."""
    return bool(sampling["temperature"] == 0 or sampling["top_k"] == 1)


def _all_or_some(top_k: int) -> int:
    if top_k != -1 and top_k < 1:
        raise broken_rule("be at least 1, or -1 for all tokens", "correct it")
    return top_k


class Section(BaseModel):
    """Numbers are numbers: neither ``true`` nor ``"5"``, and finite, as the report is JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def checked_template(template: str, *required: str) -> str:
    """The template, if it uses all of ``required`` and else only what a document has."""
    try:
        used = templates.variables_of(template)
    except TemplateSyntaxError as error:
        raise broken_rule(f"be a Jinja2 template ({error.message})", "correct its syntax") from None
    if not set(required) <= used <= {*required, *_OF_DOCUMENT}:
        needed = " and ".join(required)
        others = ", ".join((*required, "title and doc_id"))
        raise broken_rule(
            f"use the variable{'s' if required[1:] else ''} {needed} and no other than {others}",
            _remedy(used, required),
        )
    return template


def _remedy(used: set[str], required: tuple[str, ...]) -> str:
    missing = [name for name in required if name not in used]
    unknown = sorted(used - {*required, *_OF_DOCUMENT})
    remedies = [f"write {{{{ {name} }}}} where {_PLACES[name]} belongs" for name in missing]
    if unknown:
        remedies.append(f"take out {', '.join(unknown)}")
    return " and ".join(remedies)


def as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class InputConfig(Section):
    path: Annotated[list[Name], BeforeValidator(as_list), Field(min_length=1)]
    format: Literal["auto", "parquet", "jsonl", "text", "openai"] = "auto"
    id_column: Name | None = "doc_id"
    text_column: Name = "text"
    title_column: Name | None = None
    limit: Positive | None = None
    max_document_mib: Positive = 256
    extract_cpu_s: Seconds = 60


class PromptConfig(Section):
    system: str | None = None
    template: str = templates.SINGLE
    chat_template: bool = True

    @field_validator("template")
    @classmethod
    def _uses_the_text(cls, template: str) -> str:
        return checked_template(template, "text")


class StrategyConfig(Section):
    """What is done with a document whose prompt is too long. Templates lie ready for a kind that
    uses them; sizes of chunks where there are none are a mistake."""

    kind: Literal["single", "map_reduce", "refine"] = "single"
    chunk_tokens: Positive | None = None
    overlap_tokens: Annotated[int, Field(ge=0)] = 0
    map_template: str = templates.MAP
    combine_template: str = templates.COMBINE
    refine_template: str = templates.REFINE

    @field_validator("chunk_tokens", "overlap_tokens")
    @classmethod
    def _is_of_use(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        if tokens and info.data.get("kind") == "single":
            raise broken_rule(
                "be left out with strategy.kind single, which cuts nothing",
                "remove it, or pass --set strategy=map_reduce or --set strategy=refine",
            )
        return tokens

    @field_validator("overlap_tokens")
    @classmethod
    def _is_less_than_a_chunk(cls, overlap: int, info: ValidationInfo) -> int:
        chunk = info.data.get("chunk_tokens")
        if chunk is not None and overlap >= chunk:
            raise broken_rule(f"be less than chunk_tokens, which is {chunk}", "lower it")
        return overlap

    @field_validator("map_template", "combine_template")
    @classmethod
    def _uses_the_text(cls, template: str) -> str:
        return checked_template(template, "text")

    @field_validator("refine_template")
    @classmethod
    def _uses_the_summary_so_far(cls, template: str) -> str:
        return checked_template(template, "summary", "text")


class SamplingConfig(Section):
    """SGLang's sampling parameters, by SGLang's names."""

    max_new_tokens: Positive = 256
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, AfterValidator(_all_or_some)] = -1
    min_p: Ratio = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False


class EnginesConfig(Section):
    count: Positive = 1
    min_engines: Positive = 1
    num_gpus: Annotated[float, Field(ge=0)] = 1
    num_cpus: Annotated[float, Field(ge=0)] = 1
    env: dict[str, str] = {}
    cache_dir: Name | None = None
    window_docs: Positive = 32
    window_tokens: Positive | None = None
    start_timeout_s: Seconds = 1800
    max_restarts: Annotated[int, Field(ge=0)] = 3


class OutputConfig(Section):
    dir: str
    existing: Literal["resume", "fail", "replace"] = "resume"
    retry: list[str] = ["error"]
    lease_s: Seconds = 60
    rows_per_part: Positive = 500
    part_period_s: Seconds = 60

    @field_validator("dir")
    @classmethod
    def _reaches_the_same_place_from_anywhere(cls, path: str) -> str:
        if not (is_uri(path) or Path(path).is_absolute()):
            raise broken_rule(
                "be an absolute path or a URI",
                "a job runs in an unpacked copy of the working directory, where a relative "
                "path would be lost, so give the whole path",
            )
        return path.rstrip("/") or "/"

    @field_validator("retry")
    @classmethod
    def _names_failures(cls, retry: list[str]) -> list[str]:
        failures = [status for status in STATUSES if status != OK]
        if not set(retry) <= set(failures):
            raise broken_rule(f"be a list of {', '.join(failures)}", "correct it")
        return retry


class RunConfig(Section):
    max_failure_rate: Ratio = 0.1
    lookahead_docs: Positive = 512
    group_prefixes: bool = True
    request_timeout_s: Seconds = 3600
    sample_period_s: Seconds = 1.0
    progress_period_s: Seconds = 10.0


class AuditConfig(Section):
    """A share of the documents done again with full KV, to see what compression cost."""

    fraction: Ratio = 0.0
    seed: int = 0
    repeat_documents: Annotated[int, Field(ge=0)] = 16
    warn_below_rouge_l: Ratio = 0.5


class JobConfig(Section):
    """The whole configuration; ``engine`` goes to ``sglang.Engine`` as it is."""

    input: InputConfig
    prompt: PromptConfig = PromptConfig()
    strategy: StrategyConfig = StrategyConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: dict[str, JsonValue]
    engines: EnginesConfig = EnginesConfig()
    output: OutputConfig
    run: RunConfig = RunConfig()
    audit: AuditConfig = AuditConfig()

    @field_validator("engine")
    @classmethod
    def _serves_whole_prompts_of_a_model(cls, engine: dict[str, Any]) -> dict[str, Any]:
        model = engine.get("model_path")
        if not isinstance(model, str) or not model:
            raise broken_rule(
                "be a folder or a hub name",
                "add it to the section engine or pass --set engine.model_path=NAME",
                "model_path",
            )
        if Path(model).is_absolute() and not Path(model).is_dir():
            raise broken_rule(
                "be a folder that exists", "correct it or give a hub name", "model_path"
            )
        if engine.get("allow_auto_truncate"):
            raise broken_rule(
                "not be set, since it drops the end of a long prompt silently",
                "remove it: documents that are too long get a row that says so",
                "allow_auto_truncate",
            )
        return engine

    @field_validator("audit")
    @classmethod
    def _compares_what_compression_changed(
        cls, audit: AuditConfig, info: ValidationInfo
    ) -> AuditConfig:
        engine, sampling = info.data.get("engine"), info.data.get("sampling")
        if audit.fraction and engine and (engine.get("kv_policy") or "none") == "none":
            raise broken_rule(
                "be 0 with engine.kv_policy none, which compresses nothing",
                "choose a policy or pass --set audit.fraction=0",
                "fraction",
            )
        if audit.fraction and sampling and not is_greedy(sampling.model_dump()):
            raise broken_rule(
                "be 0 with random sampling, where answers differ without compression, too",
                "pass --set sampling.temperature=0 or --set audit.fraction=0, whichever you mean",
                "fraction",
            )
        return audit

    @property
    def model_name(self) -> str:
        """What the engine calls its model, as an SGLang server would."""
        return str(self.engine.get("served_model_name") or self.engine["model_path"])

    def snapshot(self) -> dict[str, Any]:
        """The configuration as plain data, with secrets blanked, for manifests and reports."""
        snapshot: dict[str, Any] = redact(self.model_dump(mode="json"))
        return snapshot
