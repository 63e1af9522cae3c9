"""A document on its way to its row: its requests go out stage by stage, their results come in."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from arkv_sglang.batch import rows
from arkv_sglang.batch.types import (
    ERROR,
    OK,
    BadDocument,
    Chunk,
    Document,
    PromptBuilder,
    Request,
    Result,
    Row,
)

SINGLE, MAP_REDUCE, REFINE = "single", "map_reduce", "refine"


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One request of a document. Level 0 reads the text, from character ``begin`` to ``end``; the
    levels above combine what was made of that range. ``name``: for who reads an error."""

    request: Request
    level: int = 0
    index: int = 0
    begin: int = 0
    end: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """Requests that may run at once. ``n_chunks``: pieces of the text. ``later_tokens``: prompt
    tokens of the stages to come, as far as one can tell."""

    steps: Sequence[Step]
    n_chunks: int = 1
    later_tokens: int = 0


# The last stage has one step, whose result is the document's.
Stages = Generator[Stage, Sequence[Result], None]


def whole(request: Request) -> Stages:
    """The document in one request."""
    yield Stage([Step(request)])


@dataclass(frozen=True, slots=True)
class Answer:
    engine: str
    result: Result


Recall = Callable[[Step], Answer | None]


def recall_nothing(step: Step) -> None:
    return None


class Task:
    """One document. ``turn``: its place among those that were cut, None if it is whole. ``ended``:
    it has its row, and what else is on its way is of no use. ``death_log``: of engines that were
    running a piece of it."""

    def __init__(
        self,
        document: Document,
        prompt_tokens: int,
        stages: Stages,
        strategy: str = SINGLE,
        turn: int | None = None,
        recall: Recall = recall_nothing,
    ) -> None:
        """``prompt_tokens``: of the whole document in one prompt, however long. ``recall``: what an
        earlier attempt got for a step of a document that is cut."""
        self.document = document
        self.prompt_tokens = prompt_tokens
        self.turn = turn
        self.ended = False
        self.death_log: list[str] = []
        self._strategy = strategy
        self._recall = recall
        self._stages = stages
        self._stage: Stage | None = None
        self._answers: dict[Step, Result] = {}
        self._results: list[Result] = []
        self._starts: list[float] = []
        self._engine: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.turn is None

    @property
    def later_tokens(self) -> int:
        """Prompt tokens of requests that are not made yet."""
        return self.prompt_tokens if self._stage is None else self._stage.later_tokens

    @property
    def has_answers(self) -> bool:
        """Whether all requests that went out are answered."""
        return self._stage is not None and len(self._answers) == len(self._stage.steps)

    def advance(self) -> Sequence[Step]:
        """The requests that come next, once all that went out are answered; none at the end. It may
        cut and tokenize, so it takes its time. Raises CannotSplit, and what the user's templates
        do."""
        while steps := self._next_stage():
            unknown = [step for step in steps if not self._recalls(step)]
            if unknown:
                return unknown
        return ()

    def take(self, step: Step, result: Result, engine: str) -> None:
        """Note what an engine has just made of a step."""
        self._starts.append(time.monotonic() - result.e2e_s)
        self._note(step, Answer(engine, result))

    def chunk(self, step: Step, result: Result, engine: str) -> Chunk:
        """The same for the table of chunks."""
        place = (step.level, step.index, step.begin, step.end)
        return Chunk(self.document.doc_id, *place, step.request.digest(), engine, result)

    def answered(self) -> Row:
        """Its row, when no stage is left."""
        waited_s = self._starts[-1] - min(self._starts) if self._starts else 0.0
        return rows.answered(self._row(OK), self._results, waited_s, self._engine)

    def failed(
        self,
        error: str,
        step: Step | None = None,
        status: str = ERROR,
        engine: str | None = None,
    ) -> Row:
        """Its row when ``step``, or what all have in common, went wrong."""
        if step and step.name:
            error = f"{step.name}: {error}"
        return self._row(status, error, engine=engine, death_log=self.death_log)

    def _next_stage(self) -> Sequence[Step]:
        try:
            if self._stage is None:
                self._stage = next(self._stages)
            else:
                results = [self._answers.pop(step) for step in self._stage.steps]
                self._stage = self._stages.send(results)
        except StopIteration:
            return ()
        return self._stage.steps

    def _recalls(self, step: Step) -> bool:
        answer = None if self.is_whole else self._recall(step)
        if answer:
            self._note(step, answer)
        return answer is not None

    def _note(self, step: Step, answer: Answer) -> None:
        self._answers[step] = answer.result
        self._results.append(answer.result)
        self._engine = answer.engine

    def _row(self, status: str, error: str | None = None, **fields: Any) -> Row:
        return Row(
            self.document.doc_id,
            status,
            error,
            prompt_tokens=self.prompt_tokens,
            strategy=self._strategy,
            n_chunks=self._stage.n_chunks if self._stage else None,
            **fields,
        )


def task_of(document: Document | BadDocument, prompts: PromptBuilder) -> Task | Row:
    """What a document becomes: one request for now, or the row that says why it cannot be one."""
    if isinstance(document, BadDocument):
        return rows.invalid(document.doc_id, document.error)
    try:
        request = prompts.build(document)
    except Exception as error:
        # The user's template and the model's run on the document, and may raise anything.
        return rows.invalid(document.doc_id, rows.unmade(error))
    return Task(document, request.prompt_tokens, whole(request))
