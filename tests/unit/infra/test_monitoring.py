"""What the dashboard and the alerts ask for is what the job and the engines export."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import promql_parser as promql
import pytest
import yaml

from arkv_sglang.batch.metric_names import JOB_METRICS, Metric, engine_gauge
from arkv_sglang.batch.worker import telemetry
from arkv_sglang.core import STORED_TIERS, Geometry
from arkv_sglang.engine.figures import figures
from arkv_sglang.storage.store import KVStore

INFRA = Path(__file__).parents[3] / "infra"
DASHBOARD = json.loads((INFRA / "grafana/arkv.json").read_text())
PROMETHEUS = yaml.safe_load((INFRA / "prometheus.yaml").read_text())
ALERTS = yaml.safe_load((INFRA / "alerts.yaml").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


def engine_figures() -> list[str]:
    """The names of `figures`, made by its own code. What it counts does not matter here."""
    controller, tree = MagicMock(statistics_bytes=0), MagicMock()
    tree.bytes_by_tier.return_value = dict.fromkeys(STORED_TIERS, 0)
    store = KVStore(Geometry(num_layers=1, num_kv_heads=1, head_dim=64), 40, 16, "cpu")
    return list(figures(MagicMock(store=store, controller=controller), tree))


def exported_labels() -> dict[str, set[str]]:
    """Every metric that we export, by its name in Prometheus, with its labels."""
    arkv = dict.fromkeys(engine_figures(), 0)
    memory = {"weight": 0.0, "kvcache": 0.0, "token_capacity": 1}
    load = SimpleNamespace(num_running_reqs=0, num_waiting_reqs=0, num_used_tokens=0)
    # The last two are what `EngineWorker.sample` adds from outside of the engine.
    sample = {*telemetry({"memory_usage": memory, "arkv": arkv}, load)}
    sample |= {"rss_bytes", "device_used_bytes"}
    metrics: list[Metric] = [*JOB_METRICS, *map(engine_gauge, sample)]
    (server,) = (job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "sglang")
    (relabel,) = server["relabel_configs"]
    # A server has no run; a matcher that takes every run takes the lack of one, too.
    on_servers = {relabel["target_label"], "run"}
    return {metric.exported: set(metric.labels) for metric in metrics} | dict.fromkeys(
        arkv, on_servers
    )


EXPORTED = exported_labels()


def wrong_queries(expr: str) -> list[str]:
    """What a PromQL expression asks for and nothing exports: metrics, and labels of them."""
    wrong: list[str] = []
    labels: set[str] = set()

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.VectorSelector):
            known = EXPORTED.get(node.name)
            if known is None:
                wrong.append(f"no metric {node.name}")
                return
            labels.update(known)
            asked = {matcher.name for matcher in node.matchers.matchers}
            wrong.extend(f"no label {label} of {node.name}" for label in asked - known)

    def grouped(node: promql.Expr) -> None:
        if isinstance(node, promql.AggregateExpr) and node.modifier:
            wrong.extend(f"no label {label}" for label in {*node.modifier.labels} - labels)

    # Grafana puts a duration there.
    tree = promql.parse(expr.replace("$__rate_interval", "5m"))
    promql.walk(tree, visit)
    promql.walk(tree, grouped)
    return wrong


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel_asks_for_what_is_exported(panel: dict[str, Any]) -> None:
    assert panel["targets"] and panel["description"]
    for target in panel["targets"]:
        assert wrong_queries(target["expr"]) == [], target["expr"]
        legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert not legend or wrong_queries(f"sum by ({', '.join(legend)}) ({target['expr']})") == []


@pytest.mark.parametrize("rule", ALERTS["groups"][0]["rules"], ids=lambda rule: rule["alert"])
def test_each_alert_asks_for_what_is_exported(rule: dict[str, Any]) -> None:
    assert wrong_queries(rule["expr"]) == []
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert used and wrong_queries(f"sum by ({', '.join(used)}) ({rule['expr']})") == []


def test_a_wrong_name_or_label_is_found() -> None:
    assert wrong_queries("sum(rate(ray_arkv_job_documents_total[5m]))") == [
        "no metric ray_arkv_job_documents_total"
    ]
    assert wrong_queries('sum by (shard) (ray_arkv_free_bytes{tier="fp8"})') == [
        "no label tier of ray_arkv_free_bytes",
        "no label shard",
    ]


def test_the_variables_list_runs_and_engines_that_exist() -> None:
    for name in ("run", "engine"):
        query = VARIABLES[name]["query"]["query"]
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()
        alternatives = re.match(r'{__name__=~"([\w|]+)"', selector)
        metrics = alternatives[1].split("|") if alternatives else [selector]
        assert label == name and all(label in EXPORTED[metric] for metric in metrics)
        # A server has no run, which only this matches.
        assert VARIABLES[name]["includeAll"] and VARIABLES[name]["allValue"] == ".*"


def test_every_job_metric_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
    assert [m.exported for m in JOB_METRICS if not re.search(rf"\b{m.exported}\b", shown)] == []


def test_panels_have_their_own_ids_and_places() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        columns = range(at["x"], at["x"] + at["w"])
        cells = {(x, y) for x in columns for y in range(at["y"], at["y"] + at["h"])}
        assert columns.stop <= 24 and not taken & cells, panel["title"]
        taken |= cells


def test_ray_exports_the_job_metrics_under_the_names_that_are_asked_for() -> None:
    """Ray's own exporter, without a cluster."""
    from prometheus_client import generate_latest
    from ray._private.telemetry.open_telemetry_metric_recorder import OpenTelemetryMetricRecorder

    recorder = OpenTelemetryMetricRecorder()
    metrics = [*JOB_METRICS, *map(engine_gauge, ("arkv_rows_evicted_total", "rss_bytes"))]
    for metric in metrics:
        register = getattr(recorder, f"register_{metric.kind}_metric")
        register(metric.name, metric.description)
        recorder.set_metric_value(metric.name, dict.fromkeys(metric.labels, "a"), 1)
    lines = generate_latest().decode().splitlines()
    for metric in metrics:
        (line,) = (line for line in lines if line.startswith(f"{metric.exported}{{"))
        assert all(f'{label}="a"' in line for label in metric.labels)
        assert f"# TYPE {metric.exported} {metric.kind}" in lines


def test_prometheus_reads_rays_list_of_nodes_and_the_alerts() -> None:
    (ray,) = (job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "ray")
    from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE

    (files,) = (found["files"] for found in ray["file_sd_configs"])
    assert files == [f"/tmp/ray/{PROMETHEUS_SERVICE_DISCOVERY_FILE}"]
    assert all((INFRA / name).is_file() for name in PROMETHEUS["rule_files"])


def test_the_manual_lists_every_job_metric() -> None:
    manual = (INFRA / "README.md").read_text()
    rows = [
        f"| `{m.exported}` | {m.unit} | {', '.join(m.labels)} | {m.description} |"
        for m in JOB_METRICS
    ]
    assert [row for row in rows if row not in manual] == []
