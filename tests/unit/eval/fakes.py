"""A tokenizer of words, and an engine that answers at once."""

import re
from contextlib import contextmanager

from arkv_sglang.eval.arms import FULL_KV
from arkv_sglang.eval.material import Material
from arkv_sglang.eval.prompts import Prompts
from arkv_sglang.eval.sample import Outcome
from arkv_sglang.eval.texts import Text

BEGIN = "<s>"
PIECE = re.compile(r"<\w+>|\s*\w{1,6}|\s*[^\w\s]|\s+")
NOUNS = (
    *("river", "window", "garden", "letter", "market", "signal"),
    *("copper", "planet", "harbor", "meadow", "timber", "castle"),
)
VERBS = ["carries", "watches", "answers", "follows", "repeats", "gathers"]


class WordTokenizer:
    """Up to six letters, or a mark, with the space before them are a token."""

    def __init__(self, has_chat=True):
        self.pieces = []
        self.ids = {}
        self.chat_template = "{{ messages }}" if has_chat else None

    def __call__(self, text, add_special_tokens=True, verbose=True):
        found = PIECE.findall(text)
        assert "".join(found) == text
        if add_special_tokens:
            found = [BEGIN, *found]
        return {"input_ids": [self._id(piece) for piece in found]}

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return f"{BEGIN}<user>{messages[0]['content']}<assistant>"

    def decode(self, ids):
        return "".join(self.pieces[each] for each in ids)

    def _id(self, piece):
        if piece not in self.ids:
            self.ids[piece] = len(self.pieces)
            self.pieces.append(piece)
        return self.ids[piece]


def texts(count=6, sentences=60):
    """With a few hundred words in all, no two texts alike."""
    found = []
    for t in range(count):
        lines = [
            f"The {NOUNS[(n + t) % 12]}{chr(97 + n % 26)} {VERBS[(n * t) % 6]} the "
            f"{NOUNS[(n * 5 + t) % 12]}{chr(97 + t)}{chr(97 + n % 20)}."
            for n in range(sentences)
        ]
        found.append(Text(f"text-{t}", " ".join(lines), "A short summary." if t == 0 else None))
    return found


def material(length=400, seed=0, has_chat=True, **more):
    return Material(
        Prompts(WordTokenizer(has_chat), length), more.pop("texts", texts()), seed, **more
    )


def said(found, sample):
    return found.prompts.tokenizer.decode(sample.prompt)


def outcome(output="", **more):
    fields = {
        "prompt_tokens": 10,
        "output_tokens": 4,
        "cached_tokens": 0,
        "finish_reason": "stop",
        "kv": {},
        "kv_bytes": 100,
        "kv_bf16_bytes": 100,
        "wall_s": 0.5,
    }
    return Outcome(output, **(fields | more))


class Engines:
    """Each arm's engine as a context; notes the arms that were started and what was answered.
    Breaks off before answer number ``fails_at``."""

    def __init__(self, fails_at=None):
        self.started, self.answered, self.fails_at = [], [], fails_at

    @contextmanager
    def serving(self, arm):
        self.started.append(arm.name)
        yield Server(self, arm)


class Server:
    def __init__(self, engines, arm):
        self.engines, self.arm = engines, arm

    def answer(self, sample, reference):
        done = self.engines.answered
        if len(done) == self.engines.fails_at:
            raise KeyboardInterrupt
        done.append((self.arm.name, sample.task, sample.number))
        if self.arm.name == FULL_KV:
            output = sample.answers[0] if sample.answers else "all"
            if not sample.forced:
                return outcome(output)
            packed = str(sample.forced).encode()
            return outcome(output, measured={"top1": 1.0, "kl": 0.0}, reference=packed)
        measured = {"top1": 0.5, "kl": 0.1} if sample.forced else {}
        assert (reference is not None) == bool(sample.forced)
        return outcome(
            "nothing",
            measured=measured,
            kv_bytes=25,
            output_tokens=8,
            kv={"times_planned": 1, "bytes_original": 5, "bytes_quantized": 20},
        )
