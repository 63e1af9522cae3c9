"""What a second run on the same folder does, and what the merged view then shows."""

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.commit import Committer
from arkv_sglang.batch.config import OutputConfig
from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.merge import write_merged
from arkv_sglang.batch.resume import Ledger, hash_document
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.types import BadDocument, Document, Row, RunFailed

from .fakes import FakePrompts, QuietEngine
from .runs import configured, run


def documents(*texts: str) -> list[Any]:
    return [Document(f"d{n}", text) for n, text in enumerate(texts)]


def seen(out: Path, source: list[Any], engine: QuietEngine | None = None, **sections: Any) -> set:
    """Run, and say which documents the engine was given."""
    engine = engine or QuietEngine()
    run(out, [engine], source, **sections)
    return set(engine.seen)


def view(out: Path, name: str = "summaries") -> dict[str, dict[str, Any]]:
    rows = pq.read_table(out / f"{name}.parquet").to_pylist()
    assert len({row["doc_id"] for row in rows}) == len(rows)
    return {row["doc_id"]: row for row in rows}


def test_order_and_more_input_change_nothing(tmp_path: Path) -> None:
    source = documents("a", "b", "c")
    assert seen(tmp_path, source) == {"d0", "d1", "d2"}
    source = [Document("new", "n"), *reversed(source)]
    assert seen(tmp_path, source) == {"new"}
    assert view(tmp_path).keys() == {"new", "d0", "d1", "d2"}
    # Nothing is left to do, and so nobody waits for an engine.
    assert seen(tmp_path, source, QuietEngine(start_s=3600)) == set()
    assert len(view(tmp_path)) == 4


def test_a_text_or_title_that_changed_is_another_document(tmp_path: Path) -> None:
    first, second = [Document("d", "one", "title")], [Document("d", "two", "title")]
    for source, fresh in ((first, 1), (second, 1), ([Document("d", "one", "other")], 1)):
        assert len(seen(tmp_path, source)) == fresh
        assert view(tmp_path)["d"]["doc_hash"] == hash_document(source[0])
    # One that is as it was needs no work, and its row is the one shown again.
    assert seen(tmp_path, first) == set()
    assert view(tmp_path)["d"]["doc_hash"] == hash_document(first[0])


def test_documents_that_the_input_has_no_more_are_not_in_the_view(tmp_path: Path) -> None:
    run(tmp_path, [QuietEngine()], [*documents("a", "b"), BadDocument("file#9", "empty")])
    report, said = run(tmp_path, [QuietEngine()], [*documents("a"), BadDocument("file#1", "empty")])
    assert view(tmp_path).keys() == {"d0", "file#1"}
    assert report["totals"]["documents"]["all"] == 2
    assert "left in summaries/ only, not being in this input: 2 documents" in said
    assert set(pq.read_table(tmp_path / "summaries")["doc_id"].to_pylist()) >= {"d1", "file#9"}


def test_an_input_without_documents_has_an_empty_view(tmp_path: Path) -> None:
    run(tmp_path, [QuietEngine()], documents("a"))
    report, _ = run(tmp_path, [QuietEngine()], [])
    assert report["totals"]["documents"]["all"] == 0 and view(tmp_path) == {}


def test_another_configuration_has_rows_of_its_own(tmp_path: Path) -> None:
    other = {"sampling": {"max_new_tokens": 11}}
    assert len(seen(tmp_path, documents("a", "b"))) == 2
    hashes = {row["config_hash"] for row in view(tmp_path).values()}
    assert len(seen(tmp_path, documents("a", "b"), **other)) == 2
    assert not hashes & {row["config_hash"] for row in view(tmp_path).values()}
    assert pq.read_table(tmp_path / "summaries").num_rows == 4
    assert seen(tmp_path, documents("a", "b")) == set()
    assert hashes == {row["config_hash"] for row in view(tmp_path).values()}
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["config_hash"] in hashes and len(manifest["configs"]) == 2
    assert [a["config_hash"] in hashes for a in manifest["attempts"]] == [True, False, True]


def test_failures_are_tried_again_as_asked(tmp_path: Path) -> None:
    source = [*documents("a", "b", "unrenderable", "x" * 2000), BadDocument("bad", "empty")]
    failing = {"run": {"max_failure_rate": 1.0}}
    run(tmp_path, [QuietEngine(fails=frozenset({"d1"}))], source, **failing)
    assert {i: row["status"] for i, row in view(tmp_path, "dead_letter").items()} == {
        "d1": "error",
        "d2": "invalid",
        "d3": "too_long",
        "bad": "invalid",
    }
    assert seen(tmp_path, source, output={"retry": []}, **failing) == set()
    refusing = QuietEngine(fails=frozenset({"d1"}))
    assert seen(tmp_path, source, refusing, **failing) == {"d1"}
    assert view(tmp_path, "dead_letter")["d1"]["attempts"] == 2
    assert view(tmp_path, "dead_letter")["d3"]["attempts"] == 1
    report, _ = run(tmp_path, [QuietEngine()], source, **failing)
    assert view(tmp_path)["d1"]["summary"] == "summary of d1"
    assert "d1" not in view(tmp_path, "dead_letter")
    assert report["totals"]["documents"]["ok"] == 2
    assert report["totals"]["documents_of_attempt"]["all"] == 1
    assert {row["doc_id"] for row in report["failures"]} == {"d2", "d3", "bad"}
    run(tmp_path, [QuietEngine()], source, output={"retry": ["too_long"]}, **failing)
    assert view(tmp_path, "dead_letter")["d3"]["attempts"] == 2


def test_a_success_counts_whatever_came_after_it(tmp_path: Path) -> None:
    """A driver that was fenced off may land a part when another has done the same documents."""
    config = OutputConfig(dir=str(tmp_path))
    ledger = Ledger("config")
    list(ledger.unfinished(iter(documents("a", "b", "c"))))
    rows = [("ok", "old", "error"), ("error", "ok", "error"), ("ok", "error", "error")]
    for status, *others in zip(*rows, strict=True):
        with closing(OutputFolder(config)) as folder:
            committer = Committer(folder, ledger, config)
            for doc_id, each in zip(("d0", "d1", "d2"), (status, *others), strict=True):
                committer.add(Row(doc_id, each if each != "old" else "ok", summary=folder.attempt))
            committer.commit()
            write_merged(folder, ledger)
            attempt = folder.attempt
    shown = view(tmp_path)
    assert {i: row["status"] for i, row in shown.items()} == {"d0": "ok", "d1": "ok", "d2": "ok"}
    assert shown["d0"]["summary"] < attempt


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    run(tmp_path, [QuietEngine()], documents("a"))
    (part,) = (tmp_path / "summaries").iterdir()
    whole = part.read_bytes()
    part.write_bytes(whole[:-50])
    with pytest.raises(RunFailed, match=rf"part files that can be read, .*{part.name}") as caught:
        run(tmp_path, [QuietEngine()], documents("a"))
    assert "\n" not in str(caught.value)
    part.unlink()
    assert seen(tmp_path, documents("a")) == {"d0"}


def test_a_part_that_vanishes_in_mid_run_is_missed(tmp_path: Path) -> None:
    class Eraser(QuietEngine):
        async def generate(self, request: Any) -> Any:
            for part in (tmp_path / "summaries").iterdir():
                part.unlink()
            return await super().generate(request)

    run(tmp_path, [QuietEngine()], documents("a"))
    with pytest.raises(RunFailed, match="each of 2 documents must have a row, got 1 in "):
        run(tmp_path, [Eraser()], documents("a", "b"))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["attempts"][-1]["outcome"] == "failed"
    assert manifest["attempts"][-1]["reason"].startswith("each of 2 documents must have a row")


def test_a_manifest_of_another_form_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[1]")
    config, made = configured(tmp_path), []

    def make_engines() -> list[Any]:
        made.append(QuietEngine())
        return made

    with (
        closing(OutputFolder(config.output)) as folder,
        pytest.raises(RunFailed, match="must hold a manifest as this job writes it"),
    ):
        asyncio.run(
            run_job(config, make_engines, iter(documents("a")), FakePrompts(), folder, print)
        )
    assert (tmp_path / "manifest.json").read_text() == "[1]" and not made
