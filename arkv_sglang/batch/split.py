"""Stages of a document in several requests. Pure logic over prompts, which are tokenized for real:
no length is guessed, since tokens of a text are not the sum of those of its pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from arkv_sglang.batch.cutting import Piece, cut
from arkv_sglang.batch.task import Stage, Stages, Step
from arkv_sglang.batch.types import BatchError, Document, Part, PartBuilder, Request

SEPARATOR = "\n\n"


class CannotSplit(BatchError):
    """The document fits in no number of requests under these settings."""


@dataclass(frozen=True, slots=True)
class Split:
    """``limit``: prompt tokens of a request, at most."""

    document: Document
    prompts: PartBuilder
    limit: int
    max_new_tokens: int
    overlap_tokens: int = 0

    def map_reduce(self) -> Stages:
        """A summary of each chunk; then neighbours among them are combined, as many as fit, level
        by level, until one is left. Every level has fewer than the one before."""
        steps = self._mapping()
        n_chunks = len(steps)
        results = yield Stage(steps, n_chunks, self._combining_tokens(n_chunks))
        summaries = [
            Piece(result.text, step.begin, step.end)
            for step, result in zip(steps, results, strict=True)
        ]
        level = 0
        while len(summaries) > 1:
            level += 1
            groups = self._groups(summaries)
            steps = self._combining(groups, level)
            results = yield Stage(steps, n_chunks, self._combining_tokens(len(groups)))
            answers = iter(results)
            summaries = [
                Piece(next(answers).text if request else group[0].text, *_range(group))
                for group, request in groups
            ]

    def refine(self) -> Stages:
        """A summary of the first chunk; then, one after the other, a new one of it and the next."""
        # The longest summary is left room for.
        chunks = self._chunks(self._whole, self.limit - self.max_new_tokens, "refine")
        waiting = deque((piece, request.prompt_tokens) for piece, request in chunks)
        part: Part = "map"
        summary, done = "", 0
        while waiting:
            piece, _ = waiting.popleft()
            request = self._build(part, piece.text, summary)
            if request.prompt_tokens > self.limit:
                smaller = self._chunks(piece, self.limit, part, summary)
                waiting.extendleft((piece, r.prompt_tokens) for piece, r in reversed(smaller))
                continue
            count = done + 1 + len(waiting)
            name = f"chunk {done + 1} of {count}"
            later_tokens = sum(tokens + self.max_new_tokens for _, tokens in waiting)
            step = Step(request, 0, done, piece.begin, piece.end, name)
            [result] = yield Stage([step], count, later_tokens)
            part, summary, done = "refine", result.text, done + 1

    @property
    def _whole(self) -> Piece:
        return Piece(self.document.text, 0, len(self.document.text))

    def _build(self, part: Part, text: str, summary: str = "") -> Request:
        return self.prompts.build_part(self.document, part, text, summary)

    def _count(self, text: str) -> int:
        return len(self.prompts.token_starts(text))

    def _chunks(
        self, whole: Piece, limit: int, part: Part, summary: str = ""
    ) -> list[tuple[Piece, Request]]:
        """The pieces of ``whole``, and their requests, which are no longer than ``limit``. Raises
        CannotSplit."""
        build = partial(self._build, part, summary=summary)
        overhead = build("").prompt_tokens
        room = max_tokens = limit - overhead
        token_starts = self.prompts.token_starts(whole.text)
        while max_tokens > self.overlap_tokens:
            pieces = cut(whole.text, token_starts, max_tokens, self.overlap_tokens)
            chunks = [
                (Piece(piece.text, whole.begin + piece.begin, whole.begin + piece.end), request)
                for piece, request in ((piece, build(piece.text)) for piece in pieces)
            ]
            longest = max(request.prompt_tokens for _, request in chunks)
            if longest <= limit:
                return chunks
            # A text and a template may share tokens, and a template may use its text twice.
            max_tokens = min(max_tokens - 1, max_tokens * room // (longest - overhead))
        raise CannotSplit(
            f"prompts of at most {limit} tokens must have room for more than "
            f"{self.overlap_tokens} of the text beside the {overhead} of strategy.{part}_template, "
            f"got {room}; shorten the template or prompt.system, lower sampling.max_new_tokens or "
            "strategy.overlap_tokens, or raise strategy.chunk_tokens"
        )

    def _mapping(self) -> list[Step]:
        chunks = self._chunks(self._whole, self.limit, "map")
        return [
            Step(request, 0, n, piece.begin, piece.end, f"chunk {n + 1} of {len(chunks)}")
            for n, (piece, request) in enumerate(chunks)
        ]

    def _groups(self, summaries: Sequence[Piece]) -> list[tuple[Sequence[Piece], Request | None]]:
        """Neighbours that fit in one request; one that is left alone needs none. Raises CannotSplit
        when no two fit."""
        overhead = self._build("combine", "").prompt_tokens
        sizes = [self._count(SEPARATOR + summary.text) for summary in summaries]
        groups: list[tuple[Sequence[Piece], Request | None]] = []
        begin = 0
        while begin < len(summaries):
            end = min(begin + 2, len(summaries))
            tokens = overhead + sum(sizes[begin:end])
            while end < len(summaries) and tokens + sizes[end] <= self.limit:
                tokens += sizes[end]
                end += 1
            group, request = self._largest_group(summaries[begin:end])
            groups.append((group, request))
            begin += len(group)
        if len(groups) == len(summaries):
            raise CannotSplit(
                f"prompts of at most {self.limit} tokens must have room for two summaries of parts "
                f"beside the {overhead} of strategy.combine_template, got summaries of "
                f"{min(sizes)} to {max(sizes)} tokens; lower sampling.max_new_tokens, shorten the "
                "template, or raise strategy.chunk_tokens"
            )
        return groups

    def _largest_group(self, summaries: Sequence[Piece]) -> tuple[Sequence[Piece], Request | None]:
        while len(summaries) > 1:
            request = self._build("combine", SEPARATOR.join(piece.text for piece in summaries))
            if request.prompt_tokens <= self.limit:
                return summaries, request
            summaries = summaries[:-1]
        return summaries, None

    def _combining(
        self, groups: Sequence[tuple[Sequence[Piece], Request | None]], level: int
    ) -> list[Step]:
        made = [(group, request) for group, request in groups if request is not None]
        return [
            Step(
                request,
                level,
                n,
                *_range(group),
                name=f"combination {n + 1} of {len(made)} on level {level}",
            )
            for n, (group, request) in enumerate(made)
        ]

    def _combining_tokens(self, count: int) -> int:
        """Of the summaries that are still to be combined, at most."""
        return count * self.max_new_tokens if count > 1 else 0


def _range(pieces: Sequence[Piece]) -> tuple[int, int]:
    return pieces[0].begin, pieces[-1].end
