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
    """``limit``: prompt tokens of a request, at most, as an engine or ``chunk_tokens`` has it."""

    document: Document
    prompts: PartBuilder
    limit: int
    max_new_tokens: int
    overlap_tokens: int = 0
    chunk_tokens: int | None = None

    def map_reduce(self) -> Stages:
        """A summary of each chunk; then neighbours among them are combined, as many as fit, level
        by level, until one is left. Every level has fewer than the one before."""
        self._check_combining()
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
        chunks = self._chunks(self._whole, "refine", reserved=self.max_new_tokens)
        waiting = deque((piece, request.prompt_tokens) for piece, request in chunks)
        part: Part = "map"
        summary, done = "", 0
        while waiting:
            piece, _ = waiting.popleft()
            request = self._build(part, piece.text, summary)
            if request.prompt_tokens > self.limit:
                smaller = self._chunks(piece, part, summary)
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
        self, whole: Piece, part: Part, summary: str = "", reserved: int = 0
    ) -> list[tuple[Piece, Request]]:
        """The pieces of ``whole``, and their requests, which leave ``reserved`` tokens of the limit
        free. Raises CannotSplit."""
        build = partial(self._build, part, summary=summary)
        limit, overhead = self.limit - reserved, build("").prompt_tokens
        room = max_tokens = limit - overhead
        if room <= self.overlap_tokens:
            raise self._without_room(part, overhead, reserved)
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
        raise self._without_room(part, overhead, reserved)

    def _without_room(self, part: Part, overhead: int, reserved: int) -> CannotSplit:
        text = "text"
        if self.overlap_tokens:
            text = f"more text than strategy.overlap_tokens ({self.overlap_tokens})"
        beside = f"strategy.{part}_template ({overhead} tokens)"
        if reserved:
            beside += f" and the summary so far (sampling.max_new_tokens, {reserved})"
        return self._no_room(f"{text} beside {beside}", has_summaries=part != "map")

    def _no_room(self, what: str, has_summaries: bool) -> CannotSplit:
        is_by_config = self.limit == self.chunk_tokens
        source = "an engine has beside sampling.max_new_tokens"
        remedies = ["shorten the template or prompt.system"]
        if has_summaries or not is_by_config:
            remedies.insert(0, "lower sampling.max_new_tokens")
        if is_by_config:
            source = "strategy.chunk_tokens allows"
            remedies.insert(0, "raise strategy.chunk_tokens")
        if self.overlap_tokens and "strategy.overlap_tokens" in what:
            remedies.append("lower strategy.overlap_tokens")
        return CannotSplit(
            f"a prompt must have room for {what}, got {self.limit} tokens, which is what {source}; "
            + " or ".join(remedies)
        )

    def _check_combining(self) -> None:
        """Before anything is cut: the longest summaries must fit in pairs, unless there will be
        one. Raises CannotSplit."""
        overhead = self._build("combine", "").prompt_tokens
        pair = overhead + self._count(SEPARATOR) + 2 * self.max_new_tokens
        if pair <= self.limit:
            return
        if self._build("map", self.document.text).prompt_tokens > self.limit:
            raise self._no_room(
                f"two summaries of sampling.max_new_tokens ({self.max_new_tokens}) beside "
                f"strategy.combine_template ({overhead} tokens)",
                has_summaries=True,
            )

    def _mapping(self) -> list[Step]:
        chunks = self._chunks(self._whole, "map")
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
            # An answer may have more tokens as a text than it was made of.
            raise self._no_room(
                f"two summaries of parts ({min(sizes)} to {max(sizes)} tokens) beside "
                f"strategy.combine_template ({overhead} tokens)",
                has_summaries=True,
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
