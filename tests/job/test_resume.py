"""A driver that is killed, and the job submitted again. The engine is a stand-in."""

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

from .test_deaths import FABLES

Submit = Callable[[dict[str, Any]], tuple[int, str]]
pytestmark = pytest.mark.timeout(900)


def kill_the_driver(cluster: LocalRay, out: Path) -> None:
    """Once it has committed something."""
    deadline = time.monotonic() + 600
    while len(list(out.glob("summaries/*.parquet"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == str(cluster.folder)
            if ours and process.cmdline()[1:2] == ["jobs/longdoc.py"]:
                return process.kill()
        except psutil.Error:
            continue


def test_a_job_whose_driver_was_killed_is_resumed_by_submitting_it_again(
    submit: Submit, config: dict[str, Any], cluster: LocalRay, tmp_path: Path
) -> None:
    config["engines"] |= {"count": 1, "window_docs": 1}
    config["engines"]["env"]["PYTHONPATH"] = str(Path(__file__).parent / "standin")
    config["output"] |= {"existing": "resume", "rows_per_part": 1}
    out = tmp_path / "out"
    killer = threading.Thread(target=kill_the_driver, args=(cluster, out), daemon=True)
    killer.start()
    code, _ = submit(config)
    killer.join(timeout=5)
    assert code == 1 and not (out / "summaries.parquet").exists()
    done = set(pq.read_table(out / "summaries", columns=["doc_id"])["doc_id"].to_pylist())
    assert 0 < len(done) < 8
    code, said = submit(config)
    assert code == 0, said
    assert f"resuming: {len(done)} documents done" in said
    rows = pq.read_table(out / "summaries.parquet").to_pylist()
    assert len(rows) == 8 and {r["doc_id"] for r in rows if r["status"] == "ok"} == FABLES
    parts = pq.read_table(out / "summaries", columns=["doc_id"])["doc_id"].to_pylist()
    assert len(parts) == len(set(parts)) == 8
    attempts = json.loads((out / "manifest.json").read_text())["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["died", "succeeded"]
