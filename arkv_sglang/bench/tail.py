"""Engines that have nothing to do at the end of a skewed corpus, in simulated runs."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass

import numpy as np

from arkv_sglang.batch.scheduler import Limits, Scheduler
from arkv_sglang.batch.types import OK, Document, Request, Row
from arkv_sglang.bench import virtual_time
from arkv_sglang.bench.simulated import SimulatedEngine, Speed

LONGEST = 120_000
ENGINES = (2, 4, 8)
# From the first engine's being ready to the last one's.
START_SPREADS_S = (0.0, 60.0)


@dataclass(frozen=True)
class Tail:
    """``idle_share``: of the engine-seconds from each engine's start to the end of the run, those
    after its last answer. ``longest_share``: what the longest document takes on an engine of its
    own, of the run; where that is 1, no schedule ends sooner."""

    corpus: str
    engines: int
    start_spread_s: float
    documents: int
    prompt_tokens: int
    longest_tokens: int
    run_s: float
    idle_share: float
    longest_share: float


class Lengths:
    """Each document's text is its length in tokens. No two prompts begin alike."""

    def __init__(self) -> None:
        self._number = itertools.count(1)

    def build(self, document: Document) -> Request:
        ids = array("I", [0]) * int(document.text)
        ids[0] = next(self._number)
        return Request(document.doc_id, ids)


def corpora(documents: int) -> dict[str, list[int]]:
    """Lengths in tokens, in random order."""
    rng = np.random.default_rng(0)
    lognormal = rng.lognormal(np.log(3_000), 1.0, documents)
    zipf = 500.0 * rng.zipf(1.7, documents)
    giant = np.concatenate(([LONGEST], np.full(documents - 1, 1_000.0)))
    found = {
        "lognormal": lognormal,
        "zipf": zipf,
        "one giant": rng.permutation(giant),
        # The longest alone takes as long as several engines need for all.
        "giant and few": rng.permutation(giant[: max(2, documents // 20)]),
    }
    return {
        name: np.clip(lengths, 100, LONGEST).astype(int).tolist() for name, lengths in found.items()
    }


def measure(
    name: str, lengths: list[int], engines: int, start_spread_s: float, limits: Limits
) -> Tail:
    speed = Speed()
    starts = np.linspace(0, start_spread_s, engines)
    fleet = [SimulatedEngine(f"engine-{n}", float(s), speed) for n, s in enumerate(starts)]
    rows: list[Row] = []
    source = (Document(f"d{n}", str(length)) for n, length in enumerate(lengths))
    scheduler = Scheduler(list(fleet), source, Lengths(), rows.append, limits)
    virtual_time.run(scheduler.run())
    assert [row.status for row in rows] == [OK] * len(lengths)
    end_s = max(engine.busy_until_s for engine in fleet if engine.num_answered)
    # One that is not up by then is none of this run's.
    started = [engine for engine in fleet if engine.start_s < end_s]
    idle_s = sum(end_s - engine.busy_until_s for engine in started)
    all_s = sum(end_s - engine.start_s for engine in started)
    return Tail(
        corpus=name,
        engines=engines,
        start_spread_s=start_spread_s,
        documents=len(lengths),
        prompt_tokens=sum(lengths),
        longest_tokens=max(lengths),
        run_s=round(end_s, 1),
        idle_share=round(idle_s / all_s, 4),
        longest_share=round(speed.alone_s(max(lengths)) / end_s, 4),
    )


def measure_all(documents: int, limits: Limits) -> list[Tail]:
    cases = itertools.product(corpora(documents).items(), ENGINES, START_SPREADS_S)
    return [
        measure(name, lengths, engines, spread_s, limits)
        for (name, lengths), engines, spread_s in cases
    ]
