"""How far a compressed cache moves the next-token distribution."""

from __future__ import annotations

import torch

TOP_TOKENS = 256


def top_kl(reference: torch.Tensor, found: torch.Tensor, top: int = TOP_TOKENS) -> torch.Tensor:
    """KL(reference || found) in nats over the reference's ``top`` tokens and a bucket for the rest.

    ``reference``, ``found``: log-probabilities [..., V], any float dtype. Returns fp64 [...].
    """
    reference, found = reference.double(), found.double()
    best = reference.topk(min(top, reference.shape[-1]), dim=-1)
    p, q = _with_rest(best.values), _with_rest(found.gather(-1, best.indices))
    return torch.special.xlogy(p, p / q).sum(-1)


def _with_rest(log_probs: torch.Tensor) -> torch.Tensor:
    """Probabilities of the listed tokens and of all the others together."""
    listed = log_probs.exp()
    rest = (1 - listed.sum(-1, keepdim=True)).clamp_min(1e-12)
    return torch.cat((listed, rest), dim=-1)
