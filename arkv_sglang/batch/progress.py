"""How far a run is: one plain line for a job log, or a bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from arkv_sglang.report.text import show_bytes, show_duration, show_ratio

BAR_PERIOD_S = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """``known`` documents have been read, which are all if ``read_all``. Rates are of the time
    since the first engine was up; None before that."""

    elapsed_s: float
    done: int
    known: int
    read_all: bool
    failed: int
    engines_up: int
    engines: int
    in_flight: int
    tokens_per_s: float | None = None
    cache_hit_ratio: float | None = None
    kv_original_bytes: float = 0
    kv_quantized_bytes: float = 0
    left_s: float | None = None
    label: str = ""

    @property
    def documents(self) -> str:
        return f"{self.label}{self.done}/{self.known}{'' if self.read_all else '+'}"

    def parts(self) -> list[str]:
        """Everything but how many documents are done."""
        parts = [
            f"{self.failed} failed",
            f"{self.engines_up}/{self.engines} engines up",
            f"{self.in_flight} in flight",
        ]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:,.0f} tokens/s")
            if self.cache_hit_ratio is not None:
                parts.append(f"cache hits {show_ratio(self.cache_hit_ratio)}")
            bf16, fp8 = show_bytes(self.kv_original_bytes), show_bytes(self.kv_quantized_bytes)
            parts.append(f"KV {bf16} bf16 + {fp8} fp8")
        if self.left_s is not None:
            parts.append(f"about {show_duration(self.left_s)} left")
        return parts

    def line(self) -> str:
        return f"[{self.elapsed_s:6.0f} s] " + ", ".join(
            (f"{self.documents} documents", *self.parts())
        )


class Display(Protocol):
    """Where progress is shown every ``period_s``, in a ``with`` block."""

    period_s: float

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, progress: Progress) -> None: ...


class Lines(AbstractContextManager["Lines"]):
    """In a log: a line now and then."""

    def __init__(self, say: Callable[[str], None], period_s: float) -> None:
        self._say = say
        self.period_s = period_s

    def __exit__(self, *_: object) -> None: ...

    def show(self, progress: Progress) -> None:
        self._say(progress.line())


class Bar(RichProgress):
    """On a terminal: a bar, and the figures in a line below it. What is printed meanwhile goes
    above. The bar vanishes at its end, when the last line says the same."""

    period_s = BAR_PERIOD_S

    def __init__(self, console: Console) -> None:
        self._figures = Text()
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.fields[documents]} documents"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            expand=True,
        )
        self._bar = self.add_task("", total=None, documents="0/0+", left="")

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield self._figures

    def show(self, progress: Progress) -> None:
        left = "" if progress.left_s is None else f"{show_duration(progress.left_s)} left"
        self._figures = Text("  " + ", ".join(progress.parts()[: -1 if left else None]))
        self.update(
            self._bar,
            completed=progress.done,
            total=progress.known if progress.read_all else None,
            documents=progress.documents,
            left=left,
        )
