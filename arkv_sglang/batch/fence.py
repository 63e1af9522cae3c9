"""One live driver for each output folder.

On a local file system the operating system's lock decides: it dies with its process. A folder may
also be shared by machines (NFS) or lie on an object store, neither of which can be relied upon to
lock, so each driver keeps a lease as well, a file of its own that it rewrites with a new count:

* Who comes writes its lease first and looks for others then, so of two who come at once at least
  one sees the other; the lower token stays.
* A lease that stands still for ``lease_s``, measured by the clock of the one who watches, is that
  of a dead driver. Clocks of different machines are never compared.
* A driver stops when it sees a lease that holds the folder and is not its own, or misses its own.
  It looks before each file that it writes. What it had begun to write before may still land: a
  whole file of an older attempt, in which the merged view finds nothing new.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

import filelock
import pyarrow as pa

from arkv_sglang.batch.store import Store, is_torn
from arkv_sglang.batch.types import RunFailed

FOLDER = ".driver"
LOCK = f"{FOLDER}/lock"
CLAIMING, HOLDING, UNREADABLE = "claiming", "holding", "unreadable"
BEATS_PER_LEASE = 6
_NO_LOCKS = (ENOLCK, ENOSYS, EOPNOTSUPP)


class Held(RunFailed):
    """Another driver is alive and has the folder."""


class Fenced(RunFailed):
    """This driver has lost the folder and must write nothing more."""


@dataclass(frozen=True)
class Lease:
    token: str
    state: str
    host: str
    machine: str
    pid: int
    since: str
    beat: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@dataclass(slots=True)
class _Sighting:
    """A rival's lease as first seen and now; times are ``time.monotonic()`` seconds."""

    first: Lease
    last: Lease
    seen_at: float
    changed_at: float

    @property
    def is_alive(self) -> bool:
        return self.last != self.first


class Fence:
    """Keeps other drivers out of a store's folder from ``acquire`` to ``release``."""

    def __init__(self, store: Store, lease_s: float, shown: str) -> None:
        self._store = store
        self._lease_s = lease_s
        self._shown = shown
        self._lease = Lease(
            token=secrets.token_hex(8),
            state=CLAIMING,
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            beat=0,
        )
        self._lock: filelock.BaseFileLock | None = None
        self._seen: dict[str, _Sighting] = {}
        self._dead: set[str] = set()
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._keep_beating, name="lease", daemon=True)
        self.lost: Fenced | None = None

    def acquire(self) -> None:
        """Take the folder, also from a driver that is dead: at once where the lock proves that,
        else after ``lease_s``. Raises Held, OSError."""
        self._store.make_folder(FOLDER)
        try:
            self._take_lock()
            self._take_lease()
        except BaseException:
            self.release()
            raise
        self._heart.start()

    def release(self) -> None:
        """Let others in."""
        self._stop.set()
        with self._writing, suppress(OSError, pa.ArrowException):
            self._store.delete(self._name(self._lease.token))
        if self._lock is not None:
            self._lock.release()

    def check(self) -> None:
        """Raises Fenced when the folder is not this driver's any more."""
        others = [lease for lease in self._leases() if lease.token != self._lease.token]
        for rival in others:
            if rival.state == HOLDING and rival.token not in self._dead:
                self.lost = Fenced(
                    f"output.dir must have one driver, got {self._shown} taken over by {rival} "
                    f"while this one did not answer for {self._lease_s:g} s; leave it to that one"
                )
        if not self._has_lease():
            self.lost = self.lost or Fenced(
                f"output.dir must stay in place while a driver runs, got {self._shown} without "
                "this driver's lease; whoever removed it must stop, then run again to resume"
            )
        if self.lost is not None:
            raise self.lost

    # The lock

    def _take_lock(self) -> None:
        if not self._store.is_local:
            return
        path = Path(self._store.path(LOCK))
        lock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False)
        started = time.monotonic()
        while True:
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:
                self._wait_for_lock(time.monotonic() - started)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                return
            else:
                self._lock = lock
                return

    def _wait_for_lock(self, waited_s: float) -> None:
        """A file server keeps the lock of a machine that crashed for a while."""
        holders = sorted(self._look(), key=lambda sighting: sighting.last.since, reverse=True)
        for holder in holders:
            if holder.last.machine == self._lease.machine or holder.is_alive:
                raise self._held_by(holder.last)
        # Where there is no lease yet, it comes right after the lock.
        if waited_s > (2 * self._lease_s if holders else 1.0):
            raise self._held_by(holders[0].last if holders else None)
        self._pause()

    # The lease

    def _take_lease(self) -> None:
        self._write()
        while rivals := [rival for rival in self._look() if not self._is_dead(rival)]:
            for rival in rivals:
                if rival.is_alive and self._goes_first(rival):
                    raise self._held_by(rival.last)
            self._pause()
            self._write()
        self._write(HOLDING)
        # One that was taken for dead may have got as far as this, too.
        self.check()
        for name in self._store.names(FOLDER):
            torn = is_torn(name) and self._lock is not None
            if torn or name in map(self._name, self._dead):
                self._store.delete(name)

    def _goes_first(self, rival: _Sighting) -> bool:
        if rival.last.state == UNREADABLE:
            # Mostly it is just being written, and the next look tells whose it is.
            return time.monotonic() - rival.seen_at > self._lease_s
        return rival.last.state == HOLDING or rival.last.token < self._lease.token

    def _is_dead(self, rival: _Sighting) -> bool:
        # Who runs on this machine and has not the lock does not run.
        locked_out = self._lock is not None and rival.last.machine == self._lease.machine
        if locked_out or time.monotonic() - rival.changed_at > self._lease_s:
            self._dead.add(rival.last.token)
        return rival.last.token in self._dead

    def _look(self) -> list[_Sighting]:
        """The other leases that there are now."""
        leases = [lease for lease in self._leases() if lease.token != self._lease.token]
        now = time.monotonic()
        for lease in leases:
            sighting = self._seen.get(lease.token)
            if sighting is None:
                self._seen[lease.token] = _Sighting(lease, lease, now, now)
            elif sighting.last != lease:
                sighting.last, sighting.changed_at = lease, now
        return [self._seen[lease.token] for lease in leases]

    def _leases(self) -> list[Lease]:
        leases = []
        for name in self._store.names(FOLDER):
            if name.endswith(".json"):
                with suppress(FileNotFoundError):
                    leases.append(_parse(name, self._store.read(name)))
        return leases

    def _has_lease(self) -> bool:
        """By name, since a list may miss a file that is being replaced."""
        try:
            self._store.read(self._name(self._lease.token))
        except FileNotFoundError:
            return False
        return True

    def _write(self, state: str | None = None) -> None:
        with self._writing:
            if self._stop.is_set():
                return
            self._lease = replace(
                self._lease, state=state or self._lease.state, beat=self._lease.beat + 1
            )
            data = json.dumps(asdict(self._lease)).encode()
            self._store.replace(self._name(self._lease.token), data)

    def _keep_beating(self) -> None:
        while not self._stop.wait(self._lease_s / BEATS_PER_LEASE):
            try:
                self.check()
                self._write()
            except Fenced:
                return
            except (OSError, pa.ArrowException):
                # While this fails, so does each commit, and that ends the run with its reason.
                continue

    def _held_by(self, holder: Lease | None) -> Held:
        who = str(holder) if holder else "another process, which has not given its name yet"
        return Held(
            f"output.dir must have one driver, got {self._shown}, which is held by {who}; "
            "wait for it, stop it, or choose another folder"
        )

    def _pause(self) -> None:
        time.sleep(min(1.0, self._lease_s / BEATS_PER_LEASE))

    @staticmethod
    def _name(token: str) -> str:
        return f"{FOLDER}/{token}.json"


def _parse(name: str, data: bytes) -> Lease:
    try:
        return Lease(**json.loads(data))
    except (ValueError, TypeError):
        # Some stores show a file while it is being written.
        token = name.removeprefix(f"{FOLDER}/").removesuffix(".json")
        return Lease(token, UNREADABLE, "another host", "", 0, "now", len(data))


def _machine() -> str:
    """What tells apart kernels, of which each keeps its own locks; containers share one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
