"""Two drivers, one folder. With locks (a local file system) and without (``shared``)."""

import json
import shutil
import signal
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from arkv_sglang.batch.config import OutputConfig
from arkv_sglang.batch.fence import FOLDER, HOLDING, Fence, Held, Lease
from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.store import Store

from .drivers import Driver, Plan, finish

SHARED = pytest.param((True, 5.0), id="shared")
# So long a lease that only the lock can tell.
LOCAL = pytest.param((False, 3600.0), id="local")


@pytest.fixture
def plan(tmp_path: Path, request: pytest.FixtureRequest) -> Plan:
    """Of a driver that is busy for as long as it is needed."""
    shared, lease_s = request.param
    corpus = tmp_path / "documents.jsonl"
    rows = [{"doc_id": f"d{n}", "text": f"text {n}"} for n in range(100)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = {"lease_s": lease_s, "rows_per_part": 2}
    return Plan(corpus, tmp_path / "out", output, document_s=1, shared=shared)


@pytest.mark.parametrize("plan", [LOCAL, SHARED], indirect=True)
def test_of_two_drivers_at_once_one_is_refused(plan: Plan) -> None:
    both = [Driver(plan), Driver(plan)]
    while all(driver.is_alive for driver in both):
        time.sleep(0.01)
    refused, other = sorted(both, key=lambda driver: driver.is_alive)
    assert refused.wait() == 1
    assert f"which is held by process {other.pid} on " in refused.log
    assert "Traceback" not in refused.log
    other.until_said("answered")
    other.send(signal.SIGTERM)
    assert other.wait() == 143, other.log


@pytest.mark.parametrize("plan", [LOCAL, SHARED], indirect=True)
def test_a_dead_driver_is_taken_over_and_a_live_one_is_named(plan: Plan) -> None:
    first = Driver(plan)
    first.until_committed()
    code, log = finish(plan)
    assert code == 1 and f"held by process {first.pid} on " in log
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    code, log = finish(replace(plan, document_s=0))
    assert code == 0 and "resuming: " in log, log
    left = [path.name for path in (plan.out / FOLDER).iterdir()]
    assert left == ([] if plan.shared else ["lock"])


@pytest.mark.parametrize("plan", [SHARED], indirect=True)
def test_a_driver_that_hung_commits_nothing_after_it_was_taken_over(plan: Plan) -> None:
    first = Driver(replace(plan, document_s=0.1))
    first.until_committed()
    first.send(signal.SIGSTOP)
    while psutil.Process(first.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)
    before = set(first.until_committed())
    second = Driver(replace(plan, document_s=1))
    own = set(second.until_committed(len(before) + 1)) - before
    first.send(signal.SIGCONT)
    assert first.wait() == 1
    assert f"taken over by process {second.pid}" in first.log and "Traceback" not in first.log
    second.send(signal.SIGTERM)
    assert second.wait() == 143, second.log
    attempt = next(iter(own)).name[:20]
    parts = set((plan.out / "summaries").iterdir())
    assert all(path.name.startswith(attempt) for path in parts - before)
    manifest = json.loads((plan.out / "manifest.json").read_text())
    assert [a["outcome"] for a in manifest["attempts"]] == ["died", "stopped"]


@contextmanager
def lease_of_another_machine(out: Path, beats: bool, torn: int = 0) -> Any:
    """What a driver on another machine that shares the folder leaves, or rewrites; of the first
    ``torn`` beats only a part is to be seen."""
    lease = Lease("0" * 16, HOLDING, "far", "another kernel", 7, "2026-01-01T00:00:00+00:00", 0)
    path = out / FOLDER / f"{lease.token}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(asdict(lease)))
    stop = threading.Event()

    def beat() -> None:
        store, count = Store(str(out)), 0
        while not stop.wait(0.02):
            count += 1
            data = json.dumps(asdict(replace(lease, beat=count))).encode()
            seen = data[:count] if count <= torn else data
            store.replace(f"{FOLDER}/{path.name}", seen)

    thread = threading.Thread(target=beat if beats else stop.wait)
    thread.start()
    try:
        yield path
    finally:
        stop.set()
        thread.join()


def test_another_machine_is_alive_while_its_lease_changes(tmp_path: Path) -> None:
    with lease_of_another_machine(tmp_path, beats=True) as lease:
        with pytest.raises(Held, match="held by process 7 on far since 2026-01-01T00:00:00"):
            OutputFolder(OutputConfig(dir=str(tmp_path), lease_s=2))
        assert lease.exists()


def test_a_lease_that_is_being_written_is_read_again(tmp_path: Path) -> None:
    with (
        lease_of_another_machine(tmp_path, beats=True, torn=30) as lease,
        pytest.raises(Held, match="held by process 7 on far since 2026-01-01T00:00:00"),
    ):
        lease.write_text("")
        OutputFolder(OutputConfig(dir=str(tmp_path), lease_s=2))


def test_another_machine_is_dead_when_its_lease_stands_still(tmp_path: Path) -> None:
    with lease_of_another_machine(tmp_path, beats=False) as lease:
        began = time.monotonic()
        with closing(OutputFolder(OutputConfig(dir=str(tmp_path), lease_s=2))):
            assert time.monotonic() - began > 2 and not lease.exists()


def test_a_folder_that_was_removed_is_not_written_again(tmp_path: Path) -> None:
    fence = Fence(Store(str(tmp_path)), 60, "the folder")
    fence.acquire()
    fence.check()
    shutil.rmtree(tmp_path / FOLDER)
    (tmp_path / FOLDER).mkdir()
    with pytest.raises(RuntimeError, match="must stay in place while a driver runs"):
        fence.check()
    fence.release()
