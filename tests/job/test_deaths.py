"""What dies on a real Ray cluster, and what becomes of the documents. The engine is a stand-in."""

import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.local_ray import LocalRay

from .nodes import CHILD, ENGINE, RAYLET, running, second_node, wait_for

Submit = Callable[[dict[str, Any]], tuple[int, str]]
pytestmark = pytest.mark.timeout(900)
FABLES = {f"fable-{n}" for n in range(5)}


@pytest.fixture
def config(config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    config["engines"]["env"]["PYTHONPATH"] = str(Path(__file__).parent / "standin")
    config["engines"]["cache_dir"] = str(tmp_path / "cache")
    config["run"]["progress_period_s"] = 0.5
    config["sampling"]["max_new_tokens"] = 100
    return config


def many(config: dict[str, Any], tmp_path: Path, count: int) -> set[str]:
    """Give it so many short documents instead of the eight; their ids."""
    path = tmp_path / "many.jsonl"
    ids = [f"d{n}" for n in range(count)]
    lines = (json.dumps({"doc_id": doc_id, "text": f"Text {doc_id}."}) + "\n" for doc_id in ids)
    path.write_text("".join(lines))
    config["input"]["path"] = str(path)
    return set(ids)


def read(out: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    rows = pq.read_table(out / "summaries").to_pylist()
    by_id = {row["doc_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    report = json.loads((out / "report.json").read_text())
    return by_id, report["engines"]


def nothing_is_left(cluster: LocalRay) -> None:
    """Of the engines. Ray takes a moment."""
    wait_for(lambda: not running(cluster, ENGINE) and not running(cluster, CHILD), 60)


@pytest.mark.soak  # the short ring does it with fake engines
def test_a_document_that_kills_its_engine_is_the_only_one_that_fails(
    submit: Submit, config: dict[str, Any], cluster: LocalRay, tmp_path: Path
) -> None:
    config["engine"]["poison_tokens"] = 500
    config["engines"]["max_restarts"] = 3
    code, log = submit(config)
    assert code == 0, log
    rows, engines = read(tmp_path / "out")
    assert {doc_id for doc_id, row in rows.items() if row["status"] == "ok"} == FABLES - {"fable-4"}
    assert rows["fable-4"]["status"] == "error"
    assert "its engine died 2 times running it alone: engine-" in rows["fable-4"]["error"]
    assert len(rows["fable-4"]["death_log"]) == sum(engine["deaths"] for engine in engines) == 3
    nothing_is_left(cluster)


class Killer(threading.Thread):
    """Once all engines are up it kills one thing after the other, each at a random moment."""

    def __init__(
        self, cluster: LocalRay, log: Path, out: Path, targets: list[str], rng: random.Random
    ) -> None:
        super().__init__(daemon=True)
        self.killed: list[str] = []
        self._cluster, self._log, self._out = cluster, log, out
        self._targets, self._rng = targets, rng
        self.start()

    def run(self) -> None:
        wait_for(lambda: self._log.exists() and "3/3 engines up" in self._log.read_text(), 600)
        for target in self._targets:
            time.sleep(self._rng.uniform(0.5, 4))
            while not (found := running(self._cluster, target)):
                if (self._out / "report.json").exists():
                    return
                time.sleep(0.2)
            self._rng.choice(found).kill()
            self.killed.append(target)


@pytest.mark.parametrize(
    ("kills", "count"), [(4, 80), pytest.param(40, 500, marks=pytest.mark.soak)]
)
def test_every_document_is_done_once_whatever_is_killed(
    submit: Submit,
    config: dict[str, Any],
    cluster: LocalRay,
    tmp_path: Path,
    kills: int,
    count: int,
) -> None:
    """Engines, their schedulers and, in the middle, the node that one of them is on."""
    rng = random.Random(kills)
    targets = [rng.choice((ENGINE, CHILD)) for _ in range(kills - 1)]
    targets[1:2] = [CHILD, RAYLET]
    ids = many(config, tmp_path, count)
    config["engine"]["token_s"] = 0.03
    config["engines"] |= {"count": 3, "window_docs": 3, "max_restarts": kills}
    with second_node(cluster, num_cpus=1):
        killer = Killer(cluster, tmp_path / "job.log", tmp_path / "out", targets, rng)
        code, log = submit(config)
    killer.join(timeout=5)
    assert code == 0, log
    assert killer.killed == targets
    rows, engines = read(tmp_path / "out")
    assert rows.keys() == ids
    for row in rows.values():
        # Chance may hit one that runs alone twice.
        if row["status"] != "ok":
            assert re.match("its engine died 2 times running it alone: ", row["error"]), row
            assert len(row["death_log"]) == 3
    assert sum(row["status"] == "ok" for row in rows.values()) >= count - kills / 4
    assert kills - 1 <= sum(engine["deaths"] for engine in engines) <= kills, log
    nothing_is_left(cluster)


def test_a_start_that_can_never_work_is_not_repeated(
    submit: Submit, config: dict[str, Any], cluster: LocalRay, tmp_path: Path
) -> None:
    config["engine"] |= {"raises": "the model is not\nthere", "starts": str(tmp_path / "starts")}
    config["engines"]["max_restarts"] = 3
    code, log = submit(config)
    assert code == 1
    sentence = (
        r"longdoc: no engine started: engine-. could not start: ValueError: the model is not "
    )
    assert re.search(sentence + r"there \(the first of 2\)\n", log), log
    assert len((tmp_path / "starts").read_text().splitlines()) == 2
    nothing_is_left(cluster)


@pytest.mark.soak  # the short ring does it with fake engines
def test_engines_that_hang_or_find_no_node_are_given_up(
    submit: Submit, config: dict[str, Any], cluster: LocalRay, tmp_path: Path
) -> None:
    """Three, and room for two."""
    config["engine"]["hangs"] = True
    config["engines"] |= {"count": 3, "start_timeout_s": 5}
    code, log = submit(config)
    assert code == 1
    assert "the cluster has room for 2 of 3 engines now, each of which needs 1 CPU on one" in log
    assert "engine-0 was not ready within engines.start_timeout_s 5 s after it was given a " in log
    assert "longdoc: no engine started: " in log
    nothing_is_left(cluster)


def test_a_job_that_is_stopped_commits_what_is_done_and_leaves_nothing_behind(
    submit: Submit, config: dict[str, Any], cluster: LocalRay, tmp_path: Path
) -> None:
    ids = many(config, tmp_path, 60)
    config["output"] |= {"rows_per_part": 1000, "part_period_s": 1000}
    stopper = threading.Thread(target=stop, args=(cluster, tmp_path / "job.log"), daemon=True)
    stopper.start()
    code, log = submit(config)
    stopper.join(timeout=30)
    # Ray's: it does not wait for the driver's last words, and a job that is stopped is no failure.
    assert code == 0, log
    done = pq.read_table(tmp_path / "out" / "summaries")["doc_id"].to_pylist()
    assert 0 < len(done) == len(set(done)) < len(ids)
    attempts = json.loads((tmp_path / "out" / "manifest.json").read_text())["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["stopped"]
    nothing_is_left(cluster)


def stop(cluster: LocalRay, log: Path) -> None:
    """Once a document is done."""
    wait_for(lambda: log.exists() and re.search(r"\] [1-9]\d*/60", log.read_text()), 600)
    found = re.search(r"raysubmit_\w+", log.read_text())
    assert found is not None
    command = [str(Path(sys.executable).parent / "ray"), "job", "stop", found[0]]
    subprocess.run(command, env=cluster.env, stdout=subprocess.DEVNULL, check=True)
