"""KL over the top tokens and one bucket for the rest."""

import pytest
import torch

from arkv_sglang.eval.divergence import top_kl
from arkv_sglang.eval.reference import compare, pack


def log_probs(*shape):
    return torch.randn(*shape, dtype=torch.float64).log_softmax(-1)


def test_nothing_moved():
    same = log_probs(5, 1000)
    assert top_kl(same, same).abs().max() < 1e-12


def test_all_tokens_listed_is_plain_kl():
    p, q = log_probs(3, 64), log_probs(3, 64)
    torch.testing.assert_close(top_kl(p, q), (p.exp() * (p - q)).sum(-1), atol=1e-9, rtol=1e-6)


def test_the_rest_is_one_bucket():
    p = torch.tensor([0.5, 0.3, 0.1, 0.1], dtype=torch.float64).log()
    q = torch.tensor([0.4, 0.3, 0.05, 0.25], dtype=torch.float64).log()
    wanted = 0.5 * torch.tensor(0.5 / 0.4).log() + 0.2 * torch.tensor(0.2 / 0.3).log()
    torch.testing.assert_close(top_kl(p, q, top=2), wanted.double(), atol=1e-7, rtol=1e-6)


def test_never_negative():
    p, q = log_probs(50, 500), log_probs(50, 500)
    assert (top_kl(p, q, top=16) >= 0).all()


def test_a_packed_reference_gives_the_same_without_the_first_step():
    full, found = log_probs(6, 1000).float(), log_probs(6, 1000).float()
    found[:3] = full[:3]
    figures = compare(pack(full), found)
    assert figures["kl"] == pytest.approx(top_kl(full, found)[1:].mean().item(), rel=1e-4)
    same = (full.argmax(-1) == found.argmax(-1))[1:]
    assert figures["top1"] == same.double().mean() >= 2 / 5
    found[0] = log_probs(1000).float()
    assert compare(pack(full), found) == figures
    assert compare(pack(full), full) == {"top1": 1, "kl": pytest.approx(0, abs=1e-6)}
    assert len(pack(full)) < 6 * 256 * 9


def test_tokens_that_are_as_likely_agree():
    full = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2]]).log()
    found = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]).log()
    assert compare(pack(full), found)["top1"] == 0.5
    assert compare(pack(full), full)["top1"] == 1
    assert compare(pack(found), full)["top1"] == 0.5
