"""Files of packages that are not imported as a whole: one of their modules, or what lies beside."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from arkv_sglang.config import ConfigError


def package_folder(package: str, needed_by: str, install: str) -> Path:
    """Where ``package`` is installed. Raises ConfigError, which says what to ``install``."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"{needed_by} needs the package {install}, which is not installed: install it or leave "
            "out the task"
        )
    return Path(spec.submodule_search_locations[0])


@cache
def load_module(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"arkv_eval_{path.stem}_{abs(hash(path))}", path)
    assert spec is not None and spec.loader is not None, f"{path} must be a Python file"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
