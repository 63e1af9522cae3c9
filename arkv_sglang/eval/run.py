"""All samples under all arms, each once: what is done is not done again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from arkv_sglang.eval.arms import Arm
from arkv_sglang.eval.rows import Rows, key
from arkv_sglang.eval.sample import Outcome, Sample

Found = dict[str, list[Outcome]]
"""By the name of an arm, the outcomes of all samples in their order."""


class Answers(Protocol):
    """An engine under one arm."""

    def answer(self, sample: Sample, reference: bytes | None) -> Outcome: ...


def run_all(
    samples: Sequence[Sample],
    arms: Sequence[Arm],
    rows: Rows,
    setting: Mapping[str, Any],
    serving: Callable[[Arm], AbstractContextManager[Answers]],
    say: Callable[[str], None],
) -> Found:
    """The first of ``arms`` is full KV. One engine for each arm that has samples left; a sample is
    written when it is done."""
    found: Found = {}
    references: list[bytes | None] = [None] * len(samples)
    for arm in arms:
        keys = [
            key(sample, arm, setting, reference)
            for sample, reference in zip(samples, references, strict=True)
        ]
        outcomes = {name: done for name in keys if (done := rows.find(name))}
        left = [n for n, name in enumerate(keys) if name not in outcomes]
        say(f"{arm.name}: {len(samples) - len(left)} samples done before, {len(left)} to do")
        if left:
            with serving(arm) as server:
                for position, n in enumerate(left, 1):
                    sample = samples[n]
                    outcome = server.answer(sample, references[n])
                    rows.add(keys[n], sample, arm, outcome)
                    outcomes[keys[n]] = outcome
                    say(
                        f"{arm.name}: {position} of {len(left)}, {sample.task} {sample.number} in "
                        f"{outcome.wall_s:.1f} s"
                    )
        found[arm.name] = [outcomes[name] for name in keys]
        if arm is arms[0]:
            references = [outcome.reference for outcome in found[arm.name]]
    return found
