"""A private Ray cluster on loopback, for the demo and the tests.

It shares nothing with other Ray clusters of the machine: own ports, own folder, own token. Every
process that it starts carries MARK in its environment, and by that mark alone are they stopped.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

MARK = "ARKV_LOCAL_RAY"
# Short, since Ray keeps unix sockets below it and their paths are limited to 107 bytes.
BASE = Path("/tmp")
PREFIX = "arkv-ray-"
OWNER = "owner.json"
ADDRESS = "127.0.0.2"  # Ray rewrites 127.0.0.1 to the address of the network card.
# Ray gives a node 30 s to come up, which a busy machine may need more than; a port may be taken.
START_ATTEMPTS = 3
NODE_PORT_FLAGS = (
    "--node-manager-port",
    "--object-manager-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--runtime-env-agent-port",
    "--metrics-export-port",
)
PORT_FLAGS = ("--port", "--dashboard-port", *NODE_PORT_FLAGS, "--ray-client-server-port")


@dataclass(frozen=True)
class LocalRay:
    """A running cluster. ``address``: of its head, for more nodes and for drivers. ``env``: the
    environment of its clients."""

    address: str
    dashboard_url: str
    env: dict[str, str]
    folder: Path

    def submit(
        self,
        entrypoint: Sequence[str],
        working_dir: Path | str = ".",
        stdout: IO[str] | int | None = None,
    ) -> int:
        """Run ``ray job submit`` and wait. Output streams to ``stdout`` (here: ours); returns the
        exit code, which is 1 for every job that fails."""
        command = [_program("ray"), "job", "submit", "--working-dir", str(working_dir), "--"]
        stderr = subprocess.STDOUT if stdout is not None else None
        return subprocess.run(
            [*command, *entrypoint], env=self.env, stdout=stdout, stderr=stderr, check=False
        ).returncode


@contextmanager
def local_ray(num_cpus: int = 2, object_store_bytes: int = 200_000_000) -> Iterator[LocalRay]:
    """Start a cluster, yield it, and stop it whatever happens, SIGTERM included."""
    _remove_leftovers()
    with ExitStack() as stack:
        stack.enter_context(_sigterm_unwinds())
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=BASE))
        stack.callback(_stop, folder)
        _write_owner(folder)
        yield _start(folder, num_cpus, object_store_bytes)


def _start(folder: Path, num_cpus: int, object_store_bytes: int) -> LocalRay:
    options = [f"--num-cpus={num_cpus}", f"--object-store-memory={object_store_bytes}"]
    log = folder / "start.log"
    for _ in range(START_ATTEMPTS):
        ports = dict(zip(PORT_FLAGS, _free_ports(len(PORT_FLAGS)), strict=True))
        url = f"http://127.0.0.1:{ports['--dashboard-port']}"
        env = _environment(folder, url)
        flags = [f"{flag}={port}" for flag, port in ports.items()]
        if _run_ray_start([*options, *flags], folder, env, log):
            return LocalRay(f"{ADDRESS}:{ports['--port']}", url, env, folder)
        _end_processes(folder)
    raise RuntimeError(f"Ray must start, got {START_ATTEMPTS} failures, the last:\n{_tail(log)}")


def _run_ray_start(options: list[str], folder: Path, env: dict[str, str], log: Path) -> bool:
    command = [_program("ray"), "start", "--head", f"--node-ip-address={ADDRESS}"]
    command += ["--dashboard-host=127.0.0.1", "--disable-usage-stats", f"--temp-dir={folder}"]
    with log.open("w") as output:
        # Its own session, so that a Ctrl-C reaches us first and Ray is stopped in order.
        started = subprocess.run(
            [*command, *options],
            env=env,
            stdout=output,
            stderr=output,
            check=False,
            start_new_session=True,
        )
    return started.returncode == 0


def _environment(folder: Path, url: str) -> dict[str, str]:
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    loopback = f"127.0.0.1,{ADDRESS},localhost"
    return env | {
        MARK: str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}",
        "NO_PROXY": loopback,
        "no_proxy": loopback,
        "PYTHONUNBUFFERED": "1",
        "RAY_API_SERVER_ADDRESS": url,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }


def _program(name: str) -> str:
    # Not resolved: a virtual environment's interpreter is a link to another place.
    return str(Path(sys.executable).parent / name)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def _stop(folder: Path) -> None:
    _end_processes(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _end_processes(folder: Path) -> None:
    processes = _marked(folder)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(processes, timeout=5)
    # Again from the start: a raylet that was stopping may have started one more worker.
    deadline = time.monotonic() + 10
    while (left := _marked(folder)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=2)


def _marked(folder: Path) -> list[psutil.Process]:
    marked = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(folder) and process.pid != os.getpid():
                marked.append(process)
    return marked


def _write_owner(folder: Path) -> None:
    me = psutil.Process()
    (folder / OWNER).write_text(json.dumps({"pid": me.pid, "create_time": me.create_time()}))


def _remove_leftovers() -> None:
    """Stop the clusters of owners that were killed before they could."""
    for owner in BASE.glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError, ValueError, KeyError):
            if owner.stat().st_uid == os.getuid() and not _runs(json.loads(owner.read_text())):
                _stop(owner.parent)


def _runs(owner: dict[str, float]) -> bool:
    try:
        return abs(psutil.Process(int(owner["pid"])).create_time() - owner["create_time"]) < 1
    except psutil.NoSuchProcess:
        return False


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that what is started is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
