import asyncio
import io
from dataclasses import replace

from rich.console import Console

from arkv_sglang.batch.metrics import NoMirror
from arkv_sglang.batch.monitor import Monitor
from arkv_sglang.batch.progress import Bar, Progress
from arkv_sglang.batch.scheduler import Limits, Scheduler
from arkv_sglang.batch.tally import Served, Tally
from arkv_sglang.batch.task import task_of
from arkv_sglang.batch.types import Document, Row

from .fakes import FakeEngine, FakePrompts

BUSY = Progress(
    elapsed_s=83,
    done=412,
    known=1000,
    read_all=True,
    failed=3,
    engines_up=2,
    engines=2,
    in_flight=16,
    tokens_per_s=12_345,
    cache_hit_ratio=0.375,
    kv_original_bytes=3 << 30,
    kv_quantized_bytes=512 << 20,
    left_s=100,
)


def test_a_line_of_a_log_has_every_figure() -> None:
    assert BUSY.line() == (
        "[    83 s] 412/1000 documents, 3 failed, 2/2 engines up, 16 in flight, 12,345 tokens/s, "
        "cache hits 37.5 %, KV 3.00 GiB bf16 + 512.0 MiB fp8, about 1 min 40 s left"
    )


def test_what_is_not_known_yet_is_left_out() -> None:
    early = Progress(3, 0, 7, read_all=False, failed=0, engines_up=0, engines=2, in_flight=0)
    assert early.line() == "[     3 s] 0/7+ documents, 0 failed, 0/2 engines up, 0 in flight"


def shown(progress: Progress, width: int) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with Bar(console) as bar:
        bar.show(progress)
        bar.refresh()
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()


def test_a_terminal_has_a_bar_and_the_same_figures() -> None:
    text = shown(BUSY, 120)
    for part in ("412/1000 documents", "41%", "1 min 40 s left", *BUSY.parts()[:-1]):
        assert part in text
    # Until the whole input is read there is no share of it.
    assert "%" not in shown(replace(BUSY, read_all=False, cache_hit_ratio=None, left_s=None), 120)


def test_the_time_left_goes_by_tokens_since_the_longest_come_first() -> None:
    scheduler = Scheduler([FakeEngine()], iter(()), FakePrompts(), lambda row: None, Limits(5))
    tally = Tally()
    monitor = Monitor(scheduler, tally, NoMirror(), lambda line: None)
    lane = scheduler.lanes[0]
    scheduler.read_all, lane.up = True, True
    monitor._started = lane.ready_at = monitor._started - 100
    assert monitor.progress().left_s is None
    tally.add(Row("long", "ok"))
    lane.served = Served(1, prompt_tokens=9000, cached_tokens=1800, output_tokens=10)
    for n in range(100):
        task = task_of(Document(f"d{n}", "x" * 10), FakePrompts())
        scheduler._backlog.add(task)
    progress = monitor.progress()
    # 1000 of 10,000 tokens are left after 100 s, and 100 of 101 documents.
    assert 11 < (progress.left_s or 0) < 12
    assert progress.cache_hit_ratio == 0.2 and 89 < (progress.tokens_per_s or 0) < 91


def test_an_engine_that_is_down_holds_no_kv() -> None:
    scheduler = Scheduler([FakeEngine()], iter(()), FakePrompts(), lambda row: None, Limits(5))
    monitor = Monitor(scheduler, Tally(), NoMirror(), lambda line: None)
    lane = scheduler.lanes[0]
    lane.up, lane.engine.tokens = True, 700
    asyncio.run(monitor.sample_once(lane))
    assert monitor.progress().kv_original_bytes == 700
    lane.up = False
    assert monitor.progress().kv_original_bytes == 0


def test_a_bar_serves_one_phase_after_another() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    bar = Bar(console)
    for label, done in (("", 1000), ("audit: ", 7)):
        with bar:
            bar.show(replace(BUSY, done=done, label=label))
            bar.refresh()
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "1000/1000 documents" in text and "audit: 7/1000 documents" in text
