"""What every record of a benchmark says of how it was made."""

from __future__ import annotations

import argparse
import os
import platform
from typing import Any

from arkv_sglang.batch.versions import package_versions


def setting(options: argparse.Namespace) -> dict[str, Any]:
    """Options, machine and versions, as plain data."""
    return {
        "settings": {key: str(value) for key, value in vars(options).items() if value is not None},
        "machine": {
            "cpus": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "versions": package_versions(),
    }
