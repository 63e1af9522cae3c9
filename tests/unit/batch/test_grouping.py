import threading
import time
from array import array

from arkv_sglang.batch.scheduler import Limits
from arkv_sglang.batch.types import EngineInfo, Request, Result
from arkv_sglang.bench.grouping import AT_ONCE, GROUPED, OFF, run_arm


class Worker:
    """Has a prefix, which is the text's first token here, once it has answered."""

    def __init__(self) -> None:
        self.prefixes: set[int] = set()
        self.asked: list[Request] = []
        self._lock = threading.Lock()

    def info(self) -> EngineInfo:
        return EngineInfo(context_tokens=1000, capacity_tokens=1000, device="none")

    def flush(self) -> None:
        self.prefixes.clear()
        self.asked.clear()

    def generate(self, request: Request) -> Result:
        text, tokens = request.input_ids[0], request.prompt_tokens
        with self._lock:
            cached = tokens - 10 if text in self.prefixes else 0
            self.prefixes.add(text)
            self.asked.append(request)
        time.sleep(0.002)
        return Result("", tokens, 5, cached, "length", 0.0, 0.0)


def test_each_arm_says_what_it_computed() -> None:
    prompts = {
        f"{text}-{question}": Request(
            f"{text}-{question}", array("I", [text] * (90 + text) + [question] * 10)
        )
        for text in range(6)
        for question in range(100, 104)
    }
    workers = [Worker(), Worker()]
    arms = {
        arm: run_arm(arm, workers, prompts, Limits(max_new_tokens=5, window_docs=2))
        for arm in (OFF, AT_ONCE, GROUPED)
    }
    tokens = sum(request.prompt_tokens for request in prompts.values())
    for figures in arms.values():
        assert figures.requests == 24 and figures.prompt_tokens == tokens
        assert figures.output_tokens == 120 and figures.wall_s > 0
    # With grouping each text is computed once, by one engine.
    assert arms[GROUPED].prefill_tokens == sum(100 + text for text in range(6)) + 18 * 10
    assert arms[GROUPED].hit_rate > arms[OFF].hit_rate
    texts = [{request.input_ids[0] for request in worker.asked} for worker in workers]
    assert not texts[0] & texts[1]
    assert all(request.prefix is not None for worker in workers for request in worker.asked)
