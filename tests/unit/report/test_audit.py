"""What an audit says of summaries, and how the page shows it."""

from typing import Any

import pytest

from arkv_sglang.batch.types import KV_KEYS
from arkv_sglang.report.aggregate import build_report
from arkv_sglang.report.audit import audit_figures, compared_row, not_run, spread, warning
from arkv_sglang.report.html import render_html

from .synthetic import CONFIG, Run
from .test_page import Page


def row(doc_id: str, summary: str | None, **more: Any) -> dict[str, Any]:
    empty = {f"kv_{key}": None for key in KV_KEYS}
    values = {"status": "ok", "error": None, "prompt_tokens": 100, "output_tokens": 4}
    values |= {"finish_reason": "stop", "cached_tokens": 60, "strategy": "single", "n_chunks": 1}
    return {"doc_id": doc_id, "summary": summary, **values, **empty, **more}


KV = {"kv_rows_original": 10, "kv_rows_quantized": 30, "kv_rows_evicted": 60}
KV |= {"kv_bytes_original": 1000, "kv_bytes_quantized": 1500}
LINES = [
    compared_row(row("same", "a b c d", **KV), row("same", "a b c d"), row("same", "a b c d")),
    compared_row(
        row("other", "a <b> x", finish_reason="length", **KV),
        row("other", "a <b> c d"),
        row("other", "a <b> c e"),
    ),
    compared_row(row("long", "a b"), row("long", None, status="too_long", error="too long"), None),
    compared_row(row("gone", "a b"), None, None),
]


def test_each_document_is_compared_or_says_why_not() -> None:
    same, other, long, gone = LINES
    assert (same["rouge_l"], same["is_equal"], same["prefix_ratio"], same["length_ratio"]) == (
        *(1, True, 1),
        1,
    )
    assert other["rouge_l"] == pytest.approx(2 * 2 / 7) and not other["is_equal"]
    assert other["prefix_ratio"] == pytest.approx(6 / 9) and other["length_ratio"] == 3 / 4
    assert other["again_rouge_l"] == 0.75 and other["again_summary"] == "a <b> c e"
    assert (same["kv_bytes"], same["kv_bf16_bytes"]) == (2500, 10_000)
    assert (long["status"], long["error"]) == ("too_long", "too long")
    assert gone["status"] == "missing" and "rouge_l" not in gone


def test_the_figures_are_of_those_that_were_compared() -> None:
    figures = audit_figures(LINES)
    assert figures["documents"] == {"chosen": 4, "compared": 2, "too_long": 1, "missing": 1}
    assert figures["rouge_l"]["mean"] == pytest.approx((1 + 4 / 7) / 2)
    assert figures["rouge_l"]["min"] == pytest.approx(4 / 7) and figures["equal_ratio"] == 0.5
    assert figures["finish_reason_changes"] == {"stop to length": 1}
    assert figures["kv"] == {"bytes_mean": 2500, "bf16_bytes_mean": 10_000, "ratio": 0.25}
    noise = figures["noise"]
    assert noise["documents"] == 2 and noise["rouge_l"]["mean"] == pytest.approx((1 + 0.75) / 2)
    assert noise["compressed_rouge_l"] == figures["rouge_l"]
    assert noise["cached_prompt_ratio"] == 0.6
    assert [worst["doc_id"] for worst in figures["worst"]] == ["other"]


def test_what_was_cut_otherwise_says_nothing_of_compression() -> None:
    cut = row("d", "a b", strategy="map_reduce", n_chunks=3)
    line = compared_row(row("d", "a b"), cut, None)
    assert line["status"] == "cut_otherwise" and "in 1 pieces, and with full KV" in line["error"]
    assert "rouge_l" not in line and compared_row(cut, cut, None)["status"] == "compared"


def test_without_second_answers_there_is_no_noise() -> None:
    lines = [compared_row(row("d", "a"), row("d", "b"), None)]
    assert audit_figures(lines)["noise"] is None and audit_figures(lines)["kv"] is None


def test_an_answer_without_words_is_as_long_as_nothing() -> None:
    line = compared_row(row("d", "a b"), row("d", ""), None)
    assert line["length_ratio"] is None and line["rouge_l"] == 0
    assert audit_figures([line])["length_ratio"] is None
    assert compared_row(row("d", ""), row("d", ""), None)["rouge_l"] == 1


def test_the_interval_of_the_mean_narrows_with_more_documents() -> None:
    few, some, many = (spread([0.2, 0.8] * n) for n in (2, 10, 1000))
    assert few and some and many
    assert few["mean_ci95"] is None and few["mean"] == pytest.approx(0.5)
    widths = [each["mean_ci95"][1] - each["mean_ci95"][0] for each in (some, many)]
    assert widths[1] < widths[0] / 5 and some["mean_ci95"][0] < 0.5 < some["mean_ci95"][1]


def test_a_mean_below_the_threshold_is_a_warning() -> None:
    figures = audit_figures(LINES)
    assert warning(figures, "arkv", 0.7) is None
    said = warning(figures, "arkv", 0.9)
    assert said and "a mean ROUGE-L of 0.79, below audit.warn_below_rouge_l 0.9" in said
    assert "full KV has 0.88 with itself" in said


def page(section: dict[str, Any] | None) -> str:
    run = Run(40, num_engines=1)
    report = build_report(run.rows, run.header, run.engines, CONFIG, {})
    return render_html(report | {"audit": section}, run.samples)


def test_the_page_shows_the_worst_side_by_side_and_the_warning_at_its_top() -> None:
    section = {"outcome": "done", "reason": None, "warning": "look <here>", "policy": "arkv"}
    section |= {"documents_ok": 40, "wall_s": 61.0, "full_kv": None, **audit_figures(LINES)}
    text = page(section)
    Page(text)
    assert "2 of 40 summaries" in text and "1 more could not be compared (too long)" in text
    assert text.index("look &lt;here&gt;") < text.index("<h2>")
    assert '<span class="soft">a &lt;b&gt; </span>x</p>' in text
    assert '<span class="soft">a &lt;b&gt; </span>c d</p>' in text


def test_the_page_shows_what_full_kv_took() -> None:
    totals = {"engines": 2, "documents_per_min": 3.25, "tokens_per_s": 77.0}
    totals |= {"peak_running_requests": 5, "peak_kv_bytes": 1 << 30}
    section = {"outcome": "done", "reason": None, "warning": None, "policy": "arkv"}
    section |= {"documents_ok": 40, "wall_s": 61.0, "full_kv": totals, **audit_figures(LINES)}
    text = page(section)
    assert "full KV, the audit" in text and "<td>1.00 GiB</td>" in text


def test_the_page_says_when_there_is_no_audit() -> None:
    assert "There is no audit: no engine &lt;started&gt;" in page(not_run("no engine <started>"))
    assert "What compression cost" not in page(None)
