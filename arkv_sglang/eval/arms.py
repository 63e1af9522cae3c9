"""Arms: one for each policy and budget, and full KV, with which all are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from arkv_sglang.config import ArkvConfig, ConfigError, Names, load_config
from arkv_sglang.unique_keys import DuplicateKey, read_yaml

FULL_KV = "none"
_NAMES = Names("a policy", "the settings of an arm", "leave out the settings")


@dataclass(frozen=True)
class Arm:
    """``config``: None for stock, else every setting. ``line``: what its plot's line is called."""

    name: str
    line: str
    policy: str
    config: Mapping[str, Any] | None


def make_arms(policies: Sequence[str], budgets: Sequence[float], file: Path | None) -> list[Arm]:
    """Full KV first, then each of ``policies`` and of the arms in ``file`` at each budget. Raises
    ConfigError.

    ``file``: YAML, a mapping of names to ``policy`` and its settings; one that has a budget of its
    own is an arm as it is.
    """
    found = {FULL_KV: Arm(FULL_KV, FULL_KV, FULL_KV, None)}
    named: dict[str, Mapping[str, Any]] = {name: {"policy": name} for name in policies}
    if file is not None:
        named |= _read(file)
    for line, settings in named.items():
        rest = dict(settings)
        policy = rest.pop("policy")
        if policy == FULL_KV:
            load_config(policy, rest, _NAMES)
            continue
        own = [rest.pop("budget")] if "budget" in rest else budgets
        for budget in own:
            config = _config(policy, budget, rest)
            arm = Arm(f"{line} {budget:g}", line, policy, config.describe())
            found[arm.name] = arm
    return list(found.values())


def _config(policy: str, budget: float, settings: Mapping[str, Any]) -> ArkvConfig:
    """``min_tokens``, if not given, is no shorter than the budget allows."""
    if "min_tokens" not in settings and isinstance(budget, float) and 0 < budget < 1:
        whole = load_config(policy, {**settings, "budget": 1.0}, _NAMES)
        assert whole is not None
        least = math.ceil(whole.num_protected / Fraction(repr(budget))) - 1
        settings = {**settings, "min_tokens": max(whole.min_tokens, least)}
    config = load_config(policy, {**settings, "budget": budget}, _NAMES)
    assert config is not None
    return config


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        found = read_yaml(path.read_text())
    except DuplicateKey as error:
        raise ConfigError(
            f"--arms {str(path)!r} must name each key once, got {error.shown}"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"--arms must name a file that can be read, got {str(path)!r}: {error.strerror}"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"--arms {str(path)!r} must be YAML, got: {reason}") from None
    entries = found.values() if isinstance(found, dict) else [None]
    if not all(isinstance(entry, dict) and "policy" in entry for entry in entries):
        raise ConfigError(
            f"--arms {str(path)!r} must map names of arms to a policy and its settings, for one "
            "'wide: {policy: arkv, window: 64}'"
        )
    return dict(found)
