"""Which processes the local cluster stops, and when, with ``sleep`` in place of Ray."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from arkv_sglang.batch import local_ray

Spawn = Callable[[str], subprocess.Popen[bytes]]
SCRIPT = """
import os, signal, subprocess, time
from arkv_sglang.batch import local_ray

# A shell that starts the tests in the background has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def start(folder, num_cpus, object_store_bytes):
    env = os.environ | {local_ray.MARK: str(folder)}
    print(folder, subprocess.Popen(["sleep", "60"], env=env).pid, flush=True)

local_ray._start = start
with local_ray.local_ray():
    time.sleep(60)
"""


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a process that carries a mark."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(mark: str) -> subprocess.Popen[bytes]:
        env = os.environ | {local_ray.MARK: mark}
        processes.append(subprocess.Popen(["sleep", "60"], env=env))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def owned_by(folder: Path, pid: int, create_time: float) -> Path:
    folder.mkdir()
    owner = json.dumps({"pid": pid, "create_time": create_time})
    (folder / local_ray.OWNER).write_text(owner)
    return folder


def test_only_clusters_whose_owner_is_gone_are_removed(
    tmp_path: Path, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ray, "BASE", tmp_path)
    me = psutil.Process()
    alive = owned_by(tmp_path / f"{local_ray.PREFIX}alive", me.pid, me.create_time())
    # The owner's process id belongs to somebody else by now.
    dead = owned_by(tmp_path / f"{local_ray.PREFIX}dead", me.pid, me.create_time() - 1000)
    others = spawn(str(alive)), spawn("elsewhere")
    leftover = spawn(str(dead))
    local_ray._remove_leftovers()
    assert not psutil.pid_exists(leftover.pid)
    assert [process.poll() for process in others] == [None, None]
    assert alive.exists() and not dead.exists()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_what_was_started(sent: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        folder, pid = owner.stdout.readline().decode().split()
        assert Path(folder).exists() and psutil.pid_exists(int(pid))
        owner.send_signal(sent)
        owner.communicate(timeout=30)
    assert owner.returncode == {signal.SIGTERM: 143, signal.SIGINT: -signal.SIGINT}[sent]
    assert not Path(folder).exists() and not psutil.pid_exists(int(pid))


def test_ports_are_free_and_all_different() -> None:
    ports = local_ray._free_ports(9)
    assert len(set(ports)) == 9


def test_a_start_that_fails_is_tried_again_with_other_ports(
    tmp_path: Path, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str]] = []
    halves: list[subprocess.Popen[bytes]] = []

    def run(options: list[str], folder: Path, env: dict[str, str], log: Path) -> bool:
        tried.append(options)
        halves.append(spawn(str(folder)))
        log.write_text(f"no luck {len(tried)}")
        return len(tried) == 2

    monkeypatch.setattr(local_ray, "_run_ray_start", run)
    cluster = local_ray._start(tmp_path, 2, 1000)
    assert tried[0] != tried[1] and f"--dashboard-port={cluster.dashboard_url[-5:]}" in tried[1]
    assert not psutil.pid_exists(halves[0].pid) and psutil.pid_exists(halves[1].pid)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(local_ray, "_run_ray_start", lambda *_: False)
    with pytest.raises(RuntimeError, match="Ray must start, got 3 failures, the last:\nno luck 2"):
        local_ray._start(tmp_path, 2, 1000)
