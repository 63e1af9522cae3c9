"""The texts that prompts are made of: those that are installed with packages, or the user's own."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from arkv_sglang.config import ConfigError

Split = Literal["all", "tune", "report"]
# A piece ends with a sentence or a paragraph, a long one also with a line; each begins with the
# space before it.
_PIECE = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)(?=\n)")
_LINE = re.compile(r"(?=\n)")
_LONG = 160
_WORD = re.compile(r"\b[^\W\d_]{4,10}\b")
# No tokenizer packs more into a token, on the mean of a text.
CHARACTERS_PER_TOKEN = 8


@dataclass(frozen=True)
class Text:
    """``summary``: one that people wrote, where there is one."""

    text_id: str
    text: str
    summary: str | None = None


def load_texts(files: Sequence[Path], split: Split) -> list[Text]:
    """Of ``files``, or those installed with packages if there are none. Raises ConfigError.

    A ``.jsonl`` file has a text on each line (``text``, and perhaps ``summary``), any other file is
    one text. ``tune`` and ``report`` are halves of them without a text in common.
    """
    texts = [text for file in files for text in _read(file)] if files else _installed()
    texts.sort(key=lambda text: text.text_id)
    chosen = {"all": texts, "tune": texts[::2], "report": texts[1::2]}[split]
    if not chosen:
        raise ConfigError(
            f"--text must name at least {'one text' if split == 'all' else 'two texts'} "
            f"for --split {split}, got {len(texts)}"
        )
    return chosen


def read_lines(path: Path, option: str, fields: Sequence[str]) -> list[dict[str, Any]]:
    """The objects of a JSONL file, each with ``fields``. Raises ConfigError."""
    found = []
    for number, line in enumerate(_content(path, option).splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or any(field not in record for field in fields):
            raise ConfigError(
                f"{option} {str(path)!r} must have a JSON object with {', '.join(fields)} on each "
                f"line, got {line[:80]!r} in line {number}"
            )
        found.append(record)
    return found


def pieces(texts: Sequence[Text], rng: random.Random, num_tokens: int) -> list[str]:
    """Sentences, in their order, of texts in random order: enough for so many tokens. Together they
    are the texts; where those end, they begin again."""
    found: list[str] = []
    left = num_tokens * CHARACTERS_PER_TOKEN
    order = list(texts)
    rng.shuffle(order)
    while left > 0:
        for text in order:
            for piece in _PIECE.split(f"\n\n{text.text}"):
                found += _LINE.split(piece) if len(piece) > _LONG else [piece]
            left -= len(text.text) + 2
            if left <= 0:
                break
    return found


def distinct_words(texts: Sequence[Text]) -> list[str]:
    """Lower-case words of 4 to 10 letters, each once, sorted."""
    return sorted({word for text in texts for word in _WORD.findall(text.text.lower())})


def _content(path: Path, option: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(
            f"{option} must name a text file that can be read, got {str(path)!r}: {reason}"
        ) from None


def _read(path: Path) -> Iterator[Text]:
    if path.suffix == ".jsonl":
        for number, record in enumerate(read_lines(path, "--text", ["text"])):
            yield Text(f"{path.name}#{number:06}", record["text"], record.get("summary"))
    else:
        yield Text(path.name, _content(path, "--text"))


def _installed() -> list[Text]:
    from tokenizers import Tokenizer

    from arkv_sglang.demo.corpus import collect_documents
    from arkv_sglang.demo.model import ensure_model

    tokenizer = Tokenizer.from_file(str(ensure_model() / "tokenizer.json"))
    return [Text(found.doc_id, found.text) for found in collect_documents(tokenizer)]
