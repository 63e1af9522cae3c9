"""The job as a user runs it: ``ray job submit``, two real engines, a real model."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.local_ray import MARK, LocalRay

Submit = Callable[..., tuple[int, str]]
# Starting two engines takes a minute on two free cores, and several on busy ones.
pytestmark = pytest.mark.timeout(1200)

ROOT = Path(__file__).parents[2]
FABLES = {f"fable-{n}" for n in range(5)}


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    rows = pq.read_table(out / "summaries").to_pylist()
    assert len({row["doc_id"] for row in rows}) == len(rows)
    return {row["doc_id"]: row for row in rows}


def test_every_document_gets_a_row_and_the_run_a_report(
    submit: Submit, config: dict[str, Any], tmp_path: Path
) -> None:
    # Every document is longer than min_tokens, so that every answer has a view.
    budget = {"budget": 0.25, "min_tokens": 64, "sinks": 2, "window": 14}
    config["engine"] |= {"kv_policy": "arkv", "kv_policy_config": budget}
    code, log = submit(config)
    assert code == 0, log
    out = tmp_path / "out"
    rows = rows_of(out)
    assert {i: r["status"] for i, r in rows.items()} == dict.fromkeys(FABLES, "ok") | {
        "long": "too_long",
        "empty": "invalid",
        "documents.jsonl#8": "invalid",
    }
    assert "8192" in rows["long"]["error"]
    for fable in FABLES:
        row = rows[fable]
        assert row["summary"] and row["finish_reason"] in ("stop", "length")
        assert 0 < row["output_tokens"] <= 16 < row["prompt_tokens"]
        assert 0 < row["ttft_s"] <= row["e2e_s"]
        assert row["kv_times_planned"] >= 1 and row["kv_rows_evicted"] > 0
    report = json.loads((out / "report.json").read_text())
    assert report["totals"]["documents"] == {
        "ok": 5,
        "too_long": 1,
        "invalid": 2,
        "error": 0,
        "all": 8,
    }
    assert len(report["engines"]) == 2
    for engine in report["engines"]:
        assert engine["weights_bytes"] > 100e6 and engine["peak_rss_bytes"] > 500e6
        assert engine["arena_bytes"] > 100e6 and engine["overhead_bytes"] > 0
        assert engine["peak_kv_bytes"] > 0
    assert "data:image/svg+xml;base64," in (out / "report.html").read_text()
    assert f"{out}/report.html" in log and "peak KV bf16" in log
    assert not list(out.rglob("*.tmp"))


@pytest.mark.soak  # the short ring kills stand-in engines (test_deaths)
def test_a_killed_scheduler_loses_no_document(
    submit: Submit, config: dict[str, Any], cluster: LocalRay, tmp_path: Path
) -> None:
    config["engines"]["max_restarts"] = 0
    config["sampling"] |= {"max_new_tokens": 200, "ignore_eos": True}
    killer = threading.Thread(
        target=kill_one_scheduler, args=(cluster, tmp_path / "job.log"), daemon=True
    )
    killer.start()
    code, log = submit(config)
    killer.join(timeout=5)
    assert code == 0, log
    rows = rows_of(tmp_path / "out")
    assert {i for i, r in rows.items() if r["status"] == "ok"} == FABLES
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert sorted(engine["deaths"] for engine in report["engines"]) == [0, 1], log
    assert sum(engine["gone"] is not None for engine in report["engines"]) == 1


def kill_one_scheduler(cluster: LocalRay, log: Path) -> None:
    """SIGKILL one engine's scheduler while both engines have documents in flight."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        if log.exists() and "2/2 engines up, 5 in flight" in log.read_text():
            break
        time.sleep(0.2)
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == str(cluster.folder)
            if ours and process.name().startswith("sglang::schedul"):
                process.kill()
                return
        except psutil.Error:
            continue


@pytest.mark.soak  # the short ring kills stand-in engines (test_deaths)
def test_an_engine_that_cannot_start_fails_the_run_in_one_sentence(
    submit: Submit, config: dict[str, Any]
) -> None:
    config["engine"]["no_such_argument"] = 1
    code, log = submit(config)
    assert code != 0
    assert "longdoc: no engine started: engine-0 could not start: " in log
    assert "no_such_argument" in log


def job(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program itself, outside a cluster."""
    command = [sys.executable, "jobs/longdoc.py", "--config", "configs/demo.yaml", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_dry_run_needs_no_cluster_and_writes_nothing(
    model: Path, documents: Path, tmp_path: Path
) -> None:
    settings = (f"input.path={documents}", f"engine.model_path={model}", "input.format=auto")
    arguments = [f"--set={setting}" for setting in (*settings, f"output.dir={tmp_path}/out")]
    before = sorted(tmp_path.rglob("*"))
    ended = job(*arguments, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    words = " ".join(ended.stdout.split())
    assert "documents 8 that fit 5 too long (over 8,136 tokens) 1 invalid 2" in words
    assert "quantized, arkv (configured) 0.25" in words
    assert "12,000 tokens in bf16 (engine.max_total_tokens)" in words
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.soak  # one engine more, for what the unit tests do with fake ones
def test_a_probe_estimates_the_time_on_one_engine(
    submit: Submit, config: dict[str, Any], tmp_path: Path
) -> None:
    code, log = submit(config, "--dry-run", "--probe", "2")
    assert code == 0, log
    assert "Time, from a probe of 2 documents" in log and "in all, about" in log
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("engines.cuont=2", "engines.cuont must be a known key, got an unknown one; "),
        ("engine.model_path=/no/model", "engine.model_path must be a folder that exists, "),
    ],
)
def test_a_wrong_configuration_ends_before_ray_is_touched(
    override: str, sentence: str, model: Path, documents: Path, tmp_path: Path
) -> None:
    good = (f"input.path={documents}", f"engine.model_path={model}", f"output.dir={tmp_path}/out")
    arguments = [f"--set={setting}" for setting in (*good, "input.format=auto", override)]
    ended = job(*arguments)
    assert ended.returncode == 2, ended.stderr
    assert f"longdoc: {sentence}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()
