"""What earlier attempts have done, by key and not by position.

The key of a row is the document's id, the hash of its content, and the hash of the configuration.
A text that changed under its id is another key, so it is done again; the order of the input, or
more of it, changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields

import pyarrow.compute as pc

from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.types import OK, BadDocument, Document, Source

Key = tuple[str, str]  # doc_id and doc_hash, under one config_hash


@dataclass(slots=True)
class Outcome:
    """The row that counts for a key: where it is among all rows of the parts, in their order."""

    status: str
    position: int
    attempts: int = 1


class Ledger:
    """The documents of this run's input, and which of them need no work."""

    def __init__(self, config_hash: str, done: Collection[Key] = frozenset()) -> None:
        self.config_hash = config_hash
        self.hashes: dict[str, str] = {}
        self.skipped = 0
        self._done = done
        self._stopped = False

    def unfinished(self, source: Source) -> Source:
        """The documents of ``source`` that are not done, each noted down."""
        for document in source:
            if self._stopped:
                return
            doc_hash = hash_document(document)
            self.hashes[document.doc_id] = doc_hash
            if (document.doc_id, doc_hash) in self._done:
                self.skipped += 1
            else:
                yield document

    def stop(self) -> None:
        """Read no further, though many documents may lie before the next unfinished one."""
        self._stopped = True

    @property
    def keys(self) -> Iterator[Key]:
        return iter(self.hashes.items())


def hash_document(document: Document | BadDocument) -> str:
    """Of all that it says besides its id. What it does not say does not count, so that a field
    which only some documents have leaves the others as they are."""
    content = {
        field.name: value
        for field in fields(document)
        if field.name != "doc_id" and (value := getattr(document, field.name))
    }
    data = json.dumps(content, sort_keys=True, ensure_ascii=False, default=dict)
    return hashlib.blake2b(data.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def read_outcomes(folder: OutputFolder, parts: list[str], config_hash: str) -> dict[Key, Outcome]:
    """One outcome for each key of the configuration: a success if there is one, else the latest.
    Reads the columns of the key alone. Raises RunFailed."""
    with folder.reading():
        rows = folder.rows(parts).to_table(["config_hash", "doc_id", "doc_hash", "status"])
    own = pc.indices_nonzero(pc.fill_null(pc.equal(rows["config_hash"], config_hash), False))
    taken = rows.take(own)
    columns = (own, taken["doc_id"], taken["doc_hash"], taken["status"])
    outcomes: dict[Key, Outcome] = {}
    for position, doc_id, doc_hash, status in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        known = outcomes.get((doc_id, doc_hash))
        if known is None:
            outcomes[doc_id, doc_hash] = Outcome(status, position)
        else:
            known.attempts += 1
            if status == OK or known.status != OK:
                known.status, known.position = status, position
    return outcomes


def finished(outcomes: Mapping[Key, Outcome], retry: Collection[str]) -> set[Key]:
    """The keys that are not tried again."""
    return {key for key, outcome in outcomes.items() if outcome.status not in retry}
