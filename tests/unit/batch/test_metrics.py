import asyncio
import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from arkv_sglang.batch.commit import OutputFolder
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.metric_names import JOB_METRICS
from arkv_sglang.batch.metrics import MetricsMirror
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.types import BadDocument, Document

from .fakes import FakeEngine, FakePrompts


class Instrument:
    """A counter or gauge with Ray's rules: every tag given, as text, and counters only grow."""

    made: dict[str, "Instrument"]

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        assert isinstance(tag_keys, tuple) and description
        self.tag_keys = tag_keys
        self.values: Counter[tuple[str, ...]] = Counter()
        self.made[name] = self

    def _key(self, tags: dict[str, str]) -> tuple[str, ...]:
        assert tags.keys() == set(self.tag_keys)
        assert all(isinstance(value, str) for value in tags.values())
        return tuple(tags[key] for key in self.tag_keys)

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0
        self.values[self._key(tags)] += value  # type: ignore[assignment]

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[self._key(tags)] = value  # type: ignore[assignment]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Instrument]:
    found: dict[str, Instrument] = {}
    monkeypatch.setattr(Instrument, "made", found, raising=False)
    return found


def run(out: Path, fleet: list[Any], source: list[Any]) -> dict[str, Any]:
    config = JobConfig.model_validate(
        {
            "input": {"path": "unused"},
            "engine": {"model_path": "some/model"},
            "sampling": {"max_new_tokens": 10},
            "output": {"dir": str(out)},
            "run": {"sample_period_s": 0.001},
        }
    )
    mirror = partial(MetricsMirror, make_counter=Instrument, make_gauge=Instrument)
    folder = OutputFolder(config.output)
    job = run_job(
        config,
        lambda: fleet,
        iter(source),
        FakePrompts(),
        folder,
        lambda line: None,
        make_mirror=mirror,
    )
    return asyncio.run(job)


def test_the_mirror_ends_with_the_figures_of_the_report(
    tmp_path: Path, made: dict[str, Instrument]
) -> None:
    source = [Document(f"d{n}", "x" * (1 + 20 * n)) for n in range(40)]
    source += [Document("long", "x" * 2000), BadDocument("bad", "the text is empty")]
    fleet = [FakeEngine("engine-0"), FakeEngine("engine-1", fails=frozenset(["d7", "d8", "d9"]))]
    report = run(tmp_path, fleet, source)
    run_id = report["run"]["id"]
    done = made["arkv_job_documents_done_total"].values
    assert {run for run, _ in done} == {run_id}
    expected = report["totals"]["documents"]
    assert {status: n for (_, status), n in done.items()} == {
        status: n for status, n in expected.items() if n and status != "all"
    }
    for engine in report["engines"]:
        for what in ("prompt_tokens", "cached_tokens", "output_tokens"):
            counted = made[f"arkv_job_{what}_total"].values[run_id, engine["name"]]
            assert counted == engine[what] > 0
        assert made["arkv_job_documents_in_flight"].values[run_id, engine["name"]] == 0
    assert made["arkv_job_documents_waiting"].values == {(run_id,): 0}
    assert made["arkv_job_engines_up"].values == {(run_id,): 2}


def test_deaths_are_counted_once_and_the_dead_say_nothing(
    tmp_path: Path, made: dict[str, Instrument]
) -> None:
    class Full(FakeEngine):
        async def sample(self) -> dict[str, float]:
            return {"running_requests": 2, "kv_original_bytes": 640, "arkv_free_bytes": math.inf}

    source = [Document(f"d{n}", chr(0x4E00 + n) * 800) for n in range(60)]
    lost = Full("lost", poison=frozenset(document.doc_id for document in source), restarts=0)
    report = run(tmp_path, [lost, Full("well")], source)
    assert [engine["gone"] is None for engine in report["engines"]] == [False, True]
    run_id = report["run"]["id"]
    assert made["arkv_job_engine_deaths_total"].values == {(run_id, "lost"): 1}
    assert made["arkv_job_engines_up"].values == {(run_id,): 1}
    assert made["arkv_engine_kv_original_bytes"].values[run_id, "well"] == 640
    assert made["arkv_engine_running_requests"].values[run_id, "well"] == 2
    # What is no number is no value of a gauge.
    assert "arkv_free_bytes" not in made


def test_every_metric_of_the_job_is_made_and_no_other(
    tmp_path: Path, made: dict[str, Instrument]
) -> None:
    source = [Document(f"d{n}", chr(0x4E00 + n) * 800) for n in range(20)]
    lost = FakeEngine("lost", poison=frozenset(document.doc_id for document in source), restarts=0)
    run(tmp_path, [lost, FakeEngine("well")], source)
    of_the_job = {name for name in made if name.startswith("arkv_job_")}
    assert of_the_job == {metric.name for metric in JOB_METRICS}
    assert {made[metric.name].tag_keys for metric in JOB_METRICS} == {
        metric.labels for metric in JOB_METRICS
    }
