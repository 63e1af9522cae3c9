"""The last queries of a prompt, and what their attention says of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from arkv_sglang import policy
from arkv_sglang.config import ArkvConfig
from arkv_sglang.kernels.api import read_rows, window_statistics
from arkv_sglang.storage.store import KVStore


class WindowQueries:
    """The last ``window`` queries of each layer, kept across chunks: bf16 [L, <= W, Hq, D]."""

    def __init__(self, num_layers: int, window: int) -> None:
        self.window = window
        self._queries: list[torch.Tensor | None] = [None] * num_layers

    def append(self, layer: int, queries: torch.Tensor) -> None:
        """Take a chunk's queries [T, Hq, D]; copies what it keeps."""
        kept, latest = self._queries[layer], queries[-self.window :]
        if kept is None or latest.shape[0] == self.window:
            self._queries[layer] = latest.clone()
        else:
            self._queries[layer] = torch.cat((kept, latest))[-self.window :]

    @property
    def complete(self) -> bool:
        """Whether every layer has run."""
        return all(queries is not None for queries in self._queries)

    def layer(self, layer: int) -> torch.Tensor:
        queries = self._queries[layer]
        assert queries is not None
        return queries

    def clear(self) -> None:
        self._queries = [None] * len(self._queries)

    @property
    def num_bytes(self) -> int:
        return sum(queries.nbytes for queries in self._queries if queries is not None)


@dataclass(frozen=True)
class PromptScores:
    """Statistics of one prompt of T tokens: fp32 [L, T], ``attention`` [T], ``oq_ratio`` [L]."""

    scores: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    attention: torch.Tensor
    oq_ratio: torch.Tensor
    num_queries: int

    def padded(self, num_tokens: int) -> PromptScores:
        """For ``num_tokens``: tokens decoded since are unobserved, and the last to be dropped."""
        extra = (0, num_tokens - self.mean.shape[1])
        return replace(
            self,
            scores=F.pad(self.scores, extra, value=torch.inf),
            mean=F.pad(self.mean, extra),
            variance=F.pad(self.variance, extra),
        )

    def num_observations(self, num_tokens: int) -> torch.Tensor:
        """Queries that observed each of ``num_tokens`` tokens, int64 [num_tokens]."""
        observed = torch.arange(num_tokens, device=self.attention.device) < len(self.attention)
        return observed * self.num_queries

    def without_tokens(self) -> PromptScores:
        """What re-planning needs: the layers' ratio, not the tokens' statistics."""
        # New tensors: a slice would keep the old ones alive.
        nothing = self.mean.new_empty(self.mean.shape[0], 0)
        return replace(self, scores=nothing, mean=nothing, variance=nothing, attention=nothing[0])

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for each in (self.scores, self.mean, self.variance, self.attention))


def score_rows(
    config: ArkvConfig, store: KVStore, queries: WindowQueries, rows: torch.Tensor, scale: float
) -> PromptScores:
    """Attention of the last queries over ``rows`` int32 [L, T], and the scores from it.

    The last of the rows are the queries' own. Where there is no row, every statistic is zero.
    """
    statistics = rows.new_zeros(3, *rows.shape, dtype=torch.float32)
    layers = []
    for layer, all_rows in enumerate(rows):
        window = queries.layer(layer)
        there = all_rows >= 0
        keys, _ = read_rows(store.arena, all_rows[there])
        found = window_statistics(window, keys, scale)
        scores = _pooled_scores(config, found.mean, found.variance, window.shape[0])
        statistics[:, layer, there] = torch.stack(
            (scores, found.mean.mean(0), found.variance.mean(0))
        )
        layers.append(torch.stack((found.entropy, found.variance_sum, found.kurtosis_sum)))
    entropy, variance_sum, kurtosis_sum = torch.stack(layers).unbind(1)
    scores, mean, variance = statistics.unbind()
    return PromptScores(
        scores=scores,
        mean=mean,
        variance=variance,
        attention=mean.mean(0),
        oq_ratio=policy.oq_ratio(entropy, variance_sum, kurtosis_sum, config.tau),
        num_queries=queries.layer(0).shape[0],
    )


def _pooled_scores(
    config: ArkvConfig, mean: torch.Tensor, variance: torch.Tensor, num_queries: int
) -> torch.Tensor:
    """One score per token of a layer, fp32 [T]: pooled per head, then the mean of the heads.

    The window itself is protected, and takes no part in the pooling (algorithm, section 1).
    """
    outside = mean.shape[1] - num_queries
    hitters = policy.heavy_hitter(mean[:, :outside], variance[:, :outside], config.gamma)
    return F.pad(policy.pool(hitters, config.pooling).mean(0), (0, num_queries))
