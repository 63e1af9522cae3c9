"""Prompts larger than the arena: compressed after each chunk, by the real parts without a model."""

from types import SimpleNamespace

import pytest
import torch

from arkv_sglang.config import load_config
from arkv_sglang.core import Geometry
from arkv_sglang.engine.backend import ArkvAttentionBackend
from arkv_sglang.engine.prompt import WindowQueries
from arkv_sglang.engine.standalone import standalone_pool

GEOMETRY = Geometry(num_layers=2, num_kv_heads=2, head_dim=16)
NUM_HEADS, CHUNK, NUM_CHUNKS = 4, 64, 4
NUM_TOKENS = CHUNK * NUM_CHUNKS


class Prefill:
    """One request's chunks through the real backend, with random queries, keys and values."""

    def __init__(self, policy: str, config: dict, capacity: int, seed: int = 0) -> None:
        self.pool = standalone_pool(
            load_config(policy, config), GEOMETRY, num_slots=2 * NUM_TOKENS, capacity=capacity
        )
        self.controller, self.store = self.pool.controller, self.pool.store
        self.controller.chunk_tokens = CHUNK
        self.slots = torch.arange(1, NUM_TOKENS + 1)
        runner = SimpleNamespace(
            token_to_kv_pool=self.pool,
            req_to_token_pool=SimpleNamespace(req_to_token=self.slots[None].int()),
        )
        self.backend = ArkvAttentionBackend(runner)
        self.kv = SimpleNamespace(req_pool_idx=0, kv_committed_len=0)
        self.req = SimpleNamespace(
            kv=self.kv, full_untruncated_fill_ids=range(NUM_TOKENS), to_finish=None
        )
        self.random = torch.Generator().manual_seed(seed)

    def chunk(self, index: int, poison: bool = False) -> list[torch.Tensor]:
        """Run one chunk; the outputs of all layers."""
        start, end = index * CHUNK, (index + 1) * CHUNK
        self.backend.batch = self.backend._begin_extend(
            SimpleNamespace(
                req_pool_indices=torch.tensor([0]),
                extend_prefix_lens_cpu=[start],
                extend_seq_lens_cpu=[CHUNK],
                out_cache_loc=self.slots[start:end],
            )
        )
        outputs = []
        for layer_id in range(GEOMETRY.num_layers):
            q, k, v = (
                torch.randn(CHUNK, heads * 16, generator=self.random).bfloat16()
                for heads in (NUM_HEADS, 2, 2)
            )
            if poison:
                v.fill_(torch.nan)
            layer = SimpleNamespace(
                layer_id=layer_id,
                scaling=0.25,
                tp_q_head_num=NUM_HEADS,
                tp_k_head_num=2,
                tp_v_head_num=2,
                qk_head_dim=16,
                v_head_dim=16,
            )
            outputs.append(self.backend.forward_extend(q, k, v, layer, None))
        self.kv.kv_committed_len = end
        return outputs

    def compress(self) -> None:
        self.controller.compress_chunk(self.req, self.slots[: self.kv.kv_committed_len])
        assert self.store.check_integrity() == []

    @property
    def view(self):
        return self.controller.view(0)


@pytest.mark.parametrize("chunks", [(96,), (95, 1), (65, 31), (64, 32), (33, 33, 30), (1,) * 96])
def test_the_window_is_the_same_however_the_prompt_is_cut(chunks: tuple[int, ...]) -> None:
    queries = torch.randn(96, NUM_HEADS, 16).bfloat16()
    window = WindowQueries(num_layers=1, window=32)
    for chunk in queries.split(chunks):
        window.append(0, chunk)
    assert torch.equal(window.layer(0), queries[-32:])


def test_a_view_in_the_making_is_attended_to_as_the_prompt_would_be() -> None:
    """A budget that keeps every row changes nothing, in whatever order the view has them."""
    whole = Prefill("original", {"budget": 1.0}, capacity=2 * NUM_TOKENS)
    chunks = Prefill("original", {"budget": 4 * NUM_TOKENS}, capacity=2 * NUM_TOKENS)
    for index in range(NUM_CHUNKS):
        wanted, found = whole.chunk(index), chunks.chunk(index)
        for one, other in zip(wanted, found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-2)
        chunks.compress()
    assert sum(chunks.store.view_num_rows(chunks.view).values()) == 2 * NUM_TOKENS
    state = chunks.store.view_state(chunks.view)
    assert sorted(state.positions[0].tolist()) == list(range(NUM_TOKENS))
    # The first chunk was observed by every chunk's window, the last by its own.
    by_position = state.num_observations[0][state.positions[0].argsort()]
    assert by_position[0] == 32 * NUM_CHUNKS and by_position[-1] == 32


@pytest.mark.parametrize("policy", ["original", "quantized", "arkv", "arkv-paper"])
def test_no_more_than_budget_and_chunk(policy: str) -> None:
    config = {"budget": 0.25, "min_tokens": 180}
    capacity = NUM_TOKENS // 4 + CHUNK + 2
    prefill = Prefill(policy, config, capacity)
    assert prefill.controller.oversized(NUM_TOKENS) and not prefill.controller.oversized(120)
    budget = prefill.controller.budget_bytes(NUM_TOKENS)
    for index in range(NUM_CHUNKS):
        prefill.chunk(index)
        prefill.compress()
        assert sum(prefill.store.view_bytes(prefill.view).values()) <= budget
        positions = prefill.store.view_state(prefill.view).positions[0]
        newest = set(range((index + 1) * CHUNK - 32, (index + 1) * CHUNK))
        assert newest <= set(positions.tolist())
    assert prefill.controller.states[0].record.chunks_compressed == NUM_CHUNKS
    prefill.store.release_view(prefill.view)
    assert prefill.store.free_units == prefill.store.num_units


@pytest.mark.parametrize("short", [False, True], ids=["alone", "others-are-short"])
def test_until_the_budget_is_full_nothing_is_evicted(short: bool) -> None:
    prefill = Prefill("arkv", {"budget": 0.5, "min_tokens": 180}, NUM_TOKENS // 2 + CHUNK + 2)
    for index in range(2):
        prefill.chunk(index)
        prefill.compress()
        if short:
            prefill.controller.tighten_views(10)
    assert prefill.view.rows_evicted == 0


def test_nan_leaves_room_for_the_next_chunk() -> None:
    """The request was given up, but its prompt runs to its end before SGLang asks."""
    prefill = Prefill("arkv", {"budget": 0.25, "min_tokens": 180}, NUM_TOKENS // 4 + CHUNK + 2)
    for index in range(NUM_CHUNKS):
        prefill.chunk(index, poison=index == 1)
        prefill.compress()
    assert "NaN" in prefill.req.to_finish.message
    prefill.store.release_view(prefill.view)
    assert prefill.store.free_units == prefill.store.num_units
