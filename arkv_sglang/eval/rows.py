"""The table of all samples, and a file for each of them while an evaluation goes on.

A file is named by the hash of all that its row depends on, so what is done is found again by what
it is: under another model, engine, arm or prompt it has another name.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from arkv_sglang.batch.store import Store
from arkv_sglang.batch.types import KV_KEYS
from arkv_sglang.config import ConfigError
from arkv_sglang.eval.arms import Arm
from arkv_sglang.eval.sample import Outcome, Sample

PARTS = "parts"
SAMPLES, REPORT = "samples.parquet", "report.json"

_FIGURES = pa.map_(pa.string(), pa.float64())
_OUTCOME = [
    pa.field("output", pa.string(), nullable=False),
    *(
        pa.field(name, pa.int64(), nullable=False)
        for name in ("prompt_tokens", "output_tokens", "cached_tokens")
    ),
    pa.field("finish_reason", pa.string(), nullable=False),
    pa.field("kv_bytes", pa.int64(), nullable=False),
    pa.field("kv_bf16_bytes", pa.int64(), nullable=False),
    pa.field("wall_s", pa.float64(), nullable=False),
    pa.field("measured", _FIGURES, nullable=False),
]
_KV = [pa.field(f"kv_{key}", pa.int64()) for key in KV_KEYS]
_SAMPLE = [
    pa.field("task", pa.string(), nullable=False),
    pa.field("number", pa.int64(), nullable=False),
    pa.field("prompt_id", pa.string(), nullable=False),
    pa.field("arm", pa.string(), nullable=False),
    pa.field("policy", pa.string(), nullable=False),
    pa.field("about", pa.string(), nullable=False),
    pa.field("answers", pa.list_(pa.string()), nullable=False),
]
PART_SCHEMA = pa.schema([*_SAMPLE, *_OUTCOME, *_KV, pa.field("reference", pa.binary())])
SCHEMA = pa.schema(
    [
        *_SAMPLE,
        pa.field("score", pa.float64(), nullable=False),
        pa.field("figures", _FIGURES, nullable=False),
        *_OUTCOME,
        *_KV,
    ]
)


def prompt_id(sample: Sample) -> str:
    """The same prompts under all arms have the same one."""
    return _hash(_content(sample))


def key(sample: Sample, arm: Arm, setting: Mapping[str, Any], reference: bytes | None) -> str:
    """Of a row. ``setting``: model and engine, as plain data."""
    return _hash(
        {
            "sample": _content(sample),
            "arm": [arm.policy, arm.config],
            "setting": setting,
            "reference": None if reference is None else hashlib.sha256(reference).hexdigest(),
        }
    )


def _content(sample: Sample) -> dict[str, Any]:
    """What an engine makes of it depends on; how it is scored does not count."""
    content = asdict(sample)
    return {name: content[name] for name in ("prompt", "new_tokens", "before", "forced", "stop")}


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


class Rows:
    """What is done, in one folder."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        """Raises ConfigError when the folder cannot be written to."""
        self._say = say
        try:
            self.store = Store(str(folder.resolve()))
            self.store.make_folder(PARTS)
        except OSError as error:
            raise ConfigError(
                f"--out must name a folder that can be written to, got {str(folder)!r}: {error}"
            ) from None

    def find(self, name: str) -> Outcome | None:
        """The outcome of that key; None where it is not done. A torn file is not."""
        try:
            table = pq.read_table(io.BytesIO(self.store.read(_part(name))))
            return _outcome(table.cast(PART_SCHEMA).to_pylist(maps_as_pydicts="strict")[0])
        except FileNotFoundError:
            return None
        except (pa.ArrowException, ValueError, IndexError) as error:
            self._say(f"{_part(name)} cannot be read ({error}): that sample is done again")
            return None

    def add(self, name: str, sample: Sample, arm: Arm, outcome: Outcome) -> None:
        """Write its file, whole or not at all."""
        row = _identity(sample, arm) | _plain(outcome) | {"reference": outcome.reference}
        self._write(_part(name), pa.Table.from_pylist([row], PART_SCHEMA))

    def write_all(self, scored: Sequence[tuple[Sample, Arm, Outcome, Mapping[str, float]]]) -> None:
        """The table of all samples; the first figure of each is its score."""
        lines = [
            _identity(sample, arm)
            | _plain(outcome)
            | {"score": next(iter(figures.values())), "figures": list(figures.items())}
            for sample, arm, outcome, figures in scored
        ]
        self._write(SAMPLES, pa.Table.from_pylist(lines, SCHEMA))

    def write_json(self, report: Mapping[str, Any]) -> None:
        with self.store.create(REPORT) as file:
            file.write(json.dumps(report, indent=1).encode() + b"\n")

    def _write(self, name: str, table: pa.Table) -> None:
        with self.store.create(name) as file:
            pq.write_table(table, file)


def _part(name: str) -> str:
    return f"{PARTS}/{name}.parquet"


def _identity(sample: Sample, arm: Arm) -> dict[str, Any]:
    return {
        "task": sample.task,
        "number": sample.number,
        "prompt_id": prompt_id(sample),
        "arm": arm.name,
        "policy": arm.policy,
        "about": json.dumps(sample.about),
        "answers": list(sample.answers),
    }


def _plain(outcome: Outcome) -> dict[str, Any]:
    fields = {field.name: getattr(outcome, field.name) for field in _OUTCOME}
    fields["measured"] = list(outcome.measured.items())
    return fields | {f"kv_{each}": outcome.kv.get(each) for each in KV_KEYS}


def _outcome(row: Mapping[str, Any]) -> Outcome:
    fields = {field.name: row[field.name] for field in _OUTCOME}
    kv = {each: row[f"kv_{each}"] for each in KV_KEYS if row[f"kv_{each}"] is not None}
    return Outcome(**fields, kv=kv, reference=row["reference"])
