"""The real allocator of an idle engine, without its memory: what would it take in?"""

from types import SimpleNamespace
from typing import Any

from arkv_sglang.config import load_config
from arkv_sglang.core import Geometry
from arkv_sglang.engine.allocator import ArkvAllocator
from arkv_sglang.engine.controller import Controller
from arkv_sglang.engine.pool import PoolSize


class IdleAllocator(ArkvAllocator):
    def __init__(
        self, geometry: Geometry, size: PoolSize, policy: str, config: dict[str, Any]
    ) -> None:
        self.store = SimpleNamespace(
            geometry=geometry,
            num_units=size.num_units,
            free_units=size.num_units,
            num_slots=size.num_slots,
        )
        self.controller = Controller(load_config(policy, config), self.store)
        self.page_size = 1

    def available_size(self) -> int:
        return self.store.num_slots

    def lock_prefix(self, num_tokens: int) -> None:
        """As if the tree held the beginning of a prompt, locked while that is looked at."""
        self.store.free_units -= num_tokens * self.token_units

    def taken_in(self, prompt: int, new: int) -> int | None:
        """Tokens that such a request may generate; None: it is refused."""
        return self.max_new_tokens_for_memory(
            prompt,
            new,
            token_capacity=self.store.num_slots,
            sliding_window_size=None,
            chunk_size=None,
        )
