"""report.json and report.html of whole runs, large and small, well and ill."""

import json
import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest

from arkv_sglang.report.aggregate import build_report
from arkv_sglang.report.figures import DARK, LIGHT, darkened
from arkv_sglang.report.html import render_html
from arkv_sglang.report.plots import kv_over_time

from .synthetic import CONFIG, Run

# Engine 1 comes back, engine 2 does not.
ILL = Run(5000, down={1: (300.0, 900.0), 2: (400.0, None)})
RUNS = {
    "ill": ILL,
    "small": Run(40, num_engines=1),
    "one": Run(1, num_engines=1),
    "empty": Run(0, num_engines=1),
    "none": Run(300, num_engines=5, policy="none"),
}
PAGES = ("ill", "one", "empty", "none")
every_run = pytest.mark.parametrize("name", RUNS)


@cache
def report_of(name: str) -> dict[str, Any]:
    run = RUNS[name]
    report = build_report(run.rows, run.header, run.engines, CONFIG, {"sglang": "0.5.23"})
    return dict(json.loads(json.dumps(report, allow_nan=False)))


@cache
def page_of(name: str) -> str:
    return render_html(report_of(name), RUNS[name].samples)


class Page(HTMLParser):
    """Checks that tags are balanced, and collects texts and images."""

    VOID = ("meta", "img", "source", "link", "br", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.sources: list[dict[str, str | None]] = []
        self.links: list[str | None] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [found[name] for name in ("src", "srcset", "href") if name in found]
        if tag == "img":
            self.images.append(found)
        if tag == "source":
            self.sources.append(found)
        assert tag not in ("script", "link", "iframe")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_whole_and_needs_nothing_else(name: str) -> None:
    page = Page(page_of(name))
    assert all(str(link).startswith("data:image/svg+xml;base64,") for link in page.links)
    assert "@import" not in page_of(name) and "url(" not in page_of(name)
    assert all(len(image["alt"] or "") > 20 for image in page.images)
    # Each has its twin for dark screens.
    assert len(page.sources) == len(page.images)
    assert all("dark" in str(source["media"]) for source in page.sources)


@pytest.mark.parametrize(
    ("name", "num_plots"),
    # Lengths, throughput, latency, memory, tiers, and KV over time of each engine.
    [("ill", 8), ("one", 4), ("empty", 2), ("none", 9)],
)
def test_what_can_be_drawn_is_drawn(name: str, num_plots: int) -> None:
    assert len(Page(page_of(name)).images) == num_plots


@every_run
def test_the_figures_agree_with_the_rows_and_each_other(name: str) -> None:
    report, rows = report_of(name), RUNS[name].rows.to_pylist()
    documents, corpus = report["totals"]["documents"], report["corpus"]
    done = [row for row in rows if row["status"] == "ok"]
    lengths = sorted(row["prompt_tokens"] for row in rows if row["prompt_tokens"] is not None)
    assert documents["ok"] == len(done) and documents["all"] == len(rows)
    assert sum(engine["documents"]["ok"] for engine in report["engines"]) == len(done)
    assert corpus["documents_with_prompt"] == len(lengths)
    assert (corpus["prompt_tokens"] or {"total": 0})["total"] == sum(lengths)
    bins = corpus["length_histogram"]
    assert sum(each["ok_documents"] for each in bins) == len(done)
    assert sum(each["ok_documents"] + each["failed_documents"] for each in bins) == len(lengths)
    assert sum(octave["documents"] for octave in report["by_length"]) == len(done)
    assert sum(g["documents"] for g in report["failure_reasons"]) == len(rows) - len(done)
    assert [row["prompt_tokens"] for row in report["longest"]] == lengths[::-1][:10]
    assert [row["e2e_s"] for row in report["slowest"]] == sorted(
        (row["e2e_s"] for row in done), reverse=True
    )[:10]


@pytest.mark.parametrize("name", ["ill", "small", "none"])
def test_throughput_adds_up_to_the_tokens_of_the_run(name: str) -> None:
    report = report_of(name)
    throughput, last = report["throughput"], [s[-1] for s in RUNS[name].samples.values()]
    tokens = sum(s["done_prompt_tokens"] + s["done_output_tokens"] for s in last)
    rates = throughput["tokens_per_s"].values()
    assert sum(map(sum, rates)) * throughput["bin_s"] == pytest.approx(tokens)
    hits = [ratio for ratio in throughput["cache_hit_ratio"] if ratio is not None]
    assert min(hits) > 0 and max(hits) <= 0.5
    assert 0.14 < report["totals"]["cache_hit_ratio"] < 0.5


def test_percentiles_are_in_order_and_lie_on_the_curve() -> None:
    report = report_of("ill")
    for figures in (report["totals"], *report["engines"]):
        for name in ("ttft", "e2e"):
            values = [figures[f"{name}_p{percent}_s"] for percent in (50, 90, 95, 99)]
            assert values == sorted(values) and values[0] < values[-1]
    curve = {round(point["share"], 3): point for point in report["latency_curve"]}
    assert curve[0.9]["e2e_s"] == pytest.approx(report["totals"]["e2e_p90_s"])
    assert curve[1]["ttft_s"] == max(RUNS["ill"].rows["ttft_s"].drop_null().to_pylist())


def test_the_same_failure_of_many_documents_is_one_reason() -> None:
    report = report_of("ill")
    reasons = {group["status"]: group for group in report["failure_reasons"]}
    assert len(report["failure_reasons"]) == 3
    assert reasons["too_long"]["reason"] == (
        "the prompt has … tokens and at most 65536 fit beside 512 new ones"
    )
    assert reasons["invalid"]["reason"] == "text is not UTF-8 (byte …)"
    assert reasons["error"]["reason"] == "its engine died 2 times running it alone"
    assert len(reasons["invalid"]["example_doc_ids"]) == 3
    assert "contracts/00096.pdf" in page_of("ill")


def test_the_page_says_which_engine_is_gone_and_when_one_was_not_up() -> None:
    assert "engine-2 was given up: engine-2 could not start" in page_of("ill")
    drawn = [kv_over_time(n, s, ILL.end_s) or "" for n, s in ILL.samples.items()]
    assert ["not up" in svg for svg in drawn] == [False, True, True]


def test_without_figures_of_rows_the_page_says_why_there_are_none() -> None:
    assert "No document says what became of its rows" in page_of("none")
    assert "No document says what became of its rows" not in page_of("ill")
    assert report_of("none")["totals"]["documents_rows_evicted"] is None


def test_a_resumed_run_says_which_figures_are_of_all_attempts() -> None:
    run = RUNS["small"]
    report = build_report(run.rows.slice(30), run.header, run.engines, CONFIG, {}, run.rows)
    words = "Earlier attempts did 30 of the documents"
    assert words in render_html(report, run.samples) and words not in page_of("small")


def test_no_peak_is_lost_however_long_the_run() -> None:
    samples = [{"t_s": float(t), "kv_original_bytes": 1e9} for t in range(5001)]
    flat = kv_over_time("engine", samples)
    samples[2345] = samples[2345] | {"kv_original_bytes": 2e9}
    assert kv_over_time("engine", samples) != flat


def test_a_plot_for_a_dark_page_has_all_colors_of_its_own() -> None:
    light = kv_over_time("engine", ILL.samples["engine-0"])
    assert light is not None
    used = [set(re.findall(r"#[0-9a-f]{6}", plot)) for plot in (light, darkened(light))]
    for theme, own, other in ((LIGHT, *used), (DARK, *reversed(used))):
        seen = {theme.ink, theme.soft, theme.grid, theme.original, theme.quantized}
        assert seen <= own and not seen & other
