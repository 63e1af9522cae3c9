"""The import law of the package: who may import whom, and where the heavy libraries may appear.

Two proofs: the import statements of every file (so lazy imports count too), and what a fresh
process has loaded, which also sees imports that come through other libraries.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "arkv_sglang"
ROOT = Path(__file__).parents[2]

# Part of the package -> the parts that it may import. A part that is not here may import all.
ALLOWED_PARTS = {
    "core": {"core", "config"},
    "unique_keys": {"unique_keys"},
    "config": {"core", "config", "unique_keys"},
    "sizes": {"core", "config", "sizes"},
    "support": {"config", "support"},
    "policy": {"core", "config", "policy"},
    "kernels": {"core", "config", "kernels"},
    "storage": {"core", "config", "policy", "kernels", "storage"},
    "cache": {"core", "config", "policy", "kernels", "storage", "cache"},
    "engine": {"core", "config", "sizes", "support", "policy"}
    | {"kernels", "storage", "cache", "engine"},
    "batch": {"core", "config", "unique_keys", "sizes", "support", "policy", "batch", "report"},
    "report": {"config", "report"},
}


def may_use(library: str, module: str) -> bool:
    """Whether `module` may import `library`: the three that tie code to a kind of machine."""
    part, leaf = part_of(module), module.rpartition(".")[2]
    if library == "sglang":
        return part in {"cache", "engine", "bench"} or module.endswith("batch.ray_actor")
    if library == "triton":
        return part == "kernels" and leaf.startswith("triton_")
    if library == "ray":
        return part == "batch" and (leaf == "local_ray" or leaf.startswith("ray_"))
    return True


def part_of(module: str) -> str:
    return [*module.split("."), ""][1]


def module_files() -> dict[str, Path]:
    files = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    return files


def imports_of(module: str, path: Path) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


FILES = module_files()
EVAL_ENGINE = "arkv_sglang.eval.serving"


@pytest.mark.parametrize("module", FILES)
def test_import_statements(module: str) -> None:
    allowed = ALLOWED_PARTS.get(part_of(module))
    for name in imports_of(module, FILES[module]):
        top = name.split(".")[0]
        assert may_use(top, module), f"{module} must not import {top}"
        if top == PACKAGE and allowed is not None and part_of(name):
            assert part_of(name) in allowed | {"__version__"}, f"{module} must not import {name}"


def test_one_file_of_eval_knows_the_engine() -> None:
    """Tasks, scores and statistics are there without SGLang. The command imports that file when all
    else has been found right."""
    users = {
        module
        for module, path in FILES.items()
        if part_of(module) == "eval"
        and any(part_of(name) == "engine" for name in imports_of(module, path))
    }
    assert users == {EVAL_ENGINE}


PROBE = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    for heavy in {"ray", "sglang", "triton"} & set(sys.modules):
        sys.exit(f"{module} loads {heavy}")
"""


def test_nothing_heavy_is_loaded_in_a_fresh_process() -> None:
    parts = ALLOWED_PARTS.keys() - {"cache", "engine"}
    modules = [
        module
        for module in FILES
        if part_of(module) in parts | {"eval"}
        and module != EVAL_ENGINE
        and not module.rpartition(".")[2].startswith(("triton_", "ray_"))
    ]
    command = [sys.executable, "-c", PROBE, *modules]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
