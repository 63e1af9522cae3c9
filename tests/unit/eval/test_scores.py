"""Right, wrong and half-right answers."""

import pytest

from arkv_sglang.eval.sample import Sample
from arkv_sglang.eval.scores import (
    last_number,
    score_all,
    score_any,
    score_number,
    score_recall,
    score_summary,
)
from tests.unit.eval.fakes import outcome


def sample(*answers):
    return Sample("task", 0, [1], 8, answers)


def figures(score, output, *answers, full_kv=""):
    return score(sample(*answers), outcome(output), outcome(full_kv))


@pytest.mark.parametrize(
    ("output", "recall", "exact"),
    [
        ("It is 1234567.", 1, 1),
        ("1,234,567", 1, 1),
        ("It is 1239567, I think", 6 / 7, 0),
        ("1234", 4 / 7, 0),
        ("7654321", 1 / 7, 0),
        ("12345678", 1, 0),
        ("I do not know.", 0, 0),
        ("", 0, 0),
        ("1 2 3 4 5 6 7", 1 / 7, 0),
    ],
)
def test_recall_of_digits(output, recall, exact):
    found = figures(score_recall, output, "1234567")
    assert found == pytest.approx({"recall": recall, "exact": exact})


def test_recall_of_words():
    assert figures(score_recall, "Amber-Falcon!", "amber-falcon") == {"recall": 1, "exact": 1}
    partly = figures(score_recall, "amber-falcons-nest", "amber-falcon")
    assert partly == {"recall": 1, "exact": 0}
    assert figures(score_recall, "amber", "amber-falcon")["recall"] == pytest.approx(5 / 12)


def test_recall_by_form():
    found = score_recall(
        Sample("needle", 0, [1], 8, ("12",), about={"form": "digits"}), outcome("1"), outcome()
    )
    assert found == {"recall": 0.5, "exact": 0, "digits": 0.5}
    assert next(iter(found)) == "recall"


def test_matches():
    assert figures(score_all, "AB, CD", "ab", "cd", "ef") == {"match_all": 2 / 3, "exact": 0}
    assert figures(score_all, "ef cd ab", "ab", "cd", "ef") == {"match_all": 1, "exact": 1}
    assert figures(score_any, "in Paris", "paris", "Lyon") == {"match_any": 1}
    assert figures(score_any, "", "paris") == {"match_any": 0}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7", "7"),
        ("#### 1,234.", "1234"),
        ("$18.50", "18.50"),
        ("it fell to -5 degrees.", "-5"),
        ("none", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


def test_numbers_are_compared_as_such():
    assert figures(score_number, "The answer is 18.00", "18") == {"exact": 1}
    assert figures(score_number, "18 apples, no, 17", "18") == {"exact": 0}
    assert figures(score_number, "", "18") == {"exact": 0}


def test_summaries():
    found = figures(score_summary, "one two three", full_kv="one two four")
    assert found == {"rouge_l": pytest.approx(2 / 3)}
    found = figures(score_summary, "one two", "one two", full_kv="three four")
    assert found == {"rouge_l": 0, "rouge_l_reference": 1}
