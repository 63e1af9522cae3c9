"""Intervals that hold what they should, and counts of pairs."""

import numpy as np
import pytest

from arkv_sglang.eval.statistics import bootstrap_mean, paired


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(1).normal(3, 2, 400)
    found = bootstrap_mean(values)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.03)
    assert found.high == pytest.approx(values.mean() + half, abs=0.03)


def test_it_covers_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(2)
    found = [bootstrap_mean(rng.binomial(1, 0.7, 50)) for _ in range(200)]
    covered = sum(each.low <= 0.7 <= each.high for each in found)
    assert 0.88 <= covered / 200 <= 0.99


def test_values_that_do_not_differ_leave_no_doubt():
    assert bootstrap_mean([0.25] * 16) == (0.25, 0.25, 0.25)
    assert bootstrap_mean([0, 1] * 8) == bootstrap_mean([0, 1] * 8)


def test_few_samples_have_no_interval():
    assert bootstrap_mean([0, 1] * 4) == (0.5, None, None)
    assert bootstrap_mean([0, 1] * 40, [1.0]) == (0.75, None, None)


def test_groups_count_alike():
    assert bootstrap_mean([1.0] * 50, [0.0] * 2).mean == 0.5
    many, few = bootstrap_mean([0, 1] * 50), bootstrap_mean([0, 1] * 5)
    both = bootstrap_mean([0, 1] * 50, [0, 1] * 5)
    # The variance of the mean of two means is a quarter of the sum of theirs.
    half = np.hypot(many.high - 0.5, few.high - 0.5) / 2
    assert both.high == pytest.approx(0.5 + half, abs=0.02)


def test_pairs():
    assert paired([1, 0, 0.5, 1 / 3], [0, 1, 0.5, 0.1 + 1 / 3 - 0.1]) == (1, 1, 2)
