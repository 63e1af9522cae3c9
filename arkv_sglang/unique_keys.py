"""YAML and JSON as their libraries read them, but for a key that is given twice: of two values the
first would be dropped without a word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml


class DuplicateKey(ValueError):
    """``shown``: the key, and where it is if that is known."""

    def __init__(self, key: str, lines: tuple[int, int] | None = None) -> None:
        where = f" in lines {lines[0]} and {lines[1]}" if lines else ""
        self.shown = f"{key!r} twice{where}"
        super().__init__(self.shown)


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Later, keys that "<<" brings are among the others, and those may be there already.
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in seen:
                    raise DuplicateKey(key.value, (seen[name], line))
                seen[name] = line
        return node


def read_yaml(text: str) -> Any:
    """Raises DuplicateKey, YAMLError, and ValueError or RecursionError for what Python has not."""
    return yaml.load(text, _Loader)


def read_json(text: str) -> Any:
    """Raises DuplicateKey, and ValueError or RecursionError for what is no JSON."""
    return json.loads(text, object_pairs_hook=_as_dict)


def _as_dict(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DuplicateKey(key)
        found[key] = value
    return found
