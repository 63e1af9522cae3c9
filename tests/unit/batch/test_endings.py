"""Ends that a run does not choose: exit code, one sentence, and nothing lost."""

import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from .drivers import Driver, Plan, finish

# What ``ray job stop`` leaves.
KILL_AFTER_S = 3


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    rows = [{"doc_id": f"d{n}", "text": f"text {n:03}"} for n in range(60)]
    rows.append({"doc_id": "huge", "text": "huge"})
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Plan(path, tmp_path / "out", document_s=0.01)


def committed(out: Path) -> list[str]:
    """Reads every part whole, so that a damaged one is an error."""
    return [row["doc_id"] for row in pq.read_table(out / "summaries").to_pylist()]


def make_read_only(out: Path) -> None:
    (out / "summaries").chmod(0o555)


def move_away(out: Path) -> None:
    out.rename(out.with_name("moved"))


def put_a_file_there(out: Path) -> None:
    (out / "summaries").rename(out / "moved")
    (out / "summaries").touch()


@pytest.mark.parametrize(
    ("damage", "where", "reason"),
    [
        (make_read_only, "out/summaries", "Permission denied"),
        (move_away, "moved/summaries", "No such file or directory|does not exist"),
        (put_a_file_there, "out/moved", "Not a directory"),
    ],
)
def test_a_folder_that_fails_in_mid_run_ends_it(
    plan: Plan, tmp_path: Path, damage: Callable[[Path], None], where: str, reason: str
) -> None:
    driver = Driver(plan)
    driver.until_committed(parts=2)
    damage(plan.out)
    assert driver.wait() == 1
    ends_with_a_sentence(driver.log, reason)
    parts = list((tmp_path / where).glob("*.parquet"))
    assert len(parts) >= 2 and all(pq.read_table(part).num_rows == 7 for part in parts)


def test_a_full_disk_ends_it_and_a_new_run_goes_on(plan: Plan) -> None:
    code, log = finish(replace(plan, max_file_bytes=100_000))
    assert code == 1
    ends_with_a_sentence(log, "File too large")
    before = committed(plan.out)
    assert len(before) >= 50 and "huge" not in before
    assert not list(plan.out.rglob("*.tmp"))
    code, log = finish(plan)
    assert code == 0, log
    assert sorted(committed(plan.out)) == sorted({*(f"d{n}" for n in range(60)), "huge"})


def ends_with_a_sentence(log: str, reason: str) -> None:
    sentence = log.splitlines()[-1]
    assert sentence.startswith("output.dir must stay "), log
    assert any(each in sentence for each in reason.split("|")), log
    assert "Traceback" not in log


def test_sigterm_commits_thousands_of_rows_before_ray_kills_the_driver(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    rows = ({"doc_id": f"d{n}", "text": f"text {n:05}"} for n in range(20_000))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = {"rows_per_part": 1_000_000, "part_period_s": 1000}
    plan = Plan(path, tmp_path / "out", output=output, document_s=0, window_docs=64)
    driver = Driver(plan)
    driver.until_said("answered d5000\n")
    sent = time.monotonic()
    driver.send(signal.SIGTERM)
    assert driver.wait() == 143
    assert time.monotonic() - sent < KILL_AFTER_S
    assert len(committed(plan.out)) >= 5000


def test_sigterm_commits_what_is_done(plan: Plan) -> None:
    plan = replace(plan, output={"rows_per_part": 1000})
    driver = Driver(replace(plan, document_s=0.2))
    driver.until_said("answered")
    assert not list((plan.out / "summaries").iterdir())
    driver.send(signal.SIGTERM)
    assert driver.wait() == 143
    assert driver.log.endswith("the documents that were done are committed, run again to resume\n")
    done = committed(plan.out)
    assert 0 < len(done) < 61
    code, log = finish(plan)
    assert code == 0 and f"resuming: {len(done)} documents done" in log
    attempts = json.loads((plan.out / "manifest.json").read_text())["attempts"]
    assert [a["outcome"] for a in attempts] == ["stopped", "succeeded"]
    assert [sum(a["documents"].values()) for a in attempts] == [len(done), 61 - len(done)]
    assert attempts[1]["documents_skipped"] == len(done)
