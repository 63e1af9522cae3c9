"""One self-contained page: no script, no file beside it, nothing from the network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from arkv_sglang.report.plots import kv_over_time
from arkv_sglang.report.text import show_bytes, show_number


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
    environment.filters |= {"bytes": show_bytes, "number": show_number}
    plots = {name: kv_over_time(name, series) for name, series in samples.items()}
    return environment.get_template("report.html.j2").render(
        report=report,
        plots={name: _data_uri(svg) for name, svg in plots.items() if svg},
        config=yaml.safe_dump(report["config"], sort_keys=False, allow_unicode=True),
    )


def _data_uri(svg: str) -> str:
    # As an image and not inline: the ids inside several SVGs would clash in one document.
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
