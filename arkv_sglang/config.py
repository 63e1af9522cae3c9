"""`ArkvConfig`: one frozen dataclass that flag, YAML and Python all build.

A wrong value raises `ConfigError` with one sentence: the field, the value, the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from arkv_sglang.unique_keys import DuplicateKey, read_json, read_yaml

POLICIES = ("none", "original", "quantized", "arkv-paper", "arkv")

# gamma and tau of arXiv 2603.08727, from the authors' released code.
PAPER_GAMMA = 263.8108280337562
PAPER_TAU = (7.774380648611771, 5.407015096778621, 5.527702582901318)


class ConfigError(ValueError):
    """A policy or one of its settings is not what it must be."""


class Names(NamedTuple):
    """What the user calls the policy and its settings, and how the settings are taken away."""

    policy: str
    config: str
    drop_config: str


FLAGS = Names("--kv-policy", "--kv-policy-config", "drop --kv-policy-config")


def _number(value: Any) -> Any:
    """Neither true nor "0.5": pydantic would take both for numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    return value


def _three(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise ValueError("must be a list of three numbers")
    return value


MAX_TOKENS = 1 << 30
Number = BeforeValidator(_number)
Tokens = Annotated[int, Number, Field(strict=True, ge=0, le=MAX_TOKENS)]
Exponent = Annotated[float, Number, Field(gt=0, le=1e6)]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class Pooling:
    """Smoothing of token scores over neighbouring positions.

    Left out, ``kind`` is the policy's own and ``width`` the usual one of the kind.
    """

    kind: Literal["avg", "max", "none"] | None = None
    width: Annotated[int, Number, Field(strict=True, ge=1, le=1023)] | None = None

    def __post_init__(self) -> None:
        if self.width is not None and self.width % 2 == 0:
            raise ValueError(f"pooling.width must be odd, got {self.width}")

    def completed(self, kind: Literal["avg", "max"]) -> Pooling:
        chosen = self.kind or kind
        return Pooling(chosen, self.width or POOLING_WIDTHS[chosen])


POOLING_WIDTHS = {"max": 31, "avg": 5, "none": 1}


@dataclass(frozen=True, config=_STRICT)
class ArkvConfig:
    """Settings of one KV policy.

    budget: a ratio in (0, 1] of the bf16 bytes of prompt plus output so far, or an integer: a fixed
    cap, in tokens' worth of bf16 bytes.
    when: `prefill` compresses each prompt at its end, `pressure` only when bytes run short;
    `always` at its end, and also those that are short or fit their budget.
    """

    policy: Literal["original", "quantized", "arkv-paper", "arkv"] = "arkv"
    budget: Annotated[int | float, Number] = 0.55
    min_tokens: Tokens = 512
    when: Literal["prefill", "pressure", "always"] = "prefill"
    sinks: Annotated[Tokens, Field(le=1024)] | None = None
    window: Annotated[Tokens, Field(ge=1, le=1024)] = 32
    pooling: Pooling = Pooling()
    slack: Annotated[float, Number, Field(ge=0, le=4)] = 0.1
    scorer: Literal["heavy-hitter"] = "heavy-hitter"
    gamma: Annotated[float, Number, Field(ge=0, le=1e6)] = PAPER_GAMMA
    tau: Annotated[tuple[Exponent, Exponent, Exponent], BeforeValidator(_three)] = PAPER_TAU

    def __post_init__(self) -> None:
        # The paper keeps no sinks and averages over 5 neighbours; measured defaults elsewhere.
        if self.sinks is None:
            object.__setattr__(self, "sinks", 0 if self.policy == "arkv-paper" else 4)
        pooling = self.pooling.completed("max" if self.policy == "arkv" else "avg")
        object.__setattr__(self, "pooling", pooling)
        self._check_budget()

    def _check_budget(self) -> None:
        if isinstance(self.budget, int):
            least = self.num_protected + 1
            if self.budget < least:
                raise ValueError(
                    f"budget as an integer is a cap in tokens and must be at least {least} "
                    f"(sinks + window + 1), got {self.budget}; write 1.0 for the whole"
                )
            if self.budget > MAX_TOKENS:
                raise ValueError(
                    f"budget as an integer is a cap in tokens and must be at most {MAX_TOKENS}, "
                    f"got {self.budget}; write 1.0 for the whole"
                )
        elif not 0 < self.budget <= 1:
            raise ValueError(
                f"budget must be a ratio in (0, 1] or an integer cap in tokens, got {self.budget}"
            )
        elif self.when != "always":
            self._check_shortest()

    def _check_shortest(self) -> None:
        """The shortest prompt that is compressed must hold its protected tokens within budget."""
        shortest = self.min_tokens + 1
        ratio = Fraction(repr(self.budget))
        # With the whole budget nothing is compressed.
        if ratio == 1 or ratio * shortest >= self.num_protected:
            return
        enough = math.ceil(10_000 * Fraction(self.num_protected, shortest)) / 10_000
        budget = f"a budget of at least {enough:g} or " if enough <= 1 else ""
        raise ValueError(
            f"budget must hold sinks + window ({self.num_protected} tokens) of the shortest prompt "
            f"that is compressed ({shortest} tokens), got {self.budget}, which is "
            f"{float(ratio * shortest):.1f} tokens; use {budget}"
            f"min_tokens of at least {math.ceil(self.num_protected / ratio) - 1}"
        )

    @property
    def num_protected(self) -> int:
        """Tokens that are never evicted: attention sinks and the recent window."""
        assert self.sinks is not None
        return self.sinks + self.window

    def budget_bytes(self, num_tokens: int, token_bytes: int) -> int:
        """Byte budget of a request of ``num_tokens`` tokens of ``token_bytes`` bf16 bytes each."""
        if isinstance(self.budget, int):
            return self.budget * token_bytes
        # Exact, so that a ratio which is just enough for fp8 is enough at every length.
        return math.floor(Fraction(repr(self.budget)) * num_tokens * token_bytes)

    def describe(self) -> dict[str, Any]:
        """Every setting as plain data, defaults filled in."""
        return dict(TypeAdapter(ArkvConfig).dump_python(self, mode="json"))


def load_config(
    policy: str, raw: str | Mapping[str, Any] | None = None, names: Names = FLAGS
) -> ArkvConfig | None:
    """Build the config of ``--kv-policy policy --kv-policy-config raw``; None for ``none``.

    ``raw``: JSON text, ``@file.yaml``, a mapping, or nothing. Raises `ConfigError`, in ``names``.
    """
    if policy not in POLICIES:
        raise ConfigError(f"{names.policy} must be one of {', '.join(POLICIES)}, got {policy!r}")
    values = _as_mapping(raw, names)
    if policy == "none":
        if values:
            raise ConfigError(
                f"{names.config} must be empty with {names.policy} none, got {list(values)}; "
                f"choose a policy or {names.drop_config}"
            )
        return None
    if values.get("policy", policy) != policy:
        raise ConfigError(
            f"{names.config} names policy {values['policy']!r} but {names.policy} is {policy!r}; "
            "drop one of the two"
        )
    known = {field.name for field in fields(ArkvConfig)}
    unknown = [key for key in values if key not in known]
    if unknown:
        raise ConfigError(
            f"{names.config} field {unknown[0]!r} is unknown (value {values[unknown[0]]!r}); "
            f"known fields: {', '.join(sorted(known - {'policy'}))}"
        )
    try:
        return TypeAdapter(ArkvConfig).validate_python({**values, "policy": policy})
    except ValidationError as error:
        raise ConfigError(_one_sentence(error, names)) from None


# The settings that are mappings themselves.
_SECTIONS = {"pooling": Pooling}


def _as_mapping(raw: str | Mapping[str, Any] | None, names: Names) -> dict[str, Any]:
    if raw is None:
        return {}
    if isinstance(raw, Mapping):
        return dict(raw)
    parsed: Any = raw
    if isinstance(raw, str):
        parsed = _read_yaml(raw[1:], names) if raw.startswith("@") else _parse_json(raw, names)
    if not isinstance(parsed, dict):
        raise ConfigError(
            f"{names.config} must be a JSON or YAML mapping, got {type(parsed).__name__}"
        )
    return parsed


def _parse_json(text: str, names: Names) -> Any:
    try:
        return read_json(text)
    except DuplicateKey as error:
        raise ConfigError(
            f"{names.config} must name each key once, got {error.shown}; remove one of the two"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{names.config} must be a JSON object or @file.yaml, got {text[:200]!r} ({error})"
        ) from None


def _read_yaml(path: str, names: Names) -> Any:
    try:
        return read_yaml(Path(path).read_text()) or {}
    except DuplicateKey as error:
        raise ConfigError(
            f"{names.config} file {path!r} must name each key once, got {error.shown}; "
            "remove one of the two"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{names.config} file {path!r} must be readable, got: {error.strerror}"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{names.config} file {path!r} must be YAML, got: {reason}") from None


def _one_sentence(error: ValidationError, names: Names) -> str:
    first = error.errors()[0]
    # A union reports each alternative; its last path element names the alternative, not a field.
    location = ".".join(str(part) for part in first["loc"] if str(part) not in ("int", "float"))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "dataclass_type":
        keys = ", ".join(field.name for field in fields(_SECTIONS[location]))
        message = f"must be a mapping with the keys {keys}"
    if not location:
        return f"{names.config}: {message}"
    return (
        f"{names.config} field {location} is {first['input']!r}: {message[0].lower()}{message[1:]}"
    )
