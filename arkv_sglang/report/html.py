"""One self-contained page: no script, no file beside it, nothing from the network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from arkv_sglang.report.figures import darkened
from arkv_sglang.report.plot_corpus import length_histogram, tiers_by_length
from arkv_sglang.report.plot_latency import latency
from arkv_sglang.report.plot_memory import memory
from arkv_sglang.report.plots import kv_over_time, throughput_over_time
from arkv_sglang.report.text import show_bytes, show_count, show_duration, show_number, show_ratio

# Engines whose plots are seen without a click.
SHOWN_ENGINES = 4


def render_html(
    report: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    """The page for a report; ``samples`` by engine name, for the plots."""
    environment = Environment(
        loader=PackageLoader("arkv_sglang.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": show_bytes,
        "counted": show_count,
        "duration": show_duration,
        "number": show_number,
        "ratio": show_ratio,
    }
    return environment.get_template("report.html.j2").render(
        report=report,
        plots=_plots(report, samples),
        shown_engines=SHOWN_ENGINES,
        config=yaml.safe_dump(report["config"], sort_keys=False, allow_unicode=True),
    )


def _plots(
    report: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    ends = [sample["t_s"] for series in samples.values() for sample in series]
    until_s = max(ends, default=None)
    curve, by_length = report["latency_curve"], report["by_length"]
    kv = {name: _in_both_themes(kv_over_time(name, s, until_s)) for name, s in samples.items()}
    return {
        "lengths": _in_both_themes(length_histogram(report["corpus"])),
        "throughput": _in_both_themes(throughput_over_time(report["throughput"])),
        "latency": _in_both_themes(latency(curve, report["totals"], by_length)),
        "memory": _in_both_themes(memory(report["engines"])),
        "tiers": _in_both_themes(tiers_by_length(by_length)),
        "kv": {name: drawn for name, drawn in kv.items() if drawn},
    }


def _in_both_themes(svg: str | None) -> dict[str, str] | None:
    return None if svg is None else {"light": _data_uri(svg), "dark": _data_uri(darkened(svg))}


def _data_uri(svg: str) -> str:
    # As an image and not inline: the ids inside several SVGs would clash in one document.
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
