"""Options, and what is refused before an engine starts."""

import pytest

from arkv_sglang.batch.model_shape import ModelShape
from arkv_sglang.config import ConfigError
from arkv_sglang.core import Geometry
from arkv_sglang.eval.__main__ import check_room, main, make_samples
from arkv_sglang.eval.options import parse_options
from arkv_sglang.eval.sample import Sample
from tests.unit.eval.fakes import WordTokenizer

GEOMETRY = Geometry(num_layers=2, num_kv_heads=1, head_dim=16)


def options(*more):
    return parse_options(["--out", "unused", *more])


def test_lists_and_defaults():
    found = options("--policies", "arkv, original", "--budgets", "0.5,256")
    assert (found.policies, found.budgets) == (["arkv", "original"], [0.5, 256])
    assert isinstance(found.budgets[1], int)
    assert options("--engine", '{"tp_size": 1}').engine == {"tp_size": 1}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--samples", "0"], "--samples: must be at least 1, got 0"),
        (["--budgets", "half"], "invalid budgets value: 'half'"),
        (["--engine", "[]"], "must be a JSON object, got '[]'"),
        (["--engine", '{"kv_policy": "arkv"}'], "must leave kv_policy to --model, --policies"),
    ],
)
def test_refused_options(more, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        options(*more)
    assert sentence in capsys.readouterr().err


def test_a_folder_is_needed(capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_options([])
    assert "--out must name a folder" in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert "gsm8k: school mathematics with five examples (needs --gsm8k)" in capsys.readouterr().out


def test_what_does_not_fit():
    shape = ModelShape(1000, GEOMETRY)
    assert check_room(options(), shape, [Sample("a", 0, [1] * 900, 100)]) == GEOMETRY
    with pytest.raises(ConfigError, match="context of 1000 tokens, got 1001 in b"):
        check_room(options(), shape, [Sample("a", 0, [1], 1), Sample("b", 0, [1] * 900, 101)])
    with pytest.raises(ConfigError, match=r"at least 626, 1.25 times .* \(a\), got 600"):
        small = options("--max-total-tokens", "600")
        check_room(small, shape, [Sample("a", 0, [1] * 400, 100)])
    with pytest.raises(ConfigError, match="--model must keep plain K and V, but it has none"):
        check_room(options(), ModelShape(9, None, "it has none"), [Sample("a", 0, [1], 1)])


def test_samples_and_their_tasks(tmp_path):
    text = tmp_path / "text.md"
    text.write_text("The river carries the letter. A window answers the harbor market.\n" * 40)
    few = options("--tasks", "needle:3,summary", "--samples", "1", "--text", str(text))
    samples, tasks = make_samples(few, "unused", WordTokenizer())
    assert [sample.task for sample in samples] == ["needle"] * 3 + ["summary"]
    assert set(tasks) == {"needle", "summary"}
    with pytest.raises(ConfigError, match="--gsm8k must be given for the task gsm8k"):
        make_samples(options("--tasks", "gsm8k"), "unused", WordTokenizer())
