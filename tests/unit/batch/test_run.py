import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.commit import OutputFolder
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.monitor import Series
from arkv_sglang.batch.run import check_outcome, run_job
from arkv_sglang.batch.types import BadDocument, Document, RequestFailed, RunFailed

from .fakes import FakeEngine, FakePrompts


def configured(out: Path) -> JobConfig:
    return JobConfig.model_validate(
        {
            "input": {"path": "unused"},
            "engine": {"model_path": "some/model", "kv_policy": "arkv"},
            "sampling": {"max_new_tokens": 10},
            "output": {"dir": str(out)},
            "run": {"sample_period_s": 0.001, "progress_period_s": 0.002},
        }
    )


def run(out: Path, engines: list[Any], source: list[Any]) -> tuple[dict[str, Any], str]:
    config = configured(out)
    said: list[str] = []
    folder = OutputFolder(config.output)
    job = run_job(config, engines, iter(source), FakePrompts(), folder, said.append)
    return asyncio.run(job), "\n".join(said)


def test_a_run_leaves_rows_telemetry_and_a_report(tmp_path: Path) -> None:
    source = [Document(f"d{n}", "x" * (100 + n)) for n in range(20)]
    source += [Document("long", "x" * 2000), BadDocument("bad", "the text is <empty>")]
    report, said = run(tmp_path, [FakeEngine("engine-0"), FakeEngine("engine-1")], source)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert report["totals"]["documents"] == {
        "ok": 20,
        "too_long": 1,
        "invalid": 1,
        "error": 0,
        "all": 22,
    }
    assert report["totals"]["prompt_tokens"] == sum(range(100, 120))
    assert report["totals"]["output_tokens"] == 100
    assert sum(engine["documents"]["ok"] for engine in report["engines"]) == 20
    assert report["config"]["engine"]["kv_policy"] == "arkv"
    assert pq.read_table(tmp_path / "summaries").num_rows == 22
    telemetry = pq.read_table(tmp_path / "telemetry.parquet")
    assert set(telemetry["engine"].to_pylist()) == {"engine-0", "engine-1"}
    page = (tmp_path / "report.html").read_text()
    assert "the text is &lt;empty&gt;" in page and page.count("data:image/svg+xml") == 2
    for word in ("documents", "2/2 engines up", f"{tmp_path}/report.html", "engine-1"):
        assert word in said
    check_outcome(report, 0.1)


def test_a_stopped_run_keeps_what_is_done(tmp_path: Path) -> None:
    class Slow(FakeEngine):
        async def generate(self, request: Any) -> Any:
            if request.doc_id != "d0":
                await asyncio.sleep(3600)
            return await super().generate(request)

    async def stopped() -> None:
        config = configured(tmp_path)
        folder = OutputFolder(config.output)
        source = iter([Document(f"d{n}", "text") for n in range(3)])
        job = run_job(config, [Slow()], source, FakePrompts(), folder, lambda line: None)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, 0.3)

    asyncio.run(stopped())
    assert pq.read_table(tmp_path / "summaries")["doc_id"].to_pylist() == ["d0"]


def test_a_run_without_engines_leaves_no_rows_behind(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="no engine started"):
        run(tmp_path, [FakeEngine(starts=False)], [BadDocument("bad", "empty")] * 3)
    assert not list((tmp_path / "summaries").iterdir())


def test_an_engine_without_telemetry_says_so_once_and_is_used(tmp_path: Path) -> None:
    class Mute(FakeEngine):
        async def sample(self) -> dict[str, float]:
            raise RequestFailed("KeyError: 'memory_usage'")

    report, said = run(tmp_path, [Mute()], [Document(f"d{n}", "x" * 900) for n in range(9)])
    assert report["totals"]["documents"]["ok"] == 9
    assert said.count("no telemetry of engine-0: KeyError: 'memory_usage'") == 1
    assert report["engines"][0]["peak_kv_bytes"] is None


@pytest.mark.parametrize(
    ("ok", "failed", "message"),
    [
        (0, 0, "the input held no documents"),
        (0, 2, "none of 2 documents succeeded: why"),
        (8, 2, "2 of 10 documents failed, more than run.max_failure_rate 0.1 allows"),
    ],
)
def test_a_run_that_failed_says_why(ok: int, failed: int, message: str) -> None:
    documents = {"ok": ok, "all": ok + failed}
    report = {"totals": {"documents": documents}, "failures": [{"error": "why"}] * failed}
    with pytest.raises(RunFailed, match=message):
        check_outcome(report, 0.1)


def test_long_series_are_thinned_and_keep_their_peaks() -> None:
    series = Series(limit=10)
    for n in range(1000):
        series.add({"t_s": float(n), "kv_bytes": 7.0 if n == 333 else 1.0})
    times = [sample["t_s"] for sample in series.samples]
    assert len(times) < 10 and times[0] == 0 and times[-1] >= 800
    assert len({b - a for a, b in itertools.pairwise(times)}) == 1
    assert series.peaks["kv_bytes"] == 7 and series.last["t_s"] == 999
