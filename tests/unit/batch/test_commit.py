import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.commit import Committer
from arkv_sglang.batch.config import OutputConfig
from arkv_sglang.batch.fence import LOCK
from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.resume import Ledger
from arkv_sglang.batch.schema import ROW_SCHEMA
from arkv_sglang.batch.types import KV_KEYS, Document, Row, RunFailed
from arkv_sglang.config import ConfigError


@contextmanager
def committing(path: Path, **settings: Any) -> Iterator[tuple[OutputFolder, Committer]]:
    config = OutputConfig(dir=str(path), **settings)
    ledger = Ledger("config")
    list(ledger.unfinished(iter(Document(f"d{n}", "text") for n in range(9))))
    with closing(OutputFolder(config)) as folder:
        yield folder, Committer(folder, ledger, config)


def ids(folder: OutputFolder) -> list[str]:
    column: list[str] = folder.own_rows(["doc_id"])["doc_id"].to_pylist()
    return column


def names(path: Path) -> list[str]:
    found = (str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
    return sorted(name for name in found if not name.startswith(".driver/"))


def test_rows_are_committed_in_parts_and_read_back(tmp_path: Path) -> None:
    with committing(tmp_path / "new/out", rows_per_part=2) as (folder, committer):
        kv = dict.fromkeys(KV_KEYS, 3)
        for n in range(5):
            committer.add(Row(f"d{n}", "ok", summary="s", prompt_tokens=n, kv=kv if n else {}))
        summaries = tmp_path / "new/out/summaries"
        assert len(list(summaries.iterdir())) == 2
        committer.commit()
        committer.commit()
        assert sorted(p.name for p in summaries.iterdir()) == [
            f"part-{folder.attempt}-0000{n}.parquet" for n in range(3)
        ]
        table = pq.read_table(summaries)
        assert table.schema.names == ROW_SCHEMA.names
        assert table["kv_rows_original"].to_pylist() == [None, 3, 3, 3, 3]
        assert set(table["attempt"].to_pylist()) == {folder.attempt}
        assert ids(folder) == [f"d{n}" for n in range(5)]


def test_time_alone_also_commits(tmp_path: Path) -> None:
    with committing(tmp_path, part_period_s=1e-9) as (folder, committer):
        committer.add(Row("d1", "ok"))
        assert ids(folder) == ["d1"]


def test_a_write_that_fails_leaves_no_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with committing(tmp_path) as (folder, _):
        folder.write("report.json", b"old")

        def full(descriptor: int) -> None:
            raise OSError("no space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunFailed, match=r"^output\.dir must stay writable, .*no space left"):
            folder.write("report.json", b"new")
        assert (tmp_path / "report.json").read_bytes() == b"old"
        assert names(tmp_path) == ["report.json"]


def test_earlier_results_are_kept_or_replaced_as_asked(tmp_path: Path) -> None:
    with committing(tmp_path) as (folder, committer):
        committer.add(Row("d1", "ok"))
        committer.commit()
        for name in ("report.json", "summaries.parquet"):
            folder.write(name, b"{}")
    (tmp_path / "summaries/part-00001-00001.parquet.0123abcd.tmp").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"output\.dir must hold no earlier results, .* 1 part"):
        OutputFolder(OutputConfig(dir=str(tmp_path), existing="fail"))
    before = names(tmp_path)
    assert "notes.txt" in before and len(before) == 4, "a torn file is of no use to anyone"
    with committing(tmp_path) as (folder, _):
        assert len(folder.parts()) == 1 and ids(folder) == []
    with committing(tmp_path, existing="replace") as (folder, committer):
        committer.add(Row("d2", "ok"), hold=True)
        assert names(tmp_path) == before and folder.parts() == [] and ids(folder) == []
        committer.commit()
        assert names(tmp_path) == ["notes.txt", *folder.parts()]
        assert ids(folder) == ["d2"]
        committer.add(Row("d3", "ok"))
        committer.commit()
        assert len(ids(folder)) == 2


def test_attempts_sort_in_time_whatever_the_clock_says(tmp_path: Path) -> None:
    attempts = []
    for _ in range(3):
        with committing(tmp_path, rows_per_part=1) as (folder, committer):
            committer.add(Row("d1", "ok"))
            attempts.append(folder.attempt)
            part = Path(tmp_path / folder.parts()[-1])
        # As if its clock had been ahead.
        part.rename(part.with_name(part.name.replace("-20", "-29", 1)))
    assert attempts == sorted(attempts) and [a[:5] for a in attempts] == ["00001", "00002", "00003"]


def test_rows_are_held_back_as_asked(tmp_path: Path) -> None:
    with committing(tmp_path, rows_per_part=1) as (folder, committer):
        committer.add(Row("d1", "invalid"), hold=True)
        assert ids(folder) == []
        committer.add(Row("d2", "ok"))
        assert ids(folder) == ["d1", "d2"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"output\.dir must be a folder that can be written"):
        OutputFolder(OutputConfig(dir=str(tmp_path / "file/out")))


def test_other_file_systems_get_whole_files_too(tmp_path: Path) -> None:
    with committing(tmp_path) as (folder, committer):
        folder.store.fs = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())
        committer.add(Row("d1", "ok"))
        committer.commit()
        assert ids(folder) == ["d1"]
        with pytest.raises(RunFailed), folder.create("summaries.parquet") as file:
            file.write(b"half")
            raise OSError("the other half cannot be had")
    assert names(tmp_path) == folder.parts() and (tmp_path / LOCK).exists()
