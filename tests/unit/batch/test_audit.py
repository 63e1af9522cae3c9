"""What compression cost: which documents are done again, how, and what is said of it."""

import asyncio
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.audit_choice import choose
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.types import BadDocument, Document, EngineInfo, RunFailed
from arkv_sglang.config import ConfigError

from .audits import Answering, Job, documents
from .runs import configured

ALL = {"audit": {"fraction": 1.0}}


def test_a_share_is_drawn_the_same_in_any_order() -> None:
    doc_ids = [f"d{n}" for n in range(200)]
    drawn = choose(doc_ids, 0.07, seed=1)
    assert len(drawn) == len(set(drawn)) == 14
    shuffled = random.Random(0).sample(doc_ids, len(doc_ids))
    assert choose(shuffled, 0.07, seed=1) == drawn != choose(doc_ids, 0.07, seed=2)
    # More of them are those and others, and one is always drawn.
    assert choose(doc_ids, 0.5, seed=1)[:14] == drawn
    assert len(choose(doc_ids, 0.001, seed=1)) == 1 and choose([], 0.5, seed=1) == []
    assert sorted(choose(doc_ids, 1.0, seed=1)) == sorted(doc_ids)


def test_an_audit_compares_and_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    def full_kv(doc_id: str) -> str:
        return f"summary of {doc_id}" if int(doc_id[1:]) % 2 else f"quite <other> {doc_id}"

    job = Job(tmp_path, documents(40), full_kv=full_kv)
    report = job.run()
    assert json.loads((tmp_path / "report.json").read_text()) == report
    audit, lines = report["audit"], job.lines
    assert audit["documents"] == {"chosen": 10, "compared": 10} and audit["documents_ok"] == 40
    assert {line["is_equal"] for line in lines} == {True, False}
    assert audit["equal_ratio"] == sum(line["is_equal"] for line in lines) / 10
    for line in lines:
        assert line["summary"] == f"summary of {line['doc_id']}"
        assert line["full_kv_summary"] == line["again_summary"] == full_kv(line["doc_id"])
        assert line["is_equal"] or line["rouge_l"] == pytest.approx(1 / 3)
    assert audit["noise"]["documents"] == 10 and audit["noise"]["equal_ratio"] == 1
    assert "quite &lt;other&gt; d" in (tmp_path / "report.html").read_text()
    # The run is as it would be without.
    assert report["totals"]["documents"]["all"] == 40
    assert report["totals"]["documents"] == report["totals"]["documents_of_attempt"]
    assert pq.read_table(tmp_path / "summaries").num_rows == 40
    hashes = {line["full_kv_config_hash"] for line in lines}
    assert set(pq.read_table(tmp_path / "audit")["config_hash"].to_pylist()) == hashes
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert hashes | {manifest["config_hash"]} == set(manifest["configs"])
    assert manifest["attempts"][0]["documents"] == {"ok": 40}
    assert any(line.startswith("audit: 10 of 10 compared; ROUGE-L mean 0.") for line in job.said)
    assert any("] audit: 10/10 documents, 0 failed" in line for line in job.said)


def test_the_engines_are_those_of_the_run_without_compression(tmp_path: Path) -> None:
    engine = {"kv_policy_config": {"budget": 0.25}, "max_total_tokens": 7}
    job = Job(tmp_path, documents(8), sections={"engine": engine, "engines": {"count": 3}})
    report = job.run()
    [config] = job.made
    assert config.engine == {
        "model_path": "some/model",
        "kv_policy": "none",
        "max_total_tokens": 7,
    }
    # No more than there are documents, which are two.
    assert config.engines.count == 2 == report["audit"]["full_kv"]["engines"]
    assert len(job.answered) == 2 * 2
    assert report["audit"]["full_kv"]["tokens_per_s"] > 0


def test_without_an_audit_nothing_tells_of_one(tmp_path: Path) -> None:
    job = Job(tmp_path, documents(8), sections={"audit": {"fraction": 0.0}})
    assert job.run()["audit"] is None and not job.made
    assert not (tmp_path / "audit").exists() and not (tmp_path / "audit.parquet").exists()


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    first = Job(tmp_path, documents(40))
    audit = first.run()["audit"]
    drawn = {line["doc_id"] for line in first.lines}
    # In another order.
    again = Job(tmp_path, documents(40)[::-1])
    repeated = again.run()["audit"]
    assert not again.made and repeated["full_kv"] is None
    for name in ("rouge_l", "noise", "documents", "worst"):
        assert repeated[name] == audit[name]
    more = Job(tmp_path, documents(40), sections={"audit": {"fraction": 0.5}})
    assert more.run()["audit"]["documents"]["compared"] == 20
    assert drawn < {line["doc_id"] for line in more.lines}
    assert not drawn & set(more.engines[0].seen[:10])


def test_a_text_that_changed_is_audited_anew(tmp_path: Path) -> None:
    job = Job(tmp_path, documents(4), sections=ALL)
    job.run()
    source = [Document("d0", "another text"), *documents(4)[1:]]
    changed = Job(tmp_path, source, sections=ALL)
    assert changed.run()["audit"]["documents"] == {"chosen": 4, "compared": 4}
    assert set(changed.answered) == {"d0"}


def test_a_document_that_full_kv_cannot_hold_is_counted(tmp_path: Path) -> None:
    class Small(Answering):
        async def start(self) -> EngineInfo:
            return EngineInfo(context_tokens=1000, capacity_tokens=60, device="fake")

    class SmallJob(Job):
        def make_engines(self, config: Any) -> list[Any]:
            return [Small("audit-0", self.full_kv)]

    job = SmallJob(tmp_path, documents(40), sections=ALL)
    report = job.run()
    # 60 tokens less 10 for the answer and 8 for safety hold the texts of 20 to 42.
    assert report["audit"]["documents"] == {"chosen": 40, "compared": 23, "too_long": 17}
    errors = {line["error"] for line in job.lines if line["status"] == "too_long"}
    assert len(errors) == 17 and all("KV memory for 60 tokens" in error for error in errors)
    tmp_path = tmp_path / "second"
    with pytest.raises(RunFailed, match=r"none of 5 documents could be compared \(5 too_long\)"):
        SmallJob(tmp_path, documents(40)[35:], sections=ALL).run()
    assert_complete_without_audit(tmp_path, 5, "none of 5 documents could be compared")


def assert_complete_without_audit(out: Path, num_ok: int, reason: str) -> None:
    report = json.loads((out / "report.json").read_text())
    assert report["totals"]["documents"]["ok"] == num_ok
    assert report["audit"]["outcome"] == "not_run" and reason in report["audit"]["reason"]
    assert "There is no audit: " in (out / "report.html").read_text()
    assert pq.read_table(out / "summaries.parquet").num_rows == num_ok
    attempt = json.loads((out / "manifest.json").read_text())["attempts"][-1]
    assert attempt["outcome"] == "failed" and "the audit failed" in attempt["reason"]


def test_an_audit_whose_engines_do_not_start_leaves_all_else_complete(tmp_path: Path) -> None:
    job = Job(tmp_path, documents(8), more={"starts": False})
    with pytest.raises(RunFailed) as caught:
        job.run()
    assert str(caught.value) == (
        "the audit failed, and all else is complete: no engine started: audit-0 could not start; "
        "run again to repeat it, or pass --set audit.fraction=0"
    )
    assert_complete_without_audit(tmp_path, 8, "no engine started: audit-0 could not start")
    again = Job(tmp_path, documents(8))
    assert again.run()["audit"]["documents"]["compared"] == 2 and len(again.made) == 1


def test_an_input_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    class GoneJob(Job):
        def reopen(self, doc_ids: Any) -> Any:
            raise ConfigError("input.path must exist, got 's3://me:LEAK@b'")

    with pytest.raises(RunFailed, match=r"^the audit failed, and all else is complete: the"):
        GoneJob(tmp_path, documents(8)).run()
    assert_complete_without_audit(tmp_path, 8, "the input cannot be read again")
    assert "LEAK" not in (tmp_path / "report.json").read_text()


def test_a_document_that_is_not_the_same_any_more_is_missing(tmp_path: Path) -> None:
    class ChangingJob(Job):
        def reopen(self, doc_ids: Any) -> Any:
            changed = [BadDocument("d0", "unreadable"), Document("d1", "other"), self.source[2]]
            return (document for document in changed if document.doc_id in doc_ids)

    job = ChangingJob(tmp_path, documents(4), sections=ALL)
    assert job.run()["audit"]["documents"] == {"chosen": 4, "compared": 1, "missing": 3}
    assert set(job.answered) == {"d2"}


def test_requests_that_ask_for_chance_are_not_compared(tmp_path: Path) -> None:
    source = [
        Document("plain", "text"),
        Document("warm", "text", sampling={"temperature": 0.7}),
        Document("one", "text", sampling={"temperature": 0.7, "top_k": 1}),
    ]
    job = Job(tmp_path, source, sections=ALL)
    report = job.run()
    assert report["audit"]["documents"] == {"chosen": 3, "compared": 2, "invalid": 1}
    assert set(job.answered) == {"one", "plain"}
    [line] = [line for line in job.lines if line["doc_id"] == "warm"]
    assert line["error"] == "its sampling is random, so two answers differ without compression, too"
    again = Job(tmp_path, source, sections=ALL)
    assert again.run()["audit"]["documents"] == report["audit"]["documents"] and not again.made


def test_a_run_that_failed_is_not_audited(tmp_path: Path) -> None:
    source = [*documents(3), BadDocument("bad", "empty")]
    job = Job(tmp_path, source, sections=ALL | {"run": {"max_failure_rate": 0.1}})
    report = job.run()
    assert report["audit"]["outcome"] == "not_run" and not job.made
    assert report["audit"]["reason"] == "the run ended before it did; run again"
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["attempts"][-1]["reason"].startswith("1 of 4 documents failed")


def test_a_low_likeness_is_a_warning_in_log_page_and_report(tmp_path: Path) -> None:
    job = Job(tmp_path, documents(8), full_kv="nothing like it {}".format)
    report = job.run()
    assert report["audit"]["warning"].startswith("summaries with arkv and with full KV have a mean")
    assert f"audit: WARNING: {report['audit']['warning']}" in job.said
    assert "Quality: summaries with arkv" in (tmp_path / "report.html").read_text()
    threshold = {"audit": {"fraction": 0.25, "warn_below_rouge_l": 0.0}}
    assert Job(tmp_path, documents(8), sections=threshold).run()["audit"]["warning"] is None


def test_second_answers_are_as_many_as_asked_for(tmp_path: Path) -> None:
    audit = {"fraction": 1.0, "repeat_documents": 3}
    job = Job(tmp_path, documents(8), sections={"audit": audit})
    assert job.run()["audit"]["noise"]["documents"] == 3 and len(job.answered) == 8 + 3
    none = Job(tmp_path / "none", documents(8), sections={"audit": audit | {"repeat_documents": 0}})
    assert none.run()["audit"]["noise"] is None and len(none.answered) == 8


def test_a_comparison_stands_without_second_answers(tmp_path: Path) -> None:
    sections = {"audit": {"fraction": 0.5, "repeat_documents": 0}}
    Job(tmp_path, documents(8), sections=sections).run()
    sections["audit"]["repeat_documents"] = 2
    job = Job(tmp_path, documents(8), sections=sections, more={"starts": False})
    audit = job.run()["audit"]
    assert audit["outcome"] == "done" and audit["documents"]["compared"] == 4
    assert audit["noise"] is None and job.answered == []
    said = "audit: not all answers of full KV were made once more: no engine started: audit-0"
    assert any(line.startswith(said) for line in job.said)


def test_an_engine_that_dies_in_the_audit_is_as_in_a_run(tmp_path: Path) -> None:
    class PoisonedJob(Job):
        def make_engines(self, config: Any) -> list[Any]:
            poison = frozenset({"d3"})
            self.engines = [Answering("audit-0", self.full_kv, poison=poison)]
            return self.engines

    job = PoisonedJob(tmp_path, documents(8), sections=ALL)
    report = job.run()
    assert report["audit"]["documents"] == {"chosen": 8, "compared": 7, "error": 1}
    [line] = [line for line in job.lines if line["status"] == "error"]
    assert "died 2 times running it alone" in line["error"]
    # What failed is tried again, and nothing else.
    again = Job(tmp_path, documents(8), sections=ALL)
    assert again.run()["audit"]["documents"] == {"chosen": 8, "compared": 8}
    assert set(again.answered) == {"d3"}


def test_an_audit_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    class StoppedJob(Job):
        def make_engines(self, config: Any) -> list[Any]:
            self.engines = [Slow("audit-0", self.full_kv)]
            return self.engines

    class Slow(Answering):
        async def generate(self, request: Any) -> Any:
            if len(self.seen) >= 5:
                await asyncio.sleep(3600)
            return await super().generate(request)

    async def stopped() -> None:
        task = asyncio.ensure_future(job.start())
        while sum(len(engine.seen) for engine in job.engines) < 5:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    job = StoppedJob(tmp_path, documents(16), sections=ALL)
    asyncio.run(stopped())
    done = pq.read_table(tmp_path / "audit")["doc_id"].to_pylist()
    assert len(done) == 5
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["totals"]["documents"]["ok"] == 16
    assert report["audit"]["reason"] == "the run ended before it did; run again"
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["attempts"][-1]["outcome"] == "stopped"
    again = Job(tmp_path, documents(16), sections=ALL)
    assert again.run()["audit"]["documents"]["compared"] == 16
    # The other eleven, and all once more.
    assert len(again.answered) == 11 + 16
    attempts = set(pq.read_table(tmp_path / "audit")["attempt"].to_pylist())
    assert len({attempt[:5] for attempt in attempts}) == 2


def test_what_is_replaced_goes_with_its_audit(tmp_path: Path) -> None:
    Job(tmp_path, documents(8), sections=ALL).run()
    off = {"audit": {"fraction": 0.0}, "output": {"existing": "replace"}}
    Job(tmp_path, documents(2), sections=off).run()
    assert not list(tmp_path.glob("audit*/*")) and not (tmp_path / "audit.parquet").exists()


def test_metrics_of_an_audit_are_not_those_of_the_run(tmp_path: Path) -> None:
    rows: dict[str, int] = {}

    class Counting:
        def __init__(self, run_id: str) -> None:
            self.run_id = run_id

        def row(self, row: Any) -> None:
            rows[self.run_id] = rows.get(self.run_id, 0) + 1

        def state(self, state: Any) -> None: ...

        def sample(self, engine: str, figures: Any) -> None: ...

    run_id = Job(tmp_path, documents(8), make_mirror=Counting).run()["run"]["id"]
    assert rows == {run_id: 8, f"{run_id}-audit": 2, f"{run_id}-audit_again": 2}


def test_only_what_is_asked_for_is_read_again(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.html").write_text(f"<p>text of {name}</p>")
    (tmp_path / "b.html").write_bytes(b"\xff\xfe\x00")
    config = configured(tmp_path, input={"path": str(tmp_path), "format": "text", "limit": 2})
    reopen = partial(open_documents, config.input, ())
    assert [document.doc_id for document in reopen({"c.html", "a.html"})] == ["a.html", "c.html"]
    lines = ['{"doc_id": "d1", "text": "one"}', "{", '{"doc_id": "d1", "text": "two"}']
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    config = configured(tmp_path, input={"path": str(tmp_path / "d.jsonl")})
    assert list(open_documents(config.input, (), {"d1"})) == [Document("d1", "one")]
