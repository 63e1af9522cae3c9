"""A second node of the local cluster, and what runs on both."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from arkv_sglang.batch.local_ray import MARK, NODE_PORT_FLAGS, LocalRay, _free_ports

ADDRESS = "127.0.0.3"
ENGINE, CHILD, RAYLET = "ray::EngineActor", "sleep 86421", f"--node_ip_address={ADDRESS}"


@contextmanager
def second_node(cluster: LocalRay, num_cpus: int, num_gpus: int = 0) -> Iterator[None]:
    """Ray believes in GPUs that are not there."""
    ray = str(Path(sys.executable).parent / "ray")
    command = [ray, "start", f"--address={cluster.address}", f"--node-ip-address={ADDRESS}"]
    command += [f"--num-cpus={num_cpus}", f"--num-gpus={num_gpus}", "--disable-usage-stats"]
    ports = zip(NODE_PORT_FLAGS, _free_ports(len(NODE_PORT_FLAGS)), strict=True)
    command += [f"{flag}={port}" for flag, port in ports]
    command += ["--object-store-memory=100000000"]
    env = cluster.env | {"RAY_TMPDIR": str(cluster.folder)}
    log = cluster.folder / "second.log"
    with log.open("w") as output:
        started = subprocess.run(
            command, env=env, stdout=output, stderr=output, check=False, start_new_session=True
        )
    assert started.returncode == 0, log.read_text()
    try:
        yield
    finally:
        kill_all(cluster, RAYLET)


def running(cluster: LocalRay, words: str) -> list[psutil.Process]:
    """The cluster's processes with these words in their commands."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            ours = process.environ().get(MARK) == str(cluster.folder)
            if ours and words in " ".join(process.cmdline()):
                found.append(process)
    return found


def kill_all(cluster: LocalRay, words: str) -> None:
    for process in running(cluster, words):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def wait_for(condition: Callable[[], object], limit_s: float = 300) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
