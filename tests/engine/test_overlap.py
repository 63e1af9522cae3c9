"""Overlap scheduling: rows move in the order that the forwards around them need.

On the CPU a forward has ended when the next operation begins, so the log of a run is the order
that holds; the checker is shown to see every other one.
"""

import pickle
import random
from pathlib import Path

import pytest
from engine_probes import Probe
from operation_log import Forward, Move, faults, links, swapped
from test_load import size_of
from tiny_models import TINY, tiny_model

from arkv_sglang.engine.launch import flush

MOST_SWAPS = 60
A, B, C = (0, 2), (2, 1), (4, 2)
ONE, OTHER = (1, 0), (2, 0)


@pytest.mark.parametrize(
    "log",
    [
        # A row is written, demoted, and read where it went.
        [Forward([(A, ONE)]), Move([(A, B)]), Forward(reads=[(B, ONE)])],
        # A row is read, and then its units are given to another.
        [
            Forward([(A, ONE), (C, OTHER)]),
            Forward(reads=[(A, ONE)]),
            Move([(C, A)]),
            Forward(reads=[(A, OTHER)]),
        ],
        # A row shrinks in its own units.
        [Forward([(A, ONE)]), Move([(A, (0, 1))]), Forward(reads=[((0, 1), ONE)])],
    ],
    ids=["moved", "overwritten", "in-place"],
)
def test_the_checker_sees_each_swap(log):
    assert list(faults(log)) == []
    pairs = links(log)
    assert len(pairs) >= 2
    for earlier, later in pairs:
        assert list(faults(swapped(log, earlier, later)))


def test_what_depends_on_nothing_may_be_swapped():
    log = [Forward([(A, ONE), (C, OTHER)]), Move([(A, B)]), Forward(reads=[(C, OTHER)])]
    assert links(log) == [(0, 1)]
    assert list(faults(swapped(log, 1, 2))) == []


@pytest.fixture(scope="module")
def log(one_engine, tmp_path_factory):
    """Of a load that makes, tightens and takes over views, demotes, evicts, and compresses a prompt
    chunk by chunk, all under overlap scheduling."""
    folder = Path(tmp_path_factory.mktemp("overlap"))
    patch = pytest.MonkeyPatch()
    patch.setenv("OMP_NUM_THREADS", "1")
    engine = one_engine.start(
        "arkv",
        {"budget": 0.25, "min_tokens": 143},
        model_path=tiny_model(folder),
        skip_tokenizer_init=True,
        max_total_tokens=size_of(700)[0],
        chunked_prefill_size=128,
        disable_overlap_schedule=False,
    )
    patch.undo()
    assert not engine.get_server_info()["disable_overlap_schedule"]
    path = folder / "log.pickle"

    def probe(action):
        return {"actions": {"0": action}, "path": str(folder / f"{action}.json")}

    draw = random.Random(5)

    def tokens(n):
        return [draw.randrange(1, TINY["vocab_size"]) for _ in range(n)]

    def serve(prompts, new, custom):
        params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
        return engine.generate(
            input_ids=prompts,
            sampling_params=[params | {"custom_params": custom}] * len(prompts),
            custom_logit_processor=Probe.to_str(),
        )

    serve([tokens(5)], 1, probe("start_log"))
    shared = tokens(150)
    lengths = [40, 300, 1100, 200, 250, 180, 420, 90]
    prompts = [(shared if i % 2 else []) + tokens(n) for i, n in enumerate(lengths)]
    outs = serve(prompts, 40, {"actions": {}, "path": ""})
    assert [len(out["output_ids"]) for out in outs] == [40] * len(lengths)
    assert any(out["meta_info"]["arkv"]["chunks_compressed"] for out in outs)
    found = engine.get_server_info()["internal_states"][0]["arkv"]
    for what in ("views_created", "views_taken_over", "views_replanned", "nodes_demoted"):
        assert found[f"arkv_{what}_total"] > 0
    serve(
        [tokens(5)],
        1,
        {"actions": {"0": "stop_log"}, "path": str(path) + ".json", "log": str(path)},
    )
    flush(engine)
    found = engine.get_server_info()["internal_states"][0]["arkv"]
    assert found["arkv_free_bytes"] == found["arkv_arena_bytes"]
    return pickle.loads(path.read_bytes())


def test_every_forward_meets_the_rows_that_it_means(log):
    assert sum(isinstance(operation, Move) for operation in log) > 20
    assert sum(len(each.reads) for each in log if isinstance(each, Forward)) > 10_000
    assert list(faults(log))[:3] == []


def test_every_swap_is_seen(log):
    pairs = links(log)
    of_moves = {i for pair in pairs for i in pair if isinstance(log[i], Move)}
    print(f"{len(log)} operations, {len(of_moves)} moves with {len(pairs)} forwards next to them")
    assert len(pairs) > 50
    for earlier, later in random.Random(0).sample(pairs, min(MOST_SWAPS, len(pairs))):
        assert next(faults(swapped(log, earlier, later)), None) is not None
