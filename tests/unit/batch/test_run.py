import asyncio
import contextlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.config import PromptConfig
from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.monitor import Series
from arkv_sglang.batch.outcome import check_outcome
from arkv_sglang.batch.prompts import TokenizedPrompts
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.types import (
    BadDocument,
    Document,
    EngineInfo,
    EngineLost,
    RequestFailed,
    RunFailed,
)

from .fakes import FakeEngine, FakePrompts
from .runs import configured, files, run


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
    assert "the text is &lt;empty&gt;" in page and page.count("KV memory of engine-") == 2
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
        source = iter([Document(f"d{n}", "text") for n in range(3)])
        with contextlib.closing(OutputFolder(config.output)) as folder:
            job = run_job(
                config, lambda: [Slow()], source, FakePrompts(), folder, lambda line: None
            )
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(job, 0.3)

    asyncio.run(stopped())
    assert pq.read_table(tmp_path / "summaries")["doc_id"].to_pylist() == ["d0"]


REPLACE = {"existing": "replace", "rows_per_part": 1}


def test_a_run_without_engines_leaves_no_rows_and_the_earlier_ones(tmp_path: Path) -> None:
    source = [BadDocument("bad", "empty"), Document("d", "text")]
    with pytest.raises(RunFailed, match="no engine started"):
        run(tmp_path, [FakeEngine(starts=False)], source, output=REPLACE)
    assert files(tmp_path) == {}
    run(tmp_path, [FakeEngine()], [Document("old", "text")])
    before = files(tmp_path)
    with pytest.raises(RunFailed, match="no engine started"):
        run(tmp_path, [FakeEngine(starts=False, start_s=0.1)], source, output=REPLACE)
    assert files(tmp_path) == before


def test_a_run_that_is_stopped_before_an_engine_is_up_leaves_the_earlier_rows(
    tmp_path: Path,
) -> None:
    run(tmp_path, [FakeEngine()], [Document("old", "text")])
    before = files(tmp_path)

    async def stopped() -> None:
        config = configured(tmp_path, output=REPLACE)
        source = iter([BadDocument("bad", "empty"), Document("d", "text")])
        with contextlib.closing(OutputFolder(config.output)) as folder:
            job = run_job(
                config, lambda: [FakeEngine(start_s=60)], source, FakePrompts(), folder, print
            )
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(job, 0.3)

    asyncio.run(stopped())
    assert files(tmp_path) == before


@pytest.mark.parametrize("source", [[], [Document("new", "text")]])
def test_a_run_that_gets_further_replaces_them(tmp_path: Path, source: list[Any]) -> None:
    run(tmp_path, [FakeEngine()], [Document("old", "text")])
    report, _ = run(tmp_path, [FakeEngine()], source, output=REPLACE)
    assert report["totals"]["documents"]["all"] == len(source)
    parts = [pq.read_table(path) for path in (tmp_path / "summaries").iterdir()]
    assert [row for part in parts for row in part["doc_id"].to_pylist()] == ["new"][: len(source)]


def test_a_template_that_one_document_breaks_costs_that_document(tmp_path: Path) -> None:
    class Tokenizer:
        chat_template = None

        def __call__(self, prompt: str, **settings: Any) -> dict[str, Any]:
            return {"input_ids": list(range(len(prompt)))}

    template = "{{ text.split('\n')[2] }}"
    prompts = TokenizedPrompts(Tokenizer(), PromptConfig(template=template, chat_template=False))
    source = [Document(f"d{n}", "one line" if n == 5 else "1\n2\n3") for n in range(10)]
    report, _ = run(tmp_path, [FakeEngine()], source, prompts)
    assert report["totals"]["documents"]["ok"] == 9
    assert [(row["doc_id"], row["status"]) for row in report["failures"]] == [("d5", "invalid")]
    sentence = "the prompt cannot be made: UndefinedError: list object has no element 2"
    assert report["failures"][0]["error"] == sentence


def test_no_secret_reaches_the_report(tmp_path: Path) -> None:
    settings = {"tags": [{"api_keys": "LEAK"}], "mirror": "https://me:LEAK@host/models"}
    env = {"HF_TOKEN": "LEAK", "HTTPS_PROXY": "http://me:LEAK@proxy:80"}
    source = [Document("d", "text")]
    report, said = run(tmp_path, [FakeEngine()], source, engine=settings, engines={"env": env})
    assert report["config"]["engine"]["mirror"] == "https://***@host/models"

    class Leaky(FakeEngine):
        async def start(self) -> EngineInfo:
            raise EngineLost("no answer from https://me:LEAK@host")

    with pytest.raises(RunFailed):
        run(tmp_path, [Leaky()], [Document("other", "text")])
    manifest = (tmp_path / "manifest.json").read_text()
    assert "no answer from https://***@host" in manifest and "LEAK" not in manifest
    written = b"".join(files(tmp_path).values()).decode(errors="replace")
    assert "https://***@host/models" in written and "LEAK" not in written + said


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_telemetry_that_is_no_number_does_not_spoil_the_report(
    tmp_path: Path, value: float
) -> None:
    class Odd(FakeEngine):
        async def sample(self) -> dict[str, float]:
            return await super().sample() | {"kv_quantized_bytes": value}

    report, _ = run(tmp_path, [Odd()], [Document("d", "text")])
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert report["engines"][0]["peak_kv_quantized_bytes"] is None
    assert report["engines"][0]["peak_kv_original_bytes"] is not None


@pytest.mark.parametrize(
    "error", [RequestFailed("KeyError: 'memory_usage'"), KeyError("memory_usage")]
)
def test_an_engine_without_telemetry_says_so_once_and_is_used(
    tmp_path: Path, error: Exception
) -> None:
    class Mute(FakeEngine):
        async def sample(self) -> dict[str, float]:
            raise error

    report, said = run(tmp_path, [Mute()], [Document(f"d{n}", "x" * 900) for n in range(9)])
    assert report["totals"]["documents"]["ok"] == 9
    assert said.count("no telemetry of engine-0: KeyError: 'memory_usage'") == 1
    assert report["engines"][0]["peak_kv_bytes"] is None


def test_long_series_are_thinned_and_keep_their_peaks() -> None:
    series = Series(limit=10)
    for n in range(1000):
        series.add({"t_s": float(n), "kv_bytes": 7.0 if n == 333 else 1.0})
    times = [sample["t_s"] for sample in series.samples]
    assert len(times) < 10 and times[0] == 0 and times[-1] >= 800
    assert len({b - a for a, b in itertools.pairwise(times)}) == 1
    assert series.peaks["kv_bytes"] == 7 and series.last["t_s"] == 999
