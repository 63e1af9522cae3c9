import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from arkv_sglang.batch.commit import OutputFolder
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.metric_names import METRICS
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
    mirror = MetricsMirror(Instrument, Instrument)
    folder = OutputFolder(config.output)
    job = run_job(
        config, fleet, iter(source), FakePrompts(), folder, lambda line: None, mirror=mirror
    )
    return asyncio.run(job)


def test_the_mirror_ends_with_the_figures_of_the_report(
    tmp_path: Path, made: dict[str, Instrument]
) -> None:
    source = [Document(f"d{n}", "x" * (1 + 20 * n)) for n in range(40)]
    source += [Document("long", "x" * 2000), BadDocument("bad", "the text is empty")]
    fleet = [FakeEngine("engine-0"), FakeEngine("engine-1", fails=frozenset(["d7", "d8", "d9"]))]
    report = run(tmp_path, fleet, source)
    documents: Counter[str] = Counter()
    for (_, status), count in made["arkv_job_documents_total"].values.items():
        documents[status] += count
    expected = report["totals"]["documents"]
    assert documents == {name: n for name, n in expected.items() if n and name != "all"}
    for engine in report["engines"]:
        for what in ("prompt_tokens", "cached_tokens", "output_tokens"):
            counted = made[f"arkv_job_{what}_total"].values[(engine["name"],)]
            assert counted == engine[what] > 0


def test_gauges_of_an_engine_that_is_gone_are_0(
    tmp_path: Path, made: dict[str, Instrument]
) -> None:
    class Full(FakeEngine):
        async def sample(self) -> dict[str, float]:
            return {"running_requests": 2, "kv_original_bytes": 640, "kv_quantized_bytes": 320}

    source = [Document(f"d{n}", "x" * 800) for n in range(60)]
    lost = Full("lost", poison=frozenset(document.doc_id for document in source), restarts=0)
    report = run(tmp_path, [lost, Full("well")], source)
    assert [engine["gone"] is None for engine in report["engines"]] == [False, True]
    kv, running = made["arkv_job_kv_bytes"].values, made["arkv_job_running_requests"].values
    assert kv[("well", "original")] == 640 and kv[("well", "quantized")] == 320
    assert running[("well",)] == 2 and running[("lost",)] == kv[("lost", "original")] == 0


def test_names_are_fit_for_prometheus_and_documented() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"arkv_job_[a-z_]+", metric.name) and "engine" in metric.labels
        assert metric.description and metric.unit in metric.name
