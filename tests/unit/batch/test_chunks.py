"""The table of chunks: what a run leaves there, and what another one takes from it."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.schema import CHUNK_SCHEMA
from arkv_sglang.batch.types import Document, Request, Result
from arkv_sglang.config import ConfigError

from .fakes import FakeEngine, FakePrompts, QuietEngine
from .runs import configured, run

LONG = "".join(f"Line {n:04}. " for n in range(327))
SOURCE = [Document("long", LONG), Document("short", "Short.")]
MAP_REDUCE: dict[str, Any] = {"strategy": {"kind": "map_reduce"}}
REFINE: dict[str, Any] = {"strategy": {"kind": "refine"}}


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    rows = pq.read_table(out / "summaries.parquet").to_pylist()
    return {row["doc_id"]: row for row in rows}


def chunks_of(out: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(out / "chunks").to_pylist())


def test_every_request_of_a_document_in_chunks_is_in_the_table(tmp_path: Path) -> None:
    report, _ = run(tmp_path, [FakeEngine("a"), FakeEngine("b")], SOURCE, **MAP_REDUCE)
    row, short = rows_of(tmp_path)["long"], rows_of(tmp_path)["short"]
    assert (row["strategy"], row["n_chunks"], row["truncated"]) == ("map_reduce", 4, False)
    assert (short["strategy"], short["n_chunks"], short["truncated"]) == ("single", 1, False)
    assert (row["n_cut_short"], short["n_cut_short"]) == (0, 0)
    chunks = chunks_of(tmp_path)
    assert pq.read_schema(next((tmp_path / "chunks").iterdir())).equals(CHUNK_SCHEMA)
    assert {chunk["doc_id"] for chunk in chunks} == {"long"}
    assert [(chunk["level"], chunk["index"]) for chunk in sorted_chunks(chunks)] == [
        *((0, n) for n in range(4)),
        (1, 0),
    ]
    for name in ("prompt_tokens", "output_tokens", "cached_tokens"):
        assert row[name] == sum(chunk[name] for chunk in chunks)
    for chunk in chunks:
        assert (chunk["doc_hash"], chunk["config_hash"]) == (row["doc_hash"], row["config_hash"])
        assert chunk["summary"] == "summary of long"
    last = sorted_chunks(chunks)[-1]
    assert LONG[last["begin"] : last["end"]] == LONG.strip()
    assert report["strategies"] == [
        {"strategy": "map_reduce", "documents": 1, "chunks": 4, "cut_short": 0},
        {"strategy": "single", "documents": 1, "chunks": 1, "cut_short": 0},
    ]
    page = " ".join((tmp_path / "report.html").read_text().split())
    assert "1 of them had to be cut, into 4 chunks (map_reduce)" in page


def sorted_chunks(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(chunks, key=lambda chunk: (chunk["level"], chunk["index"]))


def test_a_run_without_long_documents_has_no_such_table(tmp_path: Path) -> None:
    run(tmp_path, [QuietEngine()], SOURCE[1:], **MAP_REDUCE)
    assert not (tmp_path / "chunks").exists()


class Counting(QuietEngine):
    """Answers ``most`` requests, and then no more."""

    def __init__(self, most: int = 10**6) -> None:
        super().__init__()
        self.most = most

    async def generate(self, request: Request) -> Result:
        if len(self.seen) == self.most:
            await asyncio.sleep(3600)
        return await super().generate(request)


def stopped(out: Path, most: int, **sections: Any) -> None:
    """Run until an engine has given so many answers."""

    async def go() -> None:
        config = configured(out, engines={"window_docs": 1}, **sections)
        engine = Counting(most)
        with contextlib.closing(OutputFolder(config.output)) as folder:
            source = iter(SOURCE[:1])
            job = run_job(
                config, lambda: [engine], source, FakePrompts(), folder, lambda line: None
            )
            running = asyncio.ensure_future(job)
            while len(engine.seen) < most or engine.running:
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(go())


@pytest.mark.parametrize("sections", [MAP_REDUCE, REFINE], ids=["map_reduce", "refine"])
def test_chunks_that_were_done_are_not_done_again(tmp_path: Path, sections: Any) -> None:
    run(tmp_path / "whole", [whole := Counting()], SOURCE[:1], **sections)
    stopped(tmp_path / "out", 2, **sections)
    assert len(chunks_of(tmp_path / "out")) == 2
    run(tmp_path / "out", [engine := Counting()], SOURCE[:1], **sections)
    assert len(engine.seen) == len(whole.seen) - 2
    rows = [rows_of(tmp_path / name)["long"] for name in ("whole", "out")]
    for name in ("n_chunks", "summary", "prompt_tokens", "output_tokens", "cached_tokens"):
        assert rows[0][name] == rows[1][name]
    chunks = chunks_of(tmp_path / "out")
    assert len({chunk["prompt_hash"] for chunk in chunks}) == len(chunks) == len(whole.seen)
    # The document is done, and so is nothing left to do.
    run(tmp_path / "out", [again := Counting()], SOURCE[:1], **sections)
    assert again.seen == []


def test_chunks_of_a_document_that_failed_are_taken_when_it_is_tried_again(tmp_path: Path) -> None:
    class Refusing(Counting):
        async def generate(self, request: Request) -> Result:
            if len(self.seen) == 3:
                raise KeyError("meta_info")
            return await super().generate(request)

    lax = {"run": {"max_failure_rate": 1.0}, "engines": {"window_docs": 1}, **MAP_REDUCE}
    run(tmp_path, [Refusing()], SOURCE[:1], **lax)
    assert rows_of(tmp_path)["long"]["error"] == "chunk 4 of 4: KeyError: 'meta_info'"
    run(tmp_path, [engine := Counting()], SOURCE[:1], **lax)
    assert rows_of(tmp_path)["long"]["status"] == "ok" and len(engine.seen) == 2


def test_chunks_of_another_configuration_or_text_are_not_taken(tmp_path: Path) -> None:
    stopped(tmp_path, 2, **MAP_REDUCE)
    other = MAP_REDUCE | {"sampling": {"max_new_tokens": 11}}
    run(tmp_path, [engine := Counting()], SOURCE[:1], **other)
    assert len(engine.seen) == 5
    changed = [Document("long", LONG.replace("Line", "Row"))]
    run(tmp_path, [engine := Counting()], changed, **MAP_REDUCE)
    assert len(engine.seen) == 5


def test_chunks_are_earlier_results_too(tmp_path: Path) -> None:
    stopped(tmp_path, 2, **MAP_REDUCE)
    assert not list((tmp_path / "summaries").iterdir())
    with pytest.raises(ConfigError, match=r"no earlier results, .* 1 part"):
        run(tmp_path, [], SOURCE, output={"existing": "fail"})
    replace: Any = {"output": {"existing": "replace"}} | MAP_REDUCE
    run(tmp_path, [engine := Counting()], SOURCE[:1], **replace)
    assert len(engine.seen) == 5
    assert len({chunk["attempt"] for chunk in chunks_of(tmp_path)}) == 1
    (tmp_path / "chunks/part-00009-x-00000.parquet.0123abcd.tmp").touch()
    run(tmp_path, [Counting()], SOURCE[:1], **MAP_REDUCE)
    assert not list(tmp_path.rglob("*.tmp"))
