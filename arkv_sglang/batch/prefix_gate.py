"""Lets one request compute a prefix before the others that share it start.

SGLang shares what its tree has, and a prompt is there once it has been prefilled: requests of one
prefix that come together are prefilled side by side, and each computes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class PrefixGate:
    """For the requests of one event loop."""

    def __init__(self) -> None:
        self._computing: dict[int, asyncio.Event] = {}

    @asynccontextmanager
    async def enter(self, prefix: int | None) -> AsyncIterator[Callable[[], None]]:
        """Waits while another request is computing ``prefix``. Yields what to call at the first
        token, when the prefix is there; the end of the block does the same."""
        if prefix is not None and prefix in self._computing:
            await self._computing[prefix].wait()
            yield lambda: None
            return
        computed = asyncio.Event()

        def let_in() -> None:
            computed.set()
            if prefix is not None and self._computing.get(prefix) is computed:
                del self._computing[prefix]

        if prefix is not None:
            self._computing[prefix] = computed
        try:
            yield let_in
        finally:
            let_in()
