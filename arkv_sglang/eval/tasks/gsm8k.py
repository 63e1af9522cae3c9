"""GSM8K (arXiv 2110.14168) from its file: five solved problems, then one to solve, in no chat.

As SGLang's own benchmark takes it, the first five lines are the examples; prompt and scoring are
those of lm-eval's task `gsm8k`.
"""

from __future__ import annotations

from collections.abc import Iterator

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.material import Material
from arkv_sglang.eval.sample import Sample, Task
from arkv_sglang.eval.scores import score_number
from arkv_sglang.eval.texts import read_lines

NUM_EXAMPLES = 5
NEW_TOKENS = 512
STOP = ("Question:",)


def make(material: Material, count: int) -> Iterator[Sample]:
    assert material.gsm8k is not None
    records = read_lines(material.gsm8k, "--gsm8k", ["question", "answer"])
    if len(records) <= NUM_EXAMPLES:
        raise ConfigError(
            f"--gsm8k must name a file of more than {NUM_EXAMPLES} problems, got {len(records)}"
        )
    examples = "".join(
        f"{_question(each['question'])} {each['answer']}\n\n" for each in records[:NUM_EXAMPLES]
    )
    left = records[NUM_EXAMPLES:]
    order = list(range(len(left)))
    material.rng("gsm8k").shuffle(order)
    for number, index in enumerate(order[:count]):
        prompt = material.prompts.plain(examples + _question(left[index]["question"]))
        answer = left[index]["answer"].rpartition("####")[2].strip().replace(",", "")
        about = {"line": index + NUM_EXAMPLES + 1}
        yield Sample("gsm8k", number, prompt, NEW_TOKENS, (answer,), stop=STOP, about=about)


def _question(question: str) -> str:
    return f"Question: {question}\nAnswer:"


TASKS = (
    Task("gsm8k", "school mathematics with five examples", make, score_number, needs="--gsm8k"),
)
