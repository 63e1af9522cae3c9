"""Which documents are done in several requests, and how: the section ``strategy`` at work."""

from __future__ import annotations

import itertools

from arkv_sglang.batch.config import StrategyConfig
from arkv_sglang.batch.split import Split
from arkv_sglang.batch.task import MAP_REDUCE, SINGLE, Recall, Task, recall_nothing
from arkv_sglang.batch.types import Document, PartBuilder


class Strategy:
    def __init__(
        self, config: StrategyConfig, prompts: PartBuilder, recall: Recall = recall_nothing
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._recall = recall
        self._turns = itertools.count()

    def splits(self, document: Document) -> bool:
        """A prompt that came with the document stays as it is."""
        return self._config.kind != SINGLE and document.prompt is None

    def max_prompt_tokens(self, document: Document, engine_limit: int) -> int:
        """Of one request, where an engine takes up to ``engine_limit``."""
        chunk_tokens = self._config.chunk_tokens
        if chunk_tokens is None or not self.splits(document):
            return engine_limit
        return min(chunk_tokens, engine_limit)

    def split(self, whole: Task, limit: int, max_new_tokens: int) -> Task:
        """The same document in prompts of up to ``limit`` tokens. Nothing is cut before the task
        advances."""
        config, kind = self._config, self._config.kind
        split = Split(
            whole.document,
            self._prompts,
            limit,
            max_new_tokens,
            config.overlap_tokens,
            config.chunk_tokens,
        )
        stages = split.map_reduce() if kind == MAP_REDUCE else split.refine()
        turn = next(self._turns)
        return Task(whole.document, whole.prompt_tokens, stages, kind, turn, self._recall)
