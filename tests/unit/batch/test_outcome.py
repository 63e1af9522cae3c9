import asyncio
import os
import re
import signal

import pytest

from arkv_sglang.batch.outcome import check_outcome, until_terminated
from arkv_sglang.batch.types import STATUSES, RunFailed


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((0, 0, 0, 0), "the input held no documents"),
        ((0, 0, 2, 0), "none of 2 documents succeeded (2 invalid); the first: why"),
        (
            (7, 2, 1, 0),
            "3 of 10 documents failed (2 too_long, 1 invalid), more than "
            "run.max_failure_rate 0.1 allows",
        ),
        (
            (8, 0, 0, 2),
            "2 of 10 documents failed (2 error), more than run.max_failure_rate 0.1 allows",
        ),
    ],
)
def test_a_run_that_failed_says_why(counts: tuple[int, ...], message: str) -> None:
    documents = dict(zip(STATUSES, counts, strict=True)) | {"all": sum(counts)}
    failures = [{"error": "why"}] * (sum(counts) - counts[0])
    report = {"totals": {"documents": documents}, "failures": failures}
    with pytest.raises(RunFailed, match=f"^{re.escape(message)}$"):
        check_outcome(report, 0.1)


def test_sigterm_cancels_the_run_in_time_to_commit() -> None:
    committed = False

    async def run() -> None:
        nonlocal committed
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(60)
        finally:
            committed = True

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(until_terminated(run()))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert committed
