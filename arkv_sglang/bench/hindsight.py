"""What twice the bytes can gain at most on the traces: ``python -m arkv_sglang.bench.hindsight``.

The best fixed set of documents is known in hindsight: those that were asked for most. One prompt of
the trace's mean length is always on its way in bf16 and takes its bytes from the set.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from arkv_sglang.bench.replay import SIZES, TRACES
from arkv_sglang.bench.trace import Trace, build_trace

NUM_SEEDS = 5


def best_hit_ratio(trace: Trace, num_tokens: float) -> float:
    """Token hit ratio of a tree that holds the instruction and what else fits of ``num_tokens``.

    A document's first request finds nothing of it, whatever the tree holds later.
    """
    counts = Counter(each.document for each in trace.requests if each.document >= 0)
    lengths = {each.document: each.lengths[1] for each in trace.requests}
    instruction = trace.settings.instruction_len
    found, room = instruction * (len(trace.requests) - 1), num_tokens - instruction
    for document, count in counts.most_common():
        held = min(lengths[document], max(room, 0))
        found, room = found + int(held * (count - 1)), room - held
    return found / trace.num_tokens


def gain(trace: Trace, size_ratio: float) -> float:
    """Best hit ratio in fp8 over the best in bf16, in the same bytes."""
    arena = size_ratio * trace.num_unique_tokens - trace.num_tokens / len(trace.requests)
    return best_hit_ratio(trace, 2 * arena) / best_hit_ratio(trace, arena)


def main() -> None:
    table = Table("trace", "arena", "least gain", "most")
    for name, settings in TRACES.items():
        traces = [build_trace(replace(settings, seed=seed)) for seed in range(NUM_SEEDS)]
        for size in SIZES:
            gains = [gain(trace, size) for trace in traces]
            table.add_row(name, f"{size:.0%}", f"{min(gains):.2f}", f"{max(gains):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
