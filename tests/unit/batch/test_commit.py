import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.commit import ROW_SCHEMA, Committer, OutputFolder
from arkv_sglang.batch.config import OutputConfig
from arkv_sglang.batch.types import KV_KEYS, Row
from arkv_sglang.config import ConfigError


def open_folder(path: Path, **settings: Any) -> tuple[OutputFolder, OutputConfig]:
    config = OutputConfig(dir=str(path), **settings)
    return OutputFolder(config), config


def test_rows_are_committed_in_parts_and_read_back(tmp_path: Path) -> None:
    folder, config = open_folder(tmp_path / "new/out", rows_per_part=2)
    committer = Committer(folder, "run", config)
    kv = dict.fromkeys(KV_KEYS, 3)
    for n in range(5):
        committer.add(Row(f"d{n}", "ok", summary="s", prompt_tokens=n, kv=kv if n else {}))
    summaries = tmp_path / "new/out/summaries"
    assert len(list(summaries.iterdir())) == 2
    committer.commit()
    committer.commit()
    assert sorted(p.name for p in summaries.iterdir()) == [
        f"part-run-0000{n}.parquet" for n in range(3)
    ]
    table = pq.read_table(summaries)
    assert table.schema.names == ROW_SCHEMA.names
    assert table["kv_rows_original"].to_pylist() == [None, 3, 3, 3, 3]
    assert folder.read_rows(["doc_id"])["doc_id"].to_pylist() == [f"d{n}" for n in range(5)]
    assert committer.by_status == {"ok": 5}


def test_time_alone_also_commits(tmp_path: Path) -> None:
    folder, config = open_folder(tmp_path, part_period_s=1e-9)
    Committer(folder, "run", config).add(Row("d", "ok"))
    assert folder.read_rows(["doc_id"]).num_rows == 1


def test_a_write_that_fails_leaves_no_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = open_folder(tmp_path)
    folder.write("report.json", b"old")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        folder.write("report.json", b"new")
    assert (tmp_path / "report.json").read_bytes() == b"old"


def test_earlier_results_are_kept_or_replaced_as_asked(tmp_path: Path) -> None:
    folder, config = open_folder(tmp_path)
    Committer(folder, "one", config).add(Row("d", "ok"))
    open_folder(tmp_path)
    folder.write("summaries/part-one-00000.parquet", b"")
    folder.write("report.json", b"{}")
    (tmp_path / "summaries/part-one-00001.parquet.tmp").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"output\.dir must hold no earlier results, .* 2 part"):
        open_folder(tmp_path)
    names = lambda: sorted(p.name for p in tmp_path.rglob("*") if p.is_file())  # noqa: E731
    before = names()
    folder, config = open_folder(tmp_path, existing="replace")
    committer = Committer(folder, "two", config)
    committer.add(Row("new", "ok"), hold=True)
    assert names() == before and folder.read_rows(["doc_id"]).num_rows == 0
    committer.commit()
    assert names() == ["notes.txt", "part-two-00000.parquet"]
    assert folder.read_rows(["doc_id"])["doc_id"].to_pylist() == ["new"]
    committer.add(Row("newer", "ok"))
    committer.commit()
    assert folder.read_rows(["doc_id"]).num_rows == 2


def test_rows_are_held_back_as_asked(tmp_path: Path) -> None:
    folder, config = open_folder(tmp_path, rows_per_part=1)
    committer = Committer(folder, "run", config)
    committer.add(Row("a", "invalid"), hold=True)
    assert folder.read_rows(["doc_id"]).num_rows == 0
    committer.add(Row("b", "ok"))
    assert folder.read_rows(["doc_id"])["doc_id"].to_pylist() == ["a", "b"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"output\.dir must be a folder that can be written"):
        open_folder(tmp_path / "file/out")


def test_other_file_systems_get_whole_files_too(tmp_path: Path) -> None:
    folder, config = open_folder(tmp_path)
    import pyarrow.fs as pafs

    folder.fs = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())
    committer = Committer(folder, "run", config)
    committer.add(Row("d", "ok"))
    committer.commit()
    assert folder.read_rows(["status"])["status"].to_pylist() == ["ok"]
    assert not list(tmp_path.rglob("*.tmp"))
