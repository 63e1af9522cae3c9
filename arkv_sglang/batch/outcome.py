"""How a run ends: the exit code and the one sentence that goes with it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from arkv_sglang.batch.types import OK, STATUSES, RunFailed
from arkv_sglang.report.text import show_count

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
    reason = why_failed(documents, max_failure_rate)
    if reason and documents["all"] and not documents[OK]:
        reason += f"; the first: {report['failures'][0]['error']}"
    if reason:
        raise RunFailed(reason)


def why_failed(documents: Mapping[str, int], max_failure_rate: float) -> str | None:
    """The sentence about too few successes among ``documents``: counts by status, and ``all``."""
    total, failed = documents["all"], documents["all"] - documents[OK]
    if not total:
        return "the input held no documents"
    counts = ", ".join(f"{documents[s]} {s}" for s in STATUSES if s != OK and documents[s])
    if not documents[OK]:
        return f"none of {show_count(total, 'document')} succeeded ({counts})"
    if failed / total > max_failure_rate:
        return (
            f"{failed:,} of {show_count(total, 'document')} failed ({counts}), "
            f"more than run.max_failure_rate {max_failure_rate:g} allows"
        )
    return None
