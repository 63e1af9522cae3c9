"""What a run would take, before it is started: the corpus in tokens, KV memory, time."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from arkv_sglang.batch import rows
from arkv_sglang.batch.audit_choice import num_audited
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.kv_plan import KVPlanner
from arkv_sglang.batch.model_shape import load_model_shape
from arkv_sglang.batch.outcome import FAILED, why_failed
from arkv_sglang.batch.pace import Pace, pace_of_report, probe
from arkv_sglang.batch.redact import redact_uris
from arkv_sglang.batch.rehearsal import Rehearsal, rehearse
from arkv_sglang.batch.split import CannotSplit
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.task import SINGLE, Task, task_of
from arkv_sglang.batch.types import (
    INVALID,
    OK,
    STATUSES,
    TOO_LONG,
    BadDocument,
    Document,
    Engine,
    EngineInfo,
    PartBuilder,
    Row,
)

GIB = 1 << 30
FITS, CUT = "fits", "cut"
MAX_REASONS = 5


class DryRun:
    """Read the input, probe if wanted, plan. Raises ConfigError.

    ``report``: path or URI of an earlier run's report.json. ``kv_gib``: KV memory of one engine.
    """

    def __init__(
        self,
        config: JobConfig,
        prompts: PartBuilder,
        report: str | None = None,
        kv_gib: float | None = None,
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._kv_gib = kv_gib
        self._strategy = Strategy(config.strategy, prompts)
        self._shape = load_model_shape(config.engine)
        self._pace: Pace | None = pace_of_report(report, config) if report else None
        self._lengths, self._whole = array("q"), array("q")
        self._cut: list[Rehearsal] = []
        self._invalid: Counter[str] = Counter()
        self._uncut: Counter[str] = Counter()
        self._limit_of_cuts = self._num_probes = 0
        self.probes: list[Document] = []

    def read(self, source: Iterable[Document | BadDocument], num_probes: int = 0) -> None:
        """Tokenize every document, and cut those that are too long if the strategy says so; of
        those that can be done, draw ``num_probes``, all equally likely."""
        draw, num_fitting, self._num_probes = random.Random(0), 0, num_probes
        limit = self._limit_of_cuts = self._max_prompt_tokens(self._planner()[1])
        for document in _shown(source):
            task = task_of(document, self._prompts)
            if isinstance(task, Row):
                self._invalid[task.error or ""] += 1
                continue
            if task.prompt_tokens <= self._strategy.max_prompt_tokens(task.document, limit):
                self._add_whole(task)
            elif not self._add_too_long(task, limit):
                continue
            # A reservoir: the n-th document comes in with a chance of num_probes / n.
            place = draw.randrange(num_fitting := num_fitting + 1)
            if len(self.probes) < num_probes:
                self.probes.append(task.document)
            elif place < num_probes:
                self.probes[place] = task.document

    def _add_whole(self, task: Task) -> None:
        self._lengths.append(task.prompt_tokens)
        self._whole.append(task.prompt_tokens)

    def _add_too_long(self, task: Task, limit: int) -> bool:
        """Whether it can be done all the same."""
        strategy, new_tokens = self._strategy, self._config.sampling.max_new_tokens
        if not strategy.splits(task.document):
            self._add_whole(task)
            return False
        try:
            most = strategy.max_prompt_tokens(task.document, limit)
            cut = rehearse(strategy.split(task, most, new_tokens), self._prompts, new_tokens)
        except CannotSplit as error:
            self._uncut[str(error)] += 1
            self._lengths.append(task.prompt_tokens)
            return False
        except Exception as error:
            self._invalid[rows.unmade(error)] += 1
            return False
        self._cut.append(cut)
        self._lengths.append(task.prompt_tokens)
        return True

    async def probe(self, engine: Engine) -> None:
        """Time the documents that were drawn. Raises RunFailed."""
        self._pace = await probe(self._config, engine, self.probes, self._prompts, self._strategy)

    def plan(self) -> dict[str, Any]:
        """Everything that is shown, as plain data with units in the keys."""
        config, shape = self._config, self._shape
        planner, memory = self._planner()
        limit = self._max_prompt_tokens(memory)
        # A run cuts by the memory that it finds, also where that was not known when these were.
        whole = [length for length in self._whole if self._splits or length <= limit]
        cut = self._cut
        lengths = [*whole, *(length for document in cut for length in document.prompt_tokens)]
        fits, known = len(whole) + len(cut), len(self._lengths)
        own = planner.configured if planner else None
        documents = {
            FITS: fits,
            CUT: len(cut),
            TOO_LONG: known - fits,
            INVALID: self._invalid.total(),
            "all": known + self._invalid.total(),
        }
        return {
            "input": redact_uris(", ".join(config.input.path)),
            "model": config.engine["model_path"],
            "documents": documents,
            "strategy": config.strategy.kind,
            "chunks": sum(document.n_chunks for document in cut),
            "limit_of_cuts": self._limit_of_cuts,
            "invalid_reasons": self._invalid.most_common(MAX_REASONS),
            "too_long_reasons": self._uncut.most_common(MAX_REASONS),
            "prompt_tokens": _summary(self._lengths),
            "max_prompt_tokens": limit,
            "max_new_tokens": config.sampling.max_new_tokens,
            "context_tokens": shape.context_tokens,
            "requests": len(lengths),
            "memory": memory,
            "kv_unknown": shape.unknown,
            "kv": [asdict(line) for line in planner.plan(lengths)] if planner and lengths else [],
            "window_docs": config.engines.window_docs,
            "when": own.when if own else None,
            "audit": self._audit(fits, lengths),
            "can_probe": fits > 0,
            "time": self._time(lengths) if lengths else None,
            "warnings": list(self._warnings(documents)),
        }

    @property
    def _has_own_prompts(self) -> bool:
        """A prompt that came with its document is never cut."""
        return self._config.input.format == "openai"

    @property
    def _splits(self) -> bool:
        return self._config.strategy.kind != SINGLE and not self._has_own_prompts

    def _planner(self) -> tuple[KVPlanner | None, dict[str, Any] | None]:
        """The planner, and what is known of an engine's KV memory."""
        config, pace, geometry = self._config, self._pace, self._shape.geometry
        if geometry is None:
            return None, None
        planner = KVPlanner(
            geometry, self._shape.context_tokens, config.sampling.max_new_tokens, config.engine
        )
        token_bytes = geometry.token_bytes
        max_total_tokens = config.engine.get("max_total_tokens")
        if self._kv_gib is not None:
            tokens, source = int(self._kv_gib * GIB / token_bytes), "--kv-gib"
        elif isinstance(max_total_tokens, int):
            tokens, source = max_total_tokens, "engine.max_total_tokens"
        elif pace and pace.capacity_tokens:
            tokens = planner.memory_of(pace.capacity_tokens, pace.is_compressing)
            source = pace.source
        else:
            return planner, None
        planner = replace(planner, memory_tokens=tokens)
        return planner, {
            "tokens": tokens,
            "bytes": tokens * token_bytes,
            "capacity_tokens": planner.capacity_tokens(planner.configured is not None),
            "max_text_tokens": planner.max_text_tokens,
            "source": source,
        }

    def _max_prompt_tokens(self, memory: dict[str, Any] | None) -> int:
        """As the scheduler has it; while the memory is unknown, by the context alone."""
        context = self._shape.context_tokens
        longest = memory["max_text_tokens"] if memory else context
        info = EngineInfo(context, longest, device="")
        return info.max_prompt_tokens(self._config.sampling.max_new_tokens)

    def _audit(self, num_documents: int, lengths: Sequence[int]) -> dict[str, Any] | None:
        """Those done again with full KV, by the average of all; ``lengths`` in tokens, of all
        requests. At the pace of the run: with full KV it is slower."""
        audit = self._config.audit
        count = num_audited(num_documents, audit.fraction)
        if not count:
            return None
        num_answers = count + min(count, audit.repeat_documents)
        time = self._time(lengths)
        share = num_answers / num_documents
        return {
            "documents": count,
            "repeat_documents": num_answers - count,
            "prompt_tokens": round(share * sum(lengths)),
            "least_s": time["start_s"] + share * time["generating_s"] if time else None,
        }

    def _warnings(self, documents: Mapping[str, int]) -> Iterator[str]:
        """What the run is bound to end with, as far as its documents tell."""
        config, too_long = self._config, documents[TOO_LONG]
        outcome = {**dict.fromkeys(STATUSES, 0), **documents, OK: documents[FITS]}
        if reason := why_failed(outcome, config.run.max_failure_rate):
            remedy = ""
            if too_long and config.strategy.kind == SINGLE and not self._has_own_prompts:
                remedy = "; pass --set strategy=map_reduce to cut those that are too long"
            yield f"the run would end with exit code {FAILED}: {reason}{remedy}"
        if self._num_probes and not self.probes:
            yield "--probe timed nothing, since no document can be done"

    def _time(self, lengths: Sequence[int]) -> dict[str, Any] | None:
        pace, num_engines = self._pace, self._config.engines.count
        if pace is None:
            return None
        tokens = sum(lengths) + len(lengths) * pace.output_tokens
        generating_s = tokens / (pace.tokens_per_s * num_engines)
        return {
            "source": pace.source,
            "warnings": list(pace.warnings),
            "engines": num_engines,
            "tokens_per_s_per_engine": pace.tokens_per_s,
            "output_tokens_per_request": pace.output_tokens,
            "start_s": pace.start_s,
            "generating_s": generating_s,
            "all_s": pace.start_s + generating_s,
        }


def _shown(source: Iterable[Document | BadDocument]) -> Iterable[Document | BadDocument]:
    """With a sign of life on a terminal."""
    console = Console(stderr=True)
    return track(
        source, "reading", console=console, transient=True, disable=not console.is_terminal
    )


def _summary(lengths: Sequence[int]) -> dict[str, int] | None:
    if not len(lengths):
        return None
    values = np.asarray(lengths)
    return {
        "min": int(values.min()),
        "median": int(np.median(values)),
        "p95": int(np.quantile(values, 0.95)),
        "max": int(values.max()),
        "total": int(values.sum()),
    }
