"""The wheel installs in a fresh environment and brings what SGLang and a licence check look for."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED_PROBE = """
import json
from importlib.metadata import distribution
dist = distribution("arkv_sglang")
print(json.dumps({
    "entry_points": {f"{ep.group}:{ep.name}": ep.value for ep in dist.entry_points},
    "license": dist.metadata["License-Expression"],
    "license_text": dist.read_text("licenses/LICENSE"),
    "extras": dist.metadata.get_all("Provides-Extra"),
    "files": [str(file) for file in dist.files],
}))
"""


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that the build leaves nothing in the tree."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "arkv_sglang", copy / "arkv_sglang", ignore=ignored)
    return copy


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What a fresh environment knows about the package after `pip install` of its wheel."""
    work = tmp_path_factory.mktemp("wheel")
    uv = (sys.executable, "-m", "uv")
    run(*uv, "build", "--wheel", "--no-build-isolation", "--python", sys.executable,
        "--out-dir", work, source, cwd=work)  # fmt: skip
    (wheel,) = work.glob("*.whl")
    python = work / "venv" / "bin" / "python"
    run(*uv, "venv", "--python", sys.executable, work / "venv", cwd=work)
    run(*uv, "pip", "install", "--no-deps", "--python", python, wheel, cwd=work)
    return json.loads(run(python, "-c", INSTALLED_PROBE, cwd=work))


def test_sglang_finds_both_entry_points(installed: dict) -> None:
    assert installed["entry_points"] == {
        "sglang.srt.plugins:arkv": "arkv_sglang.engine.plugin:register",
        "sglang.srt.platforms:arkv_cpu": "arkv_sglang.engine.cpu_platform:activate",
    }


def test_licence_is_declared_and_shipped(installed: dict) -> None:
    assert installed["license"] == "Apache-2.0"
    assert "Apache License" in installed["license_text"]


def test_extras_are_offered(installed: dict) -> None:
    assert set(installed["extras"]) == {"sglang", "batch", "demo", "test", "dev"}


def test_every_module_of_the_tree_is_in_the_wheel(source: Path, installed: dict) -> None:
    modules = {str(path.relative_to(source)) for path in source.glob("arkv_sglang/**/*.py")}
    assert modules <= set(installed["files"])


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(line.count("==") == 1 and not set(line) & set(" /@;:") for line in pins)
    assert "sglang==0.5.23" in pins
