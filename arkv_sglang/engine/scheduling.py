"""Hooks on the scheduler: who is admitted, thrown out, ended or refused.

Each passes through untouched while the policy is `none`.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import FINISH_ABORT, release_req

from arkv_sglang.engine.controller import Controller

Call = Callable[..., Any]

controller: Controller | None = None
"""The scheduler process's own; None in other processes and under the policy `none`."""


def keep_window(result: int, req: Any, input_len: int) -> int:
    """Recompute at least the window on a prefix hit: its queries score the prompt."""
    if controller is None:
        return result
    if controller.oversized(input_len):
        # Its view takes in all of the prompt, chunk by chunk.
        return 0
    remaining = req.sampling_params.max_new_tokens or 0
    if not controller.compresses(input_len, remaining):
        return result
    return max(min(result, input_len - controller.config.window), 0)


def running_growth(result: float, adder: Any, req: Any) -> float:
    if controller is None:
        return result
    result = controller.tokens_to_reserve(req, result)
    compressible = controller.waits(req) and adder.tree_cache.compressible_units(req) > 0
    growth = controller.growth_tokens(req, result, compressible)
    adder.memory_budget.promise(result, growth)
    return growth


def look_at_candidate(adder: Any, req: Any, *_: Any, **__: Any) -> None:
    if controller is not None:
        adder.memory_budget.look_at(req)


def reopen_admission(scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """SGLang shuts admission until a request ends; under a policy room also comes from views."""
    if controller is None or not controller.take_room_freed():
        return
    running_batch = kwargs["running_batch"] if "running_batch" in kwargs else args[-1]
    running_batch.batch_is_full = False


def keep_who_cannot_come_back(order: list[int], reqs: list[Any]) -> list[int]:
    """The last are thrown out first: those that could not be prefilled again must not be."""
    if controller is None:
        return order
    return sorted(order, key=lambda index: controller.comes_back(reqs[index]))


def end_who_cannot_come_back(
    original: Call, scheduler: Any, req: Any, is_retracted: bool = False
) -> None:
    """Thrown out with more text than the arena holds as a prompt, it would wait for ever, and all
    behind it."""
    if controller is None or not req.output_ids or controller.comes_back(req):
        original(scheduler, req, is_retracted)
        return
    req.to_finish = FINISH_ABORT(
        f"out of KV memory after {len(req.output_ids)} new tokens: the request was thrown out, and "
        f"its text of {len(req.origin_input_ids) + len(req.output_ids)} tokens no longer fits as a "
        "prompt; send fewer requests at once or ask for fewer tokens",
        status_code=HTTPStatus.SERVICE_UNAVAILABLE,
    )
    notice = AbortReq(rid=req.rid, finished_reason=req.to_finish.to_json())
    scheduler.send_abort_output(notice, req)
    scheduler._release_aborted_request(req)


def throw_out_parked_chunk(scheduler: Any, batch: Any) -> None:
    """A prompt that waits for room between two chunks goes before a running request.

    SGLang throws out running requests only, and ends the last of them for want of memory, even
    where the rest is held by a prompt that is in no batch.
    """
    req = scheduler.chunked_req
    if controller is None or req is None or scheduler._pending_chunked_abort_req is req:
        return
    # Those that end in the step under way will have freed theirs before anyone is thrown out.
    if batch.is_empty() or scheduler._reqs_finishing_inflight(batch) or batch.check_decode_mem():
        return
    release_req(
        req=req,
        remaing_req_count=batch.batch_size(),
        req_to_token_pool=scheduler.req_to_token_pool,
        token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
        tree_cache=scheduler.tree_cache,
        hisparse_coordinator=None,
    )
    scheduler.chunked_req = None
    scheduler._add_request_to_queue(req, is_retracted=True)


def refuse_request(_: Any, scheduler: Any, req: Any) -> None:
    """A request that skips checkpoints would silently run uncompressed."""
    if controller is None:
        return
    if req.positional_embed_overrides is not None:
        req.set_finish_with_abort(
            f"--kv-policy {controller.config.policy} does not support "
            "positional_embed_overrides: such a prompt skips the prefix tree, where views are made"
        )


def refuse_beams(original: Call, coordinator: Any, req: Any, recv_req: Any) -> str | None:
    """Before a group of beams is set up, whose slots an aborted leader would leave behind."""
    if controller is None:
        refusal: str | None = original(coordinator, req, recv_req)
        return refusal
    return (
        f"--kv-policy {controller.config.policy} does not support beam search: beams share KV "
        "rows by slot; drop beam_width"
    )
