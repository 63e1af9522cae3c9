"""Where text comes from."""

import random

import pytest

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.texts import distinct_words, load_texts, pieces
from tests.unit.eval.fakes import texts


@pytest.fixture
def files(tmp_path):
    (tmp_path / "one.md").write_text("# One\n\nA text.\n")
    (tmp_path / "more.jsonl").write_text('{"text": "B", "summary": "b"}\n{"text": "C"}\n')
    return [tmp_path / "one.md", tmp_path / "more.jsonl"]


def test_files_of_the_user(files):
    found = load_texts(files, "all")
    assert [(text.text[-5:], text.summary) for text in found] == [
        *(("B", "b"), ("C", None), ("ext.\n", None))
    ]


def test_halves_without_a_text_in_common(files):
    tune, report = load_texts(files, "tune"), load_texts(files, "report")
    assert len(tune) == 2 and len(report) == 1 and not {*tune} & {*report}
    with pytest.raises(ConfigError, match="--text must name at least two texts for --split report"):
        load_texts(files[:1], "report")


def test_refused_files(tmp_path, files):
    with pytest.raises(ConfigError, match="--text must name a text file that can be read, got"):
        load_texts([tmp_path / "absent.txt"], "all")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        load_texts([tmp_path / "latin.txt"], "all")
    files[1].write_text('{"text": "B"}\nnot JSON\n')
    with pytest.raises(
        ConfigError, match="object with text on each line, got 'not JSON' in line 2"
    ):
        load_texts(files, "all")


def test_pieces_are_the_texts():
    found = pieces(texts(), random.Random(0), 2000)
    whole = "".join(found)
    assert all(f"\n\n{text.text}" in whole for text in texts())
    # Where they end, they begin again.
    assert len(whole) >= 2000 * 8
    assert pieces(texts(), random.Random(0), 2000) == found


def test_words_are_sorted_and_once_each():
    words = distinct_words(texts())
    assert words == sorted(set(words)) and all(4 <= len(word) <= 10 for word in words)
