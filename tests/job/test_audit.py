"""A job that is audited: its engines make room on the cluster for those with full KV."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from .test_deaths import FABLES

Submit = Callable[[dict[str, Any]], tuple[int, str]]
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def config(config: dict[str, Any]) -> dict[str, Any]:
    budget = {"budget": 0.25, "min_tokens": 64, "sinks": 2, "window": 14}
    config["engine"] |= {"kv_policy": "arkv", "kv_policy_config": budget}
    config["audit"] = {"fraction": 0.6, "repeat_documents": 2}
    config["output"]["existing"] = "resume"
    return config


def test_engines_of_an_audit_take_the_place_of_those_of_the_run(
    submit: Submit, config: dict[str, Any], tmp_path: Path
) -> None:
    # The two engines of the run have all of the cluster's CPUs.
    config["engines"]["env"]["PYTHONPATH"] = str(Path(__file__).parent / "standin")
    code, log = submit(config)
    assert code == 0, log
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["audit"]["documents"] == {"chosen": 3, "compared": 3}
    assert report["audit"]["full_kv"]["engines"] == 2
    assert report["audit"]["equal_ratio"] == report["audit"]["noise"]["equal_ratio"] == 1
    engines = pq.read_table(tmp_path / "out/audit", columns=["engine"])["engine"].to_pylist()
    assert set(engines) <= {"audit-0", "audit-1"}
    assert "audit: 3/3 documents, 0 failed" in log
    assert "audit: 3 of 5 summaries are compared with those of full KV, 3 are" in log


@pytest.mark.soak  # the short ring audits a job of stand-in engines
def test_an_audit_of_real_engines_tells_compression_from_noise(
    submit: Submit, config: dict[str, Any], tmp_path: Path
) -> None:
    config["sampling"] |= {"max_new_tokens": 64, "ignore_eos": True}
    code, log = submit(config)
    assert code == 0, log
    lines = pq.read_table(tmp_path / "out/audit.parquet").to_pylist()
    assert len(lines) == 3 and {line["doc_id"] for line in lines} <= FABLES
    for line in lines:
        assert line["status"] == "compared" and 0 < line["rouge_l"] <= 1
        assert 0.1 < line["kv_bytes"] / line["kv_bf16_bytes"] < 0.6
    audit = json.loads((tmp_path / "out/report.json").read_text())["audit"]
    assert audit["noise"]["rouge_l"]["mean"] > audit["noise"]["compressed_rouge_l"]["mean"]
    assert audit["full_kv"]["peak_kv_bytes"] > 0
    code, log = submit(config)
    assert code == 0 and "0 are still to be made" in log
