"""Which versions of what a run is made with."""

from __future__ import annotations

import contextlib
import importlib.metadata

PACKAGES = ("arkv_sglang", "sglang", "ray", "torch", "transformers", "pyarrow")


def package_versions() -> dict[str, str]:
    """What is installed here, by name, without importing any of it."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
