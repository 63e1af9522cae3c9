"""How far a compressed cache moves the next-token distribution."""

from __future__ import annotations

from typing import NamedTuple

import torch

TOP_TOKENS = 256


class TopTokens(NamedTuple):
    """The most likely tokens of distributions, the first the most likely: ids int64 and
    log-probabilities fp64, both [..., K]."""

    ids: torch.Tensor
    log_probs: torch.Tensor


def top_tokens(log_probs: torch.Tensor, top: int = TOP_TOKENS) -> TopTokens:
    """Of log-probabilities [..., V], any float dtype."""
    best = log_probs.double().topk(min(top, log_probs.shape[-1]), dim=-1)
    return TopTokens(best.indices, best.values)


def top_kl(reference: torch.Tensor, found: torch.Tensor, top: int = TOP_TOKENS) -> torch.Tensor:
    """KL(reference || found) in nats over the reference's ``top`` tokens and a bucket for the rest.

    ``reference``, ``found``: log-probabilities [..., V], any float dtype. Returns fp64 [...].
    """
    return top_kl_of(top_tokens(reference, top), found)


def top_kl_of(reference: TopTokens, found: torch.Tensor) -> torch.Tensor:
    """The same where no more is known of the reference."""
    p = _with_rest(reference.log_probs.double())
    q = _with_rest(found.double().gather(-1, reference.ids))
    return torch.special.xlogy(p, p / q).sum(-1)


def _with_rest(log_probs: torch.Tensor) -> torch.Tensor:
    """Probabilities of the listed tokens and of all the others together."""
    listed = log_probs.exp()
    rest = (1 - listed.sum(-1, keepdim=True)).clamp_min(1e-12)
    return torch.cat((listed, rest), dim=-1)
