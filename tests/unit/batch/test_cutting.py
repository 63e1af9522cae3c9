"""What pieces of a text are, whatever the text."""

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arkv_sglang.batch.cutting import Piece, cut

FAMILY, FLAG, ACCENT = "👩‍👩‍👧‍👦", "🇪🇺", "e\u0301"

texts = st.one_of(
    st.text(min_size=1, max_size=300),
    st.text("ab .\n#-*", min_size=1, max_size=300),
    st.text("人工智能。、 \n", min_size=1, max_size=300),
    st.lists(
        st.sampled_from([FAMILY, FLAG, ACCENT, "x", " ", ". ", "\n\n", "- a\n"]), min_size=1
    ).map("".join),
    st.integers(1, 100).map(lambda n: "nospace" * n),
    st.integers(1, 100).map(lambda n: "one huge line, " * n),
)


def utf8(text: str) -> list[int]:
    """A byte-level tokenizer without merges: the worst case, of up to four tokens a character."""
    return [n for n, character in enumerate(text) for _ in character.encode()]


@settings(max_examples=300, deadline=None)
@given(text=texts, max_tokens=st.integers(32, 200), overlap=st.integers(0, 31))
@example(text="\x1f", max_tokens=32, overlap=0)
def test_pieces_cover_the_text_and_are_no_longer_than_allowed(
    text: str, max_tokens: int, overlap: int
) -> None:
    begin = end = 0
    for piece in cut(text, utf8(text), max_tokens, overlap):
        assert piece.text == text[piece.begin : piece.end] and piece.text.strip()
        assert len(piece.text.encode()) <= max_tokens
        assert not text[end : piece.begin].strip(), "something was lost"
        assert len(text[piece.begin : end].encode()) <= overlap
        assert piece.begin >= begin and piece.end > end
        begin, end = piece.begin, piece.end
    assert not text[end:].strip(), "the end was lost"


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.sampled_from([FAMILY, FLAG, ACCENT, "語"]), min_size=1, max_size=60))
def test_what_is_read_as_one_character_stays_together(parts: list[str]) -> None:
    text = "".join(parts)
    pieces = cut(text, utf8(text), 30)
    assert "".join(piece.text for piece in pieces) == text
    for piece in pieces:
        assert not unicodedata.combining(piece.text[0]) and piece.text[0] != "\u200d"
        assert not piece.text.endswith("\u200d")
        assert piece.text.count(FLAG[0]) == piece.text.count(FLAG[1])


PROSE = """\
# First

One sentence. Another one, which is longer! And a third?

A second paragraph,
and its second line.

# Second

The last words are here."""


@pytest.mark.parametrize(
    ("max_tokens", "ends"),
    [
        (len(PROSE) - 1, ["and its second line.", "words are here."]),
        (70, ["And a third?", "and its second line.", "words are here."]),
        (50, ["# First", "is longer!", "And a third?", "second line.", "are here."]),
        (30, ["# First", "One sentence.", "longer!", "third?", "paragraph,", "line.", "Second"]),
        (16, ["# First", "One sentence.", "Another one,", "which is longer!"]),
    ],
)
def test_cuts_are_where_a_text_has_its_seams(max_tokens: int, ends: list[str]) -> None:
    pieces = cut(PROSE, utf8(PROSE), max_tokens)
    assert [piece.text[-len(end) :] for piece, end in zip(pieces, ends, strict=False)] == ends
    assert max_tokens < 50 or len(pieces) == len(ends)


def test_a_text_that_fits_is_one_piece() -> None:
    assert cut(PROSE, utf8(PROSE), len(PROSE)) == [Piece(PROSE, 0, len(PROSE))]


def test_a_word_that_is_too_long_alone_is_cut() -> None:
    text = "a" * 70
    assert [len(piece.text) for piece in cut(text, utf8(text), 30)] == [30, 30, 10]
