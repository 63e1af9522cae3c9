"""How a run ends: the exit code and the one sentence that goes with it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from arkv_sglang.batch.types import OK, STATUSES, RunFailed

DONE, FAILED, STOPPED = 0, 1, 143
T = TypeVar("T")


def run_to_end(
    run: Coroutine[Any, Any, dict[str, Any]],
    max_failure_rate: float,
    complain: Callable[[object], None],
) -> int:
    """Run until the report is there, or SIGTERM. Returns the exit code."""
    try:
        check_outcome(asyncio.run(until_terminated(run)), max_failure_rate)
    except RunFailed as error:
        complain(error)
        return FAILED
    except asyncio.CancelledError:
        complain("stopped; the documents that were done are committed, run again to resume")
        return STOPPED
    return DONE


async def until_terminated(run: Coroutine[Any, Any, T]) -> T:
    """``ray job stop`` sends SIGTERM, and SIGKILL a few seconds later."""
    task = asyncio.ensure_future(run)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def check_outcome(report: dict[str, Any], max_failure_rate: float) -> None:
    """Raise RunFailed when too few documents succeeded."""
    documents = report["totals"]["documents"]
    total, failed = documents["all"], documents["all"] - documents[OK]
    if not total:
        raise RunFailed("the input held no documents")
    counts = ", ".join(f"{documents[s]} {s}" for s in STATUSES if s != OK and documents[s])
    if not documents[OK]:
        error = report["failures"][0]["error"]
        raise RunFailed(f"none of {total} documents succeeded ({counts}); the first: {error}")
    if failed / total > max_failure_rate:
        raise RunFailed(
            f"{failed} of {total} documents failed ({counts}), more than run.max_failure_rate "
            f"{max_failure_rate:g} allows"
        )
