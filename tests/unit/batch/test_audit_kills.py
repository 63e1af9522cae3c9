"""Drivers that end in mid-audit."""

import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from .drivers import Driver, Plan, finish


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    rows = [{"doc_id": f"d{n}", "text": f"text {n:03}"} for n in range(60)]
    rows.append({"doc_id": "poison", "text": "poison"})
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    audit = {"fraction": 0.7, "repeat_documents": 9}
    return Plan(path, tmp_path / "out", audit=audit, document_s=0.02)


def test_whenever_its_driver_is_killed_an_audit_is_done_once(plan: Plan) -> None:
    rng = random.Random(0)
    ended = []
    # The poison makes the run an error row each time, which the audit never sees.
    assert finish(Plan(plan.corpus, plan.out))[0] == 0
    while 0 not in ended:
        assert len(ended) < 60
        driver = Driver(plan)
        driver.until_said("audit: ")
        time.sleep(rng.uniform(0, 0.15) if len(ended) < 20 else 0)
        if len(ended) < 20:
            driver.send(rng.choice((signal.SIGKILL, signal.SIGTERM)))
        ended.append(driver.wait())
        assert ended[-1] in (0, -signal.SIGKILL, 128 + signal.SIGTERM), driver.log
    assert len(ended) > 3
    lines = pq.read_table(plan.out / "audit.parquet").to_pylist()
    assert [line["status"] for line in lines] == ["compared"] * 42
    assert sum(line["again_rouge_l"] is not None for line in lines) == 9
    for folder, count in (("audit", 42), ("audit_again", 9)):
        done = Counter(pq.read_table(plan.out / folder)["doc_id"].to_pylist())
        assert len(done) == count and set(done.values()) == {1}
    report = json.loads((plan.out / "report.json").read_text())
    assert report["audit"]["documents"] == {"chosen": 42, "compared": 42}
    assert report["totals"]["documents"]["all"] == 61
    done = Counter(pq.read_table(plan.out / "summaries")["doc_id"].to_pylist())
    assert all(count == 1 for doc_id, count in done.items() if doc_id != "poison")
    assert not list(plan.out.rglob("*.tmp"))


def test_sigterm_in_mid_audit_commits_what_is_done(plan: Plan) -> None:
    driver = Driver(plan)
    driver.until_said("summaries are compared with those of full KV")
    answered = driver.log.count("answered")
    while driver.log.count("answered") < answered + 5:
        time.sleep(0.005)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 143
    done = pq.read_table(plan.out / "audit")["doc_id"].to_pylist()
    assert 3 <= len(done) < 42
    assert pq.read_table(plan.out / "summaries.parquet").num_rows == 61
    attempts = json.loads((plan.out / "manifest.json").read_text())["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["stopped"]
    code, log = finish(plan)
    assert code == 0, log
    assert f"42 of 60 summaries are compared with those of full KV, {42 - len(done)} are" in log
