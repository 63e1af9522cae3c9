"""From outcomes to figures: by task and arm, and over tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arkv_sglang.eval.arms import FULL_KV, Arm
from arkv_sglang.eval.run import Found
from arkv_sglang.eval.sample import Outcome, Sample, Task
from arkv_sglang.eval.statistics import bootstrap_mean, paired

FULL_KV_AT_LEAST = 0.5
"""A task on which full KV scores less says nothing of compression and is left out of means."""

Scored = list[tuple[Sample, Arm, Outcome, dict[str, float]]]


def score_all(
    samples: Sequence[Sample], arms: Sequence[Arm], found: Found, tasks: Mapping[str, Task]
) -> Scored:
    """Every outcome with its figures, the first of which is its score."""
    return [
        (sample, arm, outcome, tasks[sample.task].score(sample, outcome, full_kv))
        for arm in arms
        for sample, outcome, full_kv in zip(samples, found[arm.name], found[FULL_KV], strict=True)
    ]


def build_report(
    scored: Scored, arms: Sequence[Arm], full_kv_at_least: float = FULL_KV_AT_LEAST
) -> dict[str, Any]:
    """``results``: one for each task and arm. ``means``: over the ``counted_tasks``, for each arm.
    Ratios are of bf16 bytes, at the end of an answer."""
    groups: dict[str, dict[str, Scored]] = {}
    for line in scored:
        sample, arm = line[:2]
        groups.setdefault(sample.task, {}).setdefault(arm.name, []).append(line)
    results = [
        {"task": task, "arm": arm.name, **_figures(by_arm[arm.name], by_arm[FULL_KV])}
        for task, by_arm in groups.items()
        for arm in arms
    ]
    counted = [
        each["task"]
        for each in results
        if each["arm"] == FULL_KV and each["score"] >= full_kv_at_least
    ]
    return {
        "arms": [
            {"name": arm.name, "line": arm.line, "policy": arm.policy, "config": arm.config}
            for arm in arms
        ],
        "full_kv_at_least": full_kv_at_least,
        "counted_tasks": counted,
        "means": [_mean(arm, groups, counted) for arm in arms] if counted else [],
        "results": results,
    }


def _scores(lines: Scored) -> list[float]:
    return [next(iter(figures.values())) for *_, figures in lines]


def _figures(lines: Scored, full_kv: Scored) -> dict[str, Any]:
    scores, full_scores = _scores(lines), _scores(full_kv)
    outcomes = [outcome for _, _, outcome, _ in lines]
    tokens, full_tokens = (
        [outcome.output_tokens for _, _, outcome, _ in each] for each in (lines, full_kv)
    )
    return {
        "samples": len(lines),
        **_interval("score", scores),
        **_interval(
            "score_less_full_kv", [a - b for a, b in zip(scores, full_scores, strict=True)]
        ),
        **paired(scores, full_scores)._asdict(),
        "figures": _figure_means(lines),
        "output_tokens": float(np.mean(tokens)),
        "output_tokens_over_full_kv": float(np.sum(tokens) / np.sum(full_tokens)),
        "prompt_tokens": float(np.mean([each.prompt_tokens for each in outcomes])),
        "cached_tokens": float(np.mean([each.cached_tokens for each in outcomes])),
        "compressed_samples": sum(each.kv.get("times_planned", 0) > 0 for each in outcomes),
        "kv_bytes": float(np.mean([each.kv_bytes for each in outcomes])),
        "kv_bytes_ratio": _bytes_ratio(lines),
        "wall_s_median": float(np.median([each.wall_s for each in outcomes])),
    }


def _mean(
    arm: Arm, groups: Mapping[str, Mapping[str, Scored]], counted: list[str]
) -> dict[str, Any]:
    """Every task counts alike, however many samples it has."""
    scores = [_scores(groups[task][arm.name]) for task in counted]
    full_kv = [_scores(groups[task][FULL_KV]) for task in counted]
    wins = [paired(a, b) for a, b in zip(scores, full_kv, strict=True)]
    return {
        "arm": arm.name,
        "line": arm.line,
        **_interval("score", *scores),
        "wins": sum(each.wins for each in wins),
        "losses": sum(each.losses for each in wins),
        "ties": sum(each.ties for each in wins),
        "kv_bytes_ratio": float(
            np.mean([_bytes_ratio(groups[task][arm.name]) for task in counted])
        ),
    }


def _interval(name: str, *groups: Sequence[float]) -> dict[str, float | None]:
    mean, low, high = bootstrap_mean(*groups)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def _figure_means(lines: Scored) -> dict[str, float]:
    """Of each figure, over the samples that have it."""
    values: dict[str, list[float]] = {}
    for *_, figures in lines:
        for name, value in figures.items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(each)) for name, each in values.items()}


def _bytes_ratio(lines: Scored) -> float:
    return float(np.mean([each.kv_bytes / each.kv_bf16_bytes for _, _, each, _ in lines]))
