"""The ops and the store on a GPU give what they give on the CPU. Needs torch alone."""

from dataclasses import fields

import pytest
import torch

from arkv_sglang.core import NO_ROW, Arena, Geometry, Tier, TierPlan, row_code
from arkv_sglang.kernels import api
from arkv_sglang.storage.store import KVStore

GEOMETRY = Geometry(num_layers=2, num_kv_heads=2, head_dim=64)
NUM_ROWS, NUM_HEADS, SCALE = 300, 6, 0.125


def on(device: str, value: object) -> object:
    """Tensors of results and arguments moved, whatever holds them."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(on(device, each) for each in value)
    return value


def filled(device: str) -> tuple[Arena, torch.Tensor]:
    """An arena with original, quantized and no rows, and their codes int32 [NUM_ROWS]."""
    random = torch.Generator().manual_seed(0)
    units = torch.arange(0, 2 * NUM_ROWS, 2)
    tiers = torch.arange(NUM_ROWS) % 2
    rows = row_code(units, tiers).masked_fill(torch.arange(NUM_ROWS) % 7 == 0, NO_ROW)
    k, v = torch.randn(2, NUM_ROWS, 2, 64, generator=random)
    arena = Arena.allocate(GEOMETRY, 2 * NUM_ROWS, device)
    api.write_rows(arena, *on(device, (rows, k, v)))
    return arena, rows.to(device)


def results(device: str) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    arena, rows = filled(device)
    live = rows[rows >= 0]
    q, k, v = (
        torch.randn(40, heads, 64, generator=random).to(device) for heads in (NUM_HEADS, 2, 2)
    )
    lens = [100, 0, 200]
    indptr = torch.tensor([0, 100, 100, 300], device=device)
    out, probs = api.decode_attention(q[:3], arena, rows, indptr, lens, SCALE)
    window = api.window_statistics(q[:8], k, SCALE)
    before = [100, len(live) - 100]
    found = {
        "quantize": api.quantize(k)[0].float(),
        "read": torch.stack(api.read_rows(arena, rows)).float(),
        "decode": out,
        "probs": probs,
        "extend": api.extend_attention(q, k, v, arena, live, before, [25, 15], SCALE),
    }
    return found | {field.name: getattr(window, field.name) for field in fields(window)}


@pytest.fixture(scope="module")
def both() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    return results("cpu"), results("cuda")


@pytest.mark.parametrize(
    "op",
    [
        "quantize",
        "read",
        "decode",
        "probs",
        "extend",
        "mean",
        "variance",
        "entropy",
        "variance_sum",
        "kurtosis_sum",
    ],
)
def test_as_on_the_cpu(both: tuple[dict[str, torch.Tensor], ...], op: str) -> None:
    on_cpu, on_gpu = (found[op] for found in both)
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=2e-3, atol=2e-3)


def test_a_life_in_the_store() -> None:
    """Bind, demote, privatize, append, plan again, release: nothing leaks on the device either."""
    store = KVStore(GEOMETRY, 200, 40, "cuda")
    slots = torch.arange(1, 21, device="cuda")
    store.bind_slots(slots)
    for layer in range(2):
        k = torch.randn(20, 2, 64, device="cuda")
        store.write(layer, store.slot_rows(layer, slots), k, k)
    store.demote_slots(slots[:5])
    tiers = torch.arange(20, device="cuda").expand(2, 20) % 3 - 1
    zeros = torch.zeros(2, 20, device="cuda")
    view = store.create_view(slots, TierPlan(tiers.to(torch.int8)), slots, zeros, zeros, 4)
    rows = store.append_rows([view], [21])
    store.write(0, rows[0], k[:1], k[:1])
    store.write(1, rows[1], k[:1], k[:1])
    index = store.decode_index([view])
    q = torch.randn(1, NUM_HEADS, 64, device="cuda")
    for layer in range(2):
        found = store.view_rows(layer, index)
        _, probs = api.decode_attention(
            q, store.arena, found, index.kv_indptr, index.kv_lens, SCALE
        )
        store.observe(layer, index, probs)
        assert probs.sum().item() == pytest.approx(1, abs=1e-4)
    state = store.view_state(view)
    store.replan_view(view, TierPlan(torch.full_like(state.tiers, int(Tier.QUANTIZED))))
    assert store.check_integrity() == []
    store.release_view(view)
    assert store.free_units == store.num_units and store.check_integrity() == []
