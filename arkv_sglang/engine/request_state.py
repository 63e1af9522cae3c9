"""What is known of a request that holds KV, and counts over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT

from arkv_sglang.core import TierPlan
from arkv_sglang.engine.prompt import PromptScores, WindowQueries
from arkv_sglang.engine.record import RequestRecord
from arkv_sglang.storage.views import RequestView


@dataclass
class RequestState:
    """One request that holds KV. Keyed by its ``req_pool_idx``."""

    queries: WindowQueries
    record: RequestRecord
    # Set from the end of a prompt that is to be compressed. Until the view stands, the scores have
    # their tokens, and the plan is what the view would be now.
    req: Any = None
    scores: PromptScores | None = None
    plan: TierPlan | None = None
    view: RequestView | None = None
    # Tokens of a prompt larger than the arena that the view has taken in so far.
    num_compressed: int = 0

    @property
    def waits(self) -> bool:
        """Whether the request holds its whole prompt until its view is made."""
        return self.scores is not None and self.view is None

    @property
    def text_tokens(self) -> int:
        """Tokens whose budget the view has: all of a prompt also while it is taken in by chunks."""
        committed: int = self.req.kv.kv_committed_len
        if self.num_compressed:
            return max(committed, len(self.req.full_untruncated_fill_ids))
        return committed

    @property
    def statistics_bytes(self) -> int:
        """Bytes of window queries until the prompt ends, and of scores from then on."""
        return self.queries.num_bytes + (self.scores.num_bytes if self.scores else 0)


@dataclass
class Totals:
    """Counts since start."""

    privatized: int = 0
    replanned: int = 0
    tightened_under_pressure: int = 0
    retracted: int = 0
    peak_requests: int = 0


def give_up(req: Any) -> None:
    """End one request at its next step, and leave the others alone."""
    # Without a status code: with one, the other requests of the same call would get an exception.
    req.to_finish = FINISH_ABORT("the model gave NaN for this request, and NaN cannot be quantized")
