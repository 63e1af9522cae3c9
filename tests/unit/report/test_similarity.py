import pytest
from hypothesis import given
from hypothesis import strategies as st

from arkv_sglang.report.similarity import common_characters, rouge_l, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "The cat's 3.5 naïve -- tricks, twice!",
            ["the", "cat's", "3.5", "naïve", "tricks", "twice"],
        ),
        ("  \n…!?🙂", []),
        ("猫坐在垫子上。", ["猫", "坐", "在", "垫", "子", "上"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("STRASSE straße", ["strasse", "strasse"]),
    ],
)
def test_words_of_any_language(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def lcs(one: list[str], other: list[str]) -> int:
    """By the book."""
    above = [0] * (len(other) + 1)
    for left in one:
        row = [0]
        for n, right in enumerate(other):
            row.append(above[n] + 1 if left == right else max(above[n + 1], row[n]))
        above = row
    return above[-1]


TEXT = st.lists(st.sampled_from("abcd"), max_size=80)


@given(one=TEXT, other=TEXT)
def test_rouge_l_is_that_of_the_longest_common_subsequence(
    one: list[str], other: list[str]
) -> None:
    total = len(one) + len(other)
    expected = 2 * lcs(one, other) / total if total else 1.0
    assert rouge_l(one, other) == pytest.approx(expected)
    assert rouge_l(one, other) == rouge_l(other, one)


def test_what_two_texts_begin_with() -> None:
    assert common_characters("the cat sat", "the cab sat") == 6
    assert common_characters("", "a") == 0 and common_characters("ab", "ab") == 2
