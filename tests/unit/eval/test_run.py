"""What is done is not done again, and what was torn is; an arm's figures beside full KV's."""

import json
import math

import pyarrow.parquet as pq
import pytest

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.arms import FULL_KV, make_arms
from arkv_sglang.eval.plot import score_by_bytes
from arkv_sglang.eval.report import build_report, score_all
from arkv_sglang.eval.rows import PARTS, SAMPLES, Rows, key, prompt_id
from arkv_sglang.eval.run import run_all
from arkv_sglang.eval.table import as_table
from arkv_sglang.eval.tasks import TASKS
from tests.unit.eval.fakes import Engines, material, outcome

SETTING = {"engine": {"device": "cpu"}}
NAMES = ("needle", "continuation", "summary")


@pytest.fixture
def samples():
    found = material(length=300)
    return [sample for name in NAMES for sample in TASKS[name].make(found, 2)]


@pytest.fixture
def arms():
    return make_arms(["arkv"], [0.5, 0.25], None)


@pytest.fixture
def said():
    return []


@pytest.fixture
def rows(tmp_path, said):
    return Rows(tmp_path, said.append)


def run(samples, arms, rows, engines, setting=SETTING):
    return run_all(samples, arms, rows, setting, engines.serving, lambda line: None)


def test_one_engine_for_each_arm_and_none_for_what_is_done(samples, arms, rows):
    engines = Engines()
    found = run(samples, arms, rows, engines)
    assert engines.started == ["none", "arkv 0.5", "arkv 0.25"]
    assert len(engines.answered) == 18
    again = Engines()
    assert run(samples, arms, rows, again) == found
    assert again.started == []


def test_more_samples_and_other_settings(samples, arms, rows):
    run(samples[:1], arms[:2], rows, Engines())
    engines = Engines()
    run(samples, arms, rows, engines)
    assert len(engines.answered) == 18 - 2
    other = Engines()
    run(samples, arms, rows, other, {"engine": {"device": "cuda"}})
    assert len(other.answered) == 18


def test_a_run_that_was_cut_off_loses_one_sample(samples, arms, rows):
    with pytest.raises(KeyboardInterrupt):
        run(samples, arms, rows, Engines(fails_at=8))
    engines = Engines()
    run(samples, arms, rows, engines)
    assert len(engines.answered) == 10
    assert engines.started == ["arkv 0.5", "arkv 0.25"]


def test_a_torn_file_is_done_again_and_said(samples, arms, rows, said, tmp_path):
    run(samples, arms, rows, Engines())
    torn = tmp_path / PARTS / f"{key(samples[0], arms[1], SETTING, None)}.parquet"
    torn.write_bytes(torn.read_bytes()[:100])
    engines = Engines()
    run(samples, arms, rows, engines)
    assert engines.answered == [("arkv 0.5", "needle", 0)]
    assert len(said) == 1 and torn.name in said[0] and "done again" in said[0]


def test_keys(samples, arms):
    one, other = samples[0], samples[1]
    assert prompt_id(one) != prompt_id(other)
    base = key(one, arms[1], SETTING, None)
    assert base == key(one, arms[1], SETTING, None)
    assert base != key(one, arms[2], SETTING, None)
    assert base != key(one, arms[1], {}, None)
    assert base != key(one, arms[1], SETTING, b"another reference")


def test_the_table_of_all_samples(samples, arms, rows, tmp_path):
    scored = score_all(samples, arms, run(samples, arms, rows, Engines()), TASKS)
    rows.write_all(scored)
    table = pq.read_table(tmp_path / SAMPLES).to_pylist(maps_as_pydicts="strict")
    assert len(table) == 18
    full = {row["prompt_id"]: row for row in table if row["arm"] == FULL_KV}
    needle = next(row for row in table if (row["arm"], row["task"]) == ("arkv 0.25", "needle"))
    assert needle["figures"]["exact"] == 0 and full[needle["prompt_id"]]["score"] == 1
    assert (needle["kv_bytes"], needle["kv_bf16_bytes"], needle["wall_s"]) == (25, 100, 0.5)
    assert json.loads(needle["about"])["form"] == "digits"
    assert {row["score"] for row in table if row["arm"] != FULL_KV} >= {0.0, 0.5}
    assert full[needle["prompt_id"]]["kv_bytes_original"] is None


def test_the_report(samples, arms, rows):
    scored = score_all(samples, arms, run(samples, arms, rows, Engines()), TASKS)
    report = build_report(scored, arms)
    by_name = {(each["task"], each["arm"]): each for each in report["results"]}
    found = by_name["continuation", "arkv 0.5"]
    assert (found["score"], found["figures"]["kl"]) == (0.5, pytest.approx(0.1))
    assert (found["wins"], found["losses"], found["ties"]) == (0, 2, 0)
    assert found["score_less_full_kv"] == -0.5
    assert (found["kv_bytes_ratio"], found["compressed_samples"]) == (0.25, 2)
    assert (found["output_tokens"], found["output_tokens_over_full_kv"]) == (8, 2)
    assert report["counted_tasks"] == list(NAMES)
    mean = report["means"][1]
    assert mean["arm"] == "arkv 0.5"
    expected = [by_name[name, "arkv 0.5"]["score"] for name in NAMES]
    assert mean["score"] == pytest.approx(sum(expected) / 3)
    assert all(math.isfinite(value) for value in mean.values() if isinstance(value, float))
    json.dumps(report, allow_nan=False)
    assert as_table(report).row_count == 9 + 3
    assert "<svg" in score_by_bytes(report) and "arkv" in score_by_bytes(report, "needle")
    with pytest.raises(ConfigError, match=r"--task must be one of needle, .* got 'other'"):
        score_by_bytes(report, "other")


def test_intervals_in_report_table_and_plot(arms):
    many = list(TASKS["needle"].make(material(length=300), 12))
    answers = [outcome(each.answers[0] if n % 3 else "") for n, each in enumerate(many)]
    found = {arm.name: answers for arm in arms}
    report = build_report(score_all(many, arms, found, TASKS), arms)
    for each in (*report["results"], *report["means"]):
        assert each["score"] == pytest.approx(2 / 3)
        assert each["score_low"] < each["score"] < each["score_high"]
    assert "<svg" in score_by_bytes(report)


def test_a_task_that_full_kv_cannot_do_is_left_out_of_means(samples, arms):
    needles = samples[:2]
    found = {arm.name: [outcome("nothing")] * 2 for arm in arms}
    report = build_report(score_all(needles, arms, found, TASKS), arms)
    assert (report["counted_tasks"], report["means"]) == ([], [])
    with pytest.raises(ConfigError, match=r"full KV scores at least 0.5, got none"):
        score_by_bytes(report)
    easier = build_report(score_all(needles, arms, found, TASKS), arms, full_kv_at_least=0)
    assert easier["counted_tasks"] == ["needle"]
