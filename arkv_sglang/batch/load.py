"""From a YAML file and ``--set`` overrides to a JobConfig, or to one clear sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.engine_rules import check_engines
from arkv_sglang.batch.redact import redact
from arkv_sglang.config import ConfigError, Names
from arkv_sglang.config import load_config as load_policy
from arkv_sglang.unique_keys import DuplicateKey, read_yaml

# ValueError: a date or a number that YAML's grammar has and Python has not.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
# Sections that one word may stand for, and the key that it gives: the others stay as they are.
_IN_A_WORD = {"strategy": "kind"}
_POLICY_NAMES = Names(
    "engine.kv_policy", "engine.kv_policy_config", "pass --set engine.kv_policy_config=null"
)
_RULES = {
    "dict_type": "be a mapping of keys to values",
    "invalid-json-value": "be a value that JSON has too",
    "model_type": "be a mapping of keys to values",
    "recursion_loop": "not contain itself",
}


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> JobConfig:
    """Read ``path``, apply ``dotted.key=value`` overrides, validate. Raises ConfigError."""
    data = _read_yaml(Path(path))
    for section, key in _IN_A_WORD.items():
        if isinstance(data.get(section), str):
            data[section] = {key: data[section]}
    for override in overrides:
        _apply(data, override)
    try:
        config = JobConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(map(_sentence, error.errors()))) from None
    # The engine would refuse it too, a minute later.
    engine: Mapping[str, Any] = config.engine
    load_policy(engine.get("kv_policy", "none"), engine.get("kv_policy_config"), _POLICY_NAMES)
    check_engines(engine, config.engines)
    return config


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = read_yaml(path.read_text(encoding="utf-8"))
    except DuplicateKey as error:
        raise ConfigError(
            f"--config must name each key once, got {error.shown} of {str(path)!r}; "
            "remove one of the two"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"--config must name a readable file, got {str(path)!r} ({error.strerror}); "
            "a path inside the working directory is relative to it"
        ) from None
    except _NOT_YAML as error:
        detail = " ".join(str(error).split())
        raise ConfigError(
            f"--config must be YAML, got {str(path)!r} ({detail}); correct it there"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"--config must hold sections, got {type(data).__name__} in {str(path)!r}; "
            f"write one or more of {', '.join(JobConfig.model_fields)}"
        )
    return data


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    *parents, leaf = key.split(".")
    if not equals or not all((*parents, leaf)):
        raise ConfigError(
            f"--set must be dotted.key=value, got {key!r}; write for example --set input.limit=10"
        )
    for parent in parents:
        child = data.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(
                f"--set must reach a key in a section, got {key!r} where {parent} is no section; "
                "name a key that the section has"
            )
        data = child
    try:
        parsed = read_yaml(value)
    except DuplicateKey as error:
        raise ConfigError(
            f"--set {key} must name each key once, got {error.shown}; remove one of the two"
        ) from None
    except _NOT_YAML:
        parsed = value
    if not parents and isinstance(parsed, str) and leaf in _IN_A_WORD:
        section = data.get(leaf)
        parsed = (section if isinstance(section, dict) else {}) | {_IN_A_WORD[leaf]: parsed}
    data[leaf] = parsed


def _sentence(error: Mapping[str, Any]) -> str:
    place, value = _place(error["loc"]), error["input"]
    rule, remedy = None, ""
    if error["type"] == "rule":
        rule, remedy = rule_of(error), error["ctx"]["remedy"]
        if key := error["ctx"].get("key"):
            place, value = (*place, key), value.get(key)
    loc = ".".join(map(str, place))
    if error["type"] == "missing":
        return (
            f"{loc} must be given, got nothing; add it to the config file or pass --set {loc}=VALUE"
        )
    if error["type"] == "extra_forbidden":
        known = ", ".join(_known_keys(error["loc"][:-1]))
        return f"{loc} must be a known key, got an unknown one; the known ones are {known}"
    remedy = remedy or f"correct it in the config file or pass --set {loc}=VALUE"
    if error["type"] == "model_type":
        keys = _known_keys(error["loc"])
        rule = f"be a section with the keys {', '.join(keys)}"
        remedy = f"write its keys below it or pass --set {loc}.{keys[0]}=VALUE"
    elif value is None and error["type"] != "rule":
        rule = "be given"
    return f"{loc} must {rule or rule_of(error)}, got {_shown(place[-1], value)}; {remedy}"


def rule_of(error: Mapping[str, Any]) -> str:
    """What must hold, in the words of one of pydantic's errors: "be greater than 0"."""
    if error["type"] == "rule":
        return str(error["ctx"]["rule"])
    rule = re.sub(r"^.*? should ", "", error["msg"])
    return _RULES.get(error["type"]) or re.sub(r" after validation, not \d+$", "", rule)


def _place(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """In engine, where any JSON may stand, pydantic names the kind of value after each key."""
    return loc[:2] + loc[3::2] if loc[0] == "engine" else loc


def _shown(key: str | int, value: Any) -> str:
    if value is None:
        return "nothing"
    try:
        return repr(redact({key: value})[key])
    except RecursionError:
        return "a loop"


def _known_keys(section: Sequence[str]) -> list[str]:
    model: type[BaseModel] = JobConfig
    for name in section:
        annotation = model.model_fields[name].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        model = annotation
    return list(model.model_fields)
