"""``manifest.json``: what the folder's rows were made with, and by which attempts."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.folder import MANIFEST, OutputFolder
from arkv_sglang.batch.identity import config_hash, model_identity, policy_settings
from arkv_sglang.batch.redact import redact_uris
from arkv_sglang.batch.types import RunFailed

FORMAT = 1
SUCCEEDED, FAILED, STOPPED, DIED = "succeeded", "failed", "stopped", "died"


class Manifest:
    """This attempt's entry is there from its beginning, so that one which is killed is known."""

    def __init__(
        self, folder: OutputFolder, config: JobConfig, versions: Mapping[str, str]
    ) -> None:
        """Writes nothing yet. Raises RunFailed when the manifest of earlier attempts is damaged."""
        self._folder = folder
        self.config_hash = config_hash(config)
        earlier = _read(folder)
        self._attempts = earlier["attempts"]
        for attempt in self._attempts:
            attempt["outcome"] = attempt["outcome"] or DIED
        model = model_identity(config.engine)
        self._attempt: dict[str, Any] = {
            "id": folder.attempt,
            "config_hash": self.config_hash,
            "model_hash": model["hash"] or model["commit"],
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": _now(),
            "ended_at": None,
            "outcome": None,
            "reason": None,
            "documents": {},
            "documents_skipped": None,
        }
        snapshot = config.snapshot()
        self._data: dict[str, Any] = {
            "format": FORMAT,
            "config_hash": self.config_hash,
            "config": snapshot,
            "model": model,
            "policy": policy_settings(config.engine),
            "seeds": {"random_seed": config.engine.get("random_seed")},
            "versions": dict(versions),
            "configs": {**earlier["configs"], self.config_hash: snapshot},
            "attempts": [*self._attempts, self._attempt],
        }

    def add_config(self, config: JobConfig) -> str:
        """Tell of a configuration that other rows of this attempt were made with; its hash."""
        name = config_hash(config)
        self._data["configs"][name] = config.snapshot()
        return name

    def begin(self) -> None:
        """Raises RunFailed."""
        self._write()

    def end(
        self, outcome: str, reason: str | None, documents: Mapping[str, int], skipped: int
    ) -> None:
        """``documents``: those that this attempt committed, by status. Raises RunFailed."""
        self._attempt |= {
            "ended_at": _now(),
            "outcome": outcome,
            "reason": None if reason is None else redact_uris(reason),
            "documents": dict(documents),
            "documents_skipped": skipped,
        }
        self._write()

    def _write(self) -> None:
        self._folder.write(MANIFEST, json.dumps(self._data, indent=2, allow_nan=False).encode())


def _read(folder: OutputFolder) -> dict[str, Any]:
    try:
        with folder.reading():
            if MANIFEST not in folder.store.names():
                return {"attempts": [], "configs": {}}
            data = json.loads(folder.store.read(MANIFEST))
        return {"attempts": list(data["attempts"]), "configs": dict(data["configs"])}
    except (ValueError, TypeError, LookupError):
        raise RunFailed(
            f"output.dir must hold a manifest as this job writes it, got {folder.path(MANIFEST)} "
            "in another form; move it away, which loses the list of attempts and no row"
        ) from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
