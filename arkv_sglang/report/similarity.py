"""How alike two texts are, in whatever language."""

from __future__ import annotations

import regex
from rapidfuzz.distance import Indel, Prefix

# Unicode's default word boundaries (UAX 29). Where a script has no spaces, a Han character, for
# one, is a word of its own.
_BOUNDARY = regex.compile(r"\b", regex.WORD)


def words(text: str) -> list[str]:
    """In one case, without spaces and punctuation."""
    pieces = _BOUNDARY.split(text.casefold())
    return [piece for piece in pieces if any(map(str.isalnum, piece))]


def rouge_l(one: list[str], other: list[str]) -> float:
    """F1 of the longest common subsequence of words, 0 to 1: 2 LCS / (m + n). Two texts without
    words are alike."""
    return float(Indel.normalized_similarity(one, other))


def common_characters(one: str, other: str) -> int:
    """How many there are before the first difference."""
    return Prefix.similarity(one, other)
