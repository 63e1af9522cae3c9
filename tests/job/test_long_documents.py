"""A document longer than the context, on a real Ray cluster. The engine is a stand-in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from .test_deaths import FABLES

Submit = Callable[..., tuple[int, str]]
pytestmark = pytest.mark.timeout(900)


@pytest.mark.soak  # the short ring has drivers in processes of their own
def test_a_document_longer_than_the_context_is_summarized_in_chunks(
    submit: Submit, config: dict[str, Any], documents: Path, tmp_path: Path
) -> None:
    config["engines"]["env"]["PYTHONPATH"] = str(Path(__file__).parent / "standin")
    code, log = submit(config, "--set", "strategy=map_reduce", "--set", "strategy.overlap_tokens=5")
    assert code == 0, log
    out = tmp_path / "out"
    rows = {row["doc_id"]: row for row in pq.read_table(out / "summaries.parquet").to_pylist()}
    assert {doc_id for doc_id, row in rows.items() if row["strategy"] == "single"} == FABLES
    long = rows["long"]
    assert (long["status"], long["strategy"], long["truncated"]) == ("ok", "map_reduce", False)
    chunks = pq.read_table(out / "chunks").to_pylist()
    assert {chunk["doc_id"] for chunk in chunks} == {"long"}
    first = sorted((chunk for chunk in chunks if not chunk["level"]), key=lambda c: c["index"])
    assert len(first) == long["n_chunks"] == 2 and len(chunks) == 3
    assert 7000 < max(chunk["prompt_tokens"] for chunk in first) <= 8192
    text = json.loads(documents.read_text().splitlines()[5])["text"]
    assert first[0]["begin"] == 0 and first[-1]["end"] == len(text.rstrip())
    assert first[1]["begin"] < first[0]["end"], "they overlap"
    assert long["prompt_tokens"] == sum(chunk["prompt_tokens"] for chunk in chunks)
    # The stand-in goes on until it must stop.
    assert long["n_cut_short"] == 2 and long["finish_reason"] == "length"
