"""Custom logit processors that look, or reach, into the scheduler process between two steps."""

import gc
import json
import os
import pickle
from pathlib import Path

import torch
from operation_log import Recorder
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from arkv_sglang.cache.heat import heat_of
from arkv_sglang.cache.radix import ArkvRadixCache
from arkv_sglang.cache.tiers import quantized_layers
from arkv_sglang.core import STORED_TIERS, Tier, row_tier, row_unit
from arkv_sglang.engine.teacher_forcing import TeacherForcing


def the_tree():
    return next(found for found in gc.get_objects() if type(found) is ArkvRadixCache)


class Probe(CustomLogitProcessor):
    """Calls ``actions[step]`` of this module for one request; results go to ``path`` as JSON."""

    def __call__(self, logits, custom_param_list=None):
        for params in custom_param_list:
            req = params["__req__"]
            action = params["actions"].get(str(len(req.output_ids)))
            if action:
                path = Path(params["path"])
                results = json.loads(path.read_text()) if path.exists() else {}
                results[action] = globals()[action](the_tree(), req)
                path.write_text(json.dumps(results))
        return logits


class Watch(CustomLogitProcessor):
    """Checks the store every so many steps of a load; what it finds goes to ``path``, a line each.

    Custom params: ``path`` and ``every``. The first line says that SGLang checks strictly, too.
    """

    def __call__(self, logits, custom_param_list=None):
        params = custom_param_list[0]
        path = Path(params["path"])
        if not _watched:
            _watched.update(tree=the_tree(), steps=0)
            path.write_text("".join(f"{name}={os.environ.get(name)}\n" for name in STRICT))
        _watched["steps"] += 1
        if _watched["steps"] % params["every"] == 0:
            found = _watched["tree"].store.check_integrity()
            with path.open("a") as file:
                file.writelines(f"step {_watched['steps']}: {fault}\n" for fault in found)
        return logits


# Of the scheduler process: finding the tree takes a tenth of a second.
_watched = {}
STRICT = (
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS",
)


def _view(tree, req):
    return tree.controller.states[req.kv.req_pool_idx].view


def _view_rows(tree, req):
    return tree.store.view_state(_view(tree, req)).rows


def _view_units(tree, req):
    """Every unit of the view, whatever its tier."""
    rows = _view_rows(tree, req)
    rows = rows[rows >= 0]
    first = row_unit(rows)
    return torch.cat((first, first[row_tier(rows) == Tier.ORIGINAL] + 1))


def _counts(tree, req):
    tree_units = sum(map(tree._units, tree._nodes()))
    return {
        "total": tree.store.num_units,
        "free": tree.store.free_units,
        "reclaimable": tree.reclaimable_units(),
        "tree": tree_units,
        "views": sum(
            tree.store.view_num_rows(s.view)[tier] * (2 if tier == Tier.ORIGINAL else 1)
            for s in tree.controller.states.values()
            if s.view is not None
            for tier in STORED_TIERS
        ),
        "integrity": tree.store.check_integrity(),
    }


def count_before(tree, req):
    return _counts(tree, req)


def count_after(tree, req):
    return _counts(tree, req)


def evict_tree(tree, req):
    tree.reclaim(tree.store.num_units)
    return _counts(tree, req)


def zero_view(tree, req):
    units = _view_units(tree, req)
    tree.store.arena.k[units] = 0
    tree.store.arena.v[units] = 0
    return len(units)


def damage_quantized_rows(tree, req):
    """Flip the sign of every fp8 value of the view's V."""
    rows = _view_rows(tree, req)
    units = row_unit(rows[row_tier(rows) == Tier.QUANTIZED])
    tree.store.arena.v[units] ^= 0x80
    return len(units)


def poison_prompt(tree, req):
    """NaN in the K rows of one layer, as a broken model would write, past what others share."""
    pairs = _own_prompt_pairs(tree, req)
    tree.store.arena.k_original[pairs] = torch.nan
    return len(pairs)


def poison_values(tree, req):
    """NaN where no score shows it: in V rows."""
    pairs = _own_prompt_pairs(tree, req)
    tree.store.arena.v_original[pairs] = torch.nan
    return len(pairs)


def _own_prompt_pairs(tree, req):
    """Where layer 3 of what was prefilled so far stands in the arena, after the instruction."""
    slots = tree._row(req, len(req.origin_input_ids))[200:]
    rows = tree.store.slot_rows(3, slots)
    return row_unit(rows[rows >= 0]) // 2


def poison_view(tree, req):
    rows = _view_rows(tree, req)[3]
    original = rows[row_tier(rows) == Tier.ORIGINAL]
    tree.store.arena.v_original[row_unit(original) // 2] = torch.nan
    return len(original)


def overwrite_everything_else(tree, req):
    """Random bytes (no NaN patterns for bf16 or e4m3) in each unit that the view does not own."""
    others = torch.ones(tree.store.num_units, dtype=torch.bool)
    others[_view_units(tree, req)] = False
    noise = torch.randint(0, 0x70, (int(others.sum()), tree.store.arena.k.shape[1]))
    tree.store.arena.k[others] = noise.to(torch.uint8)
    tree.store.arena.v[others] = noise.to(torch.uint8)
    return int(others.sum())


def check(tree, req):
    return tree.store.check_integrity()


class ZeroViewThenForce(TeacherForcing):
    """Teacher forcing on a view whose rows are wiped before its first decode step is read."""

    def __call__(self, logits, custom_param_list=None):
        tree = the_tree()
        for params in custom_param_list:
            if len(params["__req__"].output_ids) == 1:
                zero_view(tree, params["__req__"])
        return super().__call__(logits, custom_param_list)


class DamageOneRowThenForce(TeacherForcing):
    """Teacher forcing on a view of which one row per layer changes its sign before step 2."""

    def __call__(self, logits, custom_param_list=None):
        tree = the_tree()
        for params in custom_param_list:
            if len(params["__req__"].output_ids) == 1:
                units = row_unit(_view_rows(tree, params["__req__"])[:, 0])
                tree.store.arena.v_original[units // 2] *= -1
        return super().__call__(logits, custom_param_list)


def hottest(tree, req):
    return max(heat_of(node).mass for node in tree._nodes())


def demote_half(tree, req):
    """Quantize half of what unlocked nodes can give by that, the tolerant layers first."""
    nodes = list(tree._colder(None))
    layers = tree.controller.layers_by_tolerance()
    for node in nodes:
        tree._demote(node, layers, len(node.value) * len(layers) // 2)
    mixed = [0 < len(quantized_layers(node)) < len(layers) for node in nodes]
    return {"mixed_nodes": sum(mixed), "integrity": tree.store.check_integrity()}


_recorder = None


def start_log(tree, req):
    """Record every operation on rows from here on."""
    global _recorder
    # Under overlap scheduling a step shows its first token twice.
    if _recorder is None:
        _recorder = Recorder(tree.store)
        _recorder.install()
    return True


def stop_log(tree, req):
    """Leave what was recorded where the custom param ``log`` says."""
    path = Path(req.sampling_params.custom_params["log"])
    path.write_bytes(pickle.dumps(_recorder.log))
    return len(_recorder.log)
