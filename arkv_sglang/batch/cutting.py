"""Cuts a text into pieces of so many tokens: at a heading, between paragraphs, lines, sentences or
words, in this order, and inside a word that is too long alone; never inside a character."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from semantic_text_splitter import MarkdownSplitter


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters ``begin`` to ``end`` of a text."""

    text: str
    begin: int
    end: int


def cut(
    text: str, token_starts: Sequence[int], max_tokens: int, overlap_tokens: int = 0
) -> list[Piece]:
    """Pieces that cover the text, but for white space around them, each of at most ``max_tokens``,
    unless a single character has more. Up to ``overlap_tokens``, which must be fewer, of the end of
    one are the beginning of the next. ``token_starts``: the character where each token of the text
    begins; a piece alone may have some more or fewer than it has as a part of the text."""
    place = 0

    def size(piece: str) -> int:
        # The splitter says what it asks about and not where that is, but it goes forward.
        nonlocal place
        if not text.startswith(piece, place):
            ahead = text.find(piece, place)
            place = text.find(piece) if ahead < 0 else ahead
        begin = bisect_left(token_starts, place)
        return max(1, bisect_left(token_starts, place + len(piece), begin) - begin)

    splitter = MarkdownSplitter.from_callback(size, max_tokens, overlap_tokens)
    found = splitter.chunk_indices(text)
    # Of white space it knows less than Python does.
    return [Piece(piece, at, at + len(piece)) for at, piece in found if not piece.isspace()]
