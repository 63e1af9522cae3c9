"""What dies on a real Ray cluster, and what becomes of the documents. The engine is a stand-in."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.local_ray import MARK, LocalRay

Submit = Callable[[dict[str, Any]], tuple[int, str]]
pytestmark = pytest.mark.timeout(900)
FABLES = {f"fable-{n}" for n in range(5)}


@pytest.fixture
def config(config: dict[str, Any]) -> dict[str, Any]:
    config["engines"]["env"]["PYTHONPATH"] = str(Path(__file__).parent / "standin")
    config["run"]["progress_period_s"] = 0.5
    config["sampling"]["max_new_tokens"] = 100
    return config


def results(out: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    rows = pq.read_table(out / "summaries").to_pylist()
    assert len({row["doc_id"] for row in rows}) == len(rows) == 8
    report = json.loads((out / "report.json").read_text())
    return {row["doc_id"]: row for row in rows}, report["engines"]


def when(log: Path, words: str, act: Callable[[], None]) -> threading.Thread:
    """Do something once the job's log says so."""

    def wait() -> None:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            if log.exists() and words in log.read_text():
                return act()
            time.sleep(0.1)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def kill_one_child(cluster: LocalRay) -> None:
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == str(cluster.folder)
            if ours and process.cmdline() == ["sleep", "86421"]:
                return process.kill()
        except psutil.Error:
            continue


def test_an_engine_whose_scheduler_is_killed_comes_back(
    submit: Submit, config: dict[str, Any], cluster: LocalRay, tmp_path: Path
) -> None:
    killer = when(
        tmp_path / "job.log", "2/2 engines up, 5 in flight", lambda: kill_one_child(cluster)
    )
    code, log = submit(config)
    killer.join(timeout=5)
    assert code == 0, log
    rows, engines = results(tmp_path / "out")
    assert {doc_id for doc_id, row in rows.items() if row["status"] == "ok"} == FABLES
    assert sorted(engine["deaths"] for engine in engines) == [0, 1], log
    assert [engine["gone"] for engine in engines] == [None, None]


def test_a_document_that_kills_its_engine_is_the_only_one_that_fails(
    submit: Submit, config: dict[str, Any], tmp_path: Path
) -> None:
    config["engine"]["poison_tokens"] = 500
    config["engines"]["max_restarts"] = 3
    code, log = submit(config)
    assert code == 0, log
    rows, engines = results(tmp_path / "out")
    assert {doc_id for doc_id, row in rows.items() if row["status"] == "ok"} == FABLES - {"fable-4"}
    assert rows["fable-4"]["status"] == "error"
    assert "its engine died 2 times running it alone: engine-" in rows["fable-4"]["error"]
    assert sum(engine["deaths"] for engine in engines) == 3
