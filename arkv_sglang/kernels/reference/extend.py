"""Attention of prompt chunks: all of the prefix, causal inside the chunk."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from arkv_sglang.core import Arena
from arkv_sglang.kernels.reference.rows import read_rows

SHORT_PREFIX = 4
"""A prefix this many times shorter than its chunk is cheaper recomputed than joined."""


def extend_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    arena: Arena,
    prefix_rows: torch.Tensor,
    prefix_lens: list[int],
    extend_lens: list[int],
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    token = row = 0
    for num_prefix, num_tokens in zip(prefix_lens, extend_lens, strict=True):
        chunk = slice(token, token + num_tokens)
        prefix = prefix_rows[row : row + num_prefix]
        out[chunk] = _request(q[chunk], k[chunk], v[chunk], arena, prefix, scale)
        token, row = token + num_tokens, row + num_prefix
    return out


def _request(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    arena: Arena,
    prefix_rows: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    num_tokens, num_heads, head_dim = q.shape
    if num_tokens == 0:
        return q
    if q.device.type == "cpu" and prefix_rows.numel() * SHORT_PREFIX <= num_tokens:
        return _one_pass(q, k, v, arena, prefix_rows, scale)
    # fp32: without bf16 instructions it is as fast, and the parts merge without rounding.
    heads = q.float().transpose(0, 1)
    group = num_heads // k.shape[1]
    inside, inside_lse = _attention_lse(
        heads,
        k.float().transpose(0, 1).repeat_interleave(group, 0),
        v.float().transpose(0, 1).repeat_interleave(group, 0),
        True,
        scale,
    )
    if prefix_rows.numel() == 0:
        return inside.transpose(0, 1)
    prefix_k, prefix_v = read_rows(arena, prefix_rows, torch.float32)
    # Every query sees the whole prefix, so a GQA group is just more queries of its KV head.
    stacked = heads.reshape(-1, group * num_tokens, head_dim)
    before, before_lse = _attention_lse(
        stacked, prefix_k.transpose(0, 1), prefix_v.transpose(0, 1), False, scale
    )
    share = (before_lse.reshape(inside_lse.shape) - inside_lse).sigmoid_().unsqueeze(-1)
    return torch.lerp(inside, before.reshape(inside.shape), share).transpose(0, 1)


def _one_pass(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    arena: Arena,
    prefix_rows: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Prefix and chunk as one causal text, the prefix's queries blank: to the bit what a stock
    SDPA over the whole text gives in the inputs' own type."""
    num_prefix = prefix_rows.numel()
    if num_prefix:
        prefix_k, prefix_v = read_rows(arena, prefix_rows, q.dtype)
        k, v = torch.cat((prefix_k, k)), torch.cat((prefix_v, v))
        q = torch.cat((q.new_zeros(num_prefix, *q.shape[1:]), q))
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return whole[0].transpose(0, 1)[num_prefix:]


def _attention_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [H, T, D] of fp32 ``q`` [H, T, D] and its log-sum-exp [H, T]."""
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[None], k[None], v[None], 0.0, causal, scale=scale
        )
        return out[0], lse[0]
    logits = torch.matmul(q * scale, k.transpose(1, 2))
    if causal:
        future = torch.ones(logits.shape[1:], dtype=torch.bool, device=q.device).triu_(1)
        logits.masked_fill_(future, float("-inf"))
    lse = logits.logsumexp(-1)
    return torch.matmul((logits - lse.unsqueeze(-1)).exp_(), v), lse
