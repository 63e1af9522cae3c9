"""The evaluation as users run it: the same prompts under stock and a policy, each once."""

import json

import pyarrow.parquet as pq
import pytest

from arkv_sglang.eval.__main__ import main

LENGTH = 700
ARM, BUDGET = "arkv 0.25", 0.25


@pytest.fixture(scope="module")
def folder(one_engine, tmp_path_factory):
    # An engine's shutdown kills every child of its process.
    one_engine.stop()
    return tmp_path_factory.mktemp("eval")


@pytest.fixture
def evaluate(folder, capfd):
    """Runs the command; its report, and the lines that it wrote for people."""

    def run():
        arguments = ["--tasks", "needle-later:2,continuation:1"]
        arguments += ["--length", str(LENGTH), "--budgets", str(BUDGET), "--out", str(folder)]
        assert main(arguments) == 0
        out, err = capfd.readouterr()
        return json.loads(out.splitlines()[-1]), err

    return run


def read(folder):
    rows = pq.read_table(folder / "samples.parquet").to_pylist(maps_as_pydicts="strict")
    return {(row["arm"], row["task"], row["number"]): row for row in rows}


def test_it_measures_compresses_and_resumes(evaluate, folder):
    report, _ = evaluate()
    rows = read(folder)
    assert len(rows) == 6
    for (arm, task, number), row in rows.items():
        full = rows["none", task, number]
        assert row["prompt_id"] == full["prompt_id"]
        assert row["prompt_tokens"] <= LENGTH
        if task == "continuation":
            assert row["output_tokens"] == full["output_tokens"] > 1
            assert row["kv_bf16_bytes"] == full["kv_bytes"]
            kl, top1 = row["figures"]["kl"], row["score"]
            # Full KV is compared with itself, and compression shows.
            assert (kl < 1e-6 and top1 == 1) if arm == "none" else (1e-3 < kl < 5)
        else:
            # The document was served before, and the question found it.
            assert row["cached_tokens"] > LENGTH / 2
        if arm == ARM:
            kept = row["kv_bytes_original"] + row["kv_bytes_quantized"]
            assert row["kv_bytes"] == kept < 1.2 * BUDGET * row["kv_bf16_bytes"]
            assert row["kv_times_planned"] > 0
            layers_rows = [row[f"kv_rows_{tier}"] for tier in ("original", "quantized", "evicted")]
            row_bytes = row["kv_bytes_original"] // row["kv_rows_original"]
            assert sum(layers_rows) * row_bytes == row["kv_bf16_bytes"]
    parts = sorted((folder / "parts").iterdir())
    assert len(parts) == 6
    written = [part.stat().st_mtime_ns for part in parts]
    assert {each["arm"] for each in report["results"]} == {"none", ARM}
    assert report == json.loads((folder / "report.json").read_text())

    # What is done is not done again.
    again, err = evaluate()
    assert "3 samples done before, 0 to do" in err and "1 of" not in err
    assert again["results"] == report["results"]
    assert [part.stat().st_mtime_ns for part in parts] == written
