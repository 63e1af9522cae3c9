"""A comparison that is cut off goes on with the next run. No engine is started here."""

import argparse
import json

from arkv_sglang.bench.arms import Result
from arkv_sglang.bench.outcome import Unfinished, publish


def result(arm: str, wall_s: float) -> Result:
    over_time = [{"s": 0.0} | dict.fromkeys(("tree_original", "tree_quantized"), 1.0)]
    over_time[0] |= dict.fromkeys(("prompts_original", "views_original", "views_quantized"), 2.0)
    return Result(arm, 2, 10, 4, wall_s, 0.5, 1.0, 1.0, 1.0, 2, 1.5, 0, 0.0, 0.1, over_time)


def test_what_was_done_is_taken_from_a_run_of_the_same_options(tmp_path):
    options = argparse.Namespace(documents=2, output=tmp_path / "figures.json")
    found = [result("one", 2.0), result("one", 3.0)]
    first = Unfinished(options)
    for each in found:
        first.add("one", each)
    again = Unfinished(options)
    assert again.results == {"one": found}
    assert Unfinished(argparse.Namespace(documents=3, output=options.output)).results == {}
    again.add("two", result("two", 1.0))
    publish(options, again.results, {"two_over_one": 0.5})
    report = json.loads(options.output.read_text())
    assert [each["wall_s"] for each in report["arms"]["one"]] == [2.0, 3.0]
    assert report["ratios"] == {"two_over_one": 0.5}
    assert {path.name for path in tmp_path.iterdir()} == {"figures.json", "figures.svg"}
