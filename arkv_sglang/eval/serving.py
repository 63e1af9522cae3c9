"""Samples under one arm, in a real engine. Of `eval`, this file alone imports SGLang."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from arkv_sglang.core import Geometry
from arkv_sglang.engine.launch import flush, running
from arkv_sglang.engine.teacher_forcing import force_one
from arkv_sglang.eval.arms import Arm
from arkv_sglang.eval.reference import compare, pack
from arkv_sglang.eval.sample import Outcome, Sample


@contextmanager
def serving(arm: Arm, geometry: Geometry, engine: Mapping[str, Any]) -> Iterator[Server]:
    """A server under ``arm`` with the settings ``engine``, warmed up."""
    config = None if arm.config is None else dict(arm.config)
    with running(arm.policy, config, **engine) as started:
        server = Server(started, geometry)
        server.warm_up()
        yield server


class Server:
    """Answers one sample at a time, on an empty cache, so that none depends on another."""

    def __init__(self, engine: Any, geometry: Geometry) -> None:
        self._engine, self._geometry = engine, geometry

    def warm_up(self) -> None:
        self._generate(list(range(64)), max_new_tokens=4)

    def answer(self, sample: Sample, reference: bytes | None) -> Outcome:
        """``reference``: what full KV left of a sample with a forced continuation; None on full KV
        itself, which leaves it."""
        flush(self._engine)
        for prompt in sample.before:
            self._generate(prompt, max_new_tokens=1)
        begun = time.perf_counter()
        if sample.forced:
            with tempfile.TemporaryDirectory() as scratch:
                forced = list(sample.forced)
                log_probs, out = force_one(self._engine, sample.prompt, forced, Path(scratch))
            outcome = self._outcome(out, time.perf_counter() - begun)
            packed = pack(log_probs) if reference is None else reference
            return replace(
                outcome,
                measured=compare(packed, log_probs),
                reference=packed if reference is None else None,
            )
        stop = list(sample.stop) or None
        out = self._generate(sample.prompt, max_new_tokens=sample.new_tokens, stop=stop)
        return self._outcome(out, time.perf_counter() - begun)

    def _generate(self, prompt: list[int], **sampling: Any) -> dict[str, Any]:
        params = {"temperature": 0, **sampling}
        out: dict[str, Any] = self._engine.generate(input_ids=prompt, sampling_params=params)
        return out

    def _outcome(self, out: Mapping[str, Any], wall_s: float) -> Outcome:
        meta = out["meta_info"]
        kv = meta.get("arkv", {})
        # The last token of an answer has no row yet.
        tokens = meta["prompt_tokens"] + meta["completion_tokens"] - 1
        bf16_bytes = tokens * self._geometry.token_bytes
        return Outcome(
            output=out["text"],
            prompt_tokens=meta["prompt_tokens"],
            output_tokens=meta["completion_tokens"],
            cached_tokens=meta["cached_tokens"],
            finish_reason=meta["finish_reason"]["type"],
            kv=kv,
            kv_bytes=kv["bytes_original"] + kv["bytes_quantized"] if kv else bf16_bytes,
            kv_bf16_bytes=bf16_bytes,
            wall_s=wall_s,
        )
