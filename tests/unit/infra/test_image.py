"""The image file, without building it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
PATH = ROOT / "infra/Dockerfile"
TEXT = PATH.read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HADOLINT = Path(sys.executable).with_name("hadolint")


def lint(text: str) -> str:
    command = [HADOLINT, "--no-color", "--failure-threshold", "style", "-"]
    found = subprocess.run(command, input=text, capture_output=True, text=True)
    assert not found.stderr
    assert (found.returncode == 0) == (found.stdout == "")
    return found.stdout


def test_the_linter_has_nothing_to_say() -> None:
    assert lint(TEXT) == ""
    assert "DL3007" in lint(TEXT.replace(":v0.5.23", ":latest"))


def test_it_is_sglangs_image_of_the_version_that_the_plugin_accepts() -> None:
    (pin,) = PROJECT["optional-dependencies"]["sglang"]
    version = pin.removeprefix("sglang==")
    assert re.findall(r"^FROM (.+)$", TEXT, re.M) == [f"lmsysorg/sglang:v{version}"]
    assert f'assert v("sglang") == "{version}"' in TEXT


def test_it_installs_the_pinned_versions_from_wherever_the_builder_is_told_to() -> None:
    (install,) = re.findall(r"pip install(?:[^\n]*\\\n)*[^\n]*\.\[batch\]'", TEXT)
    assert "--constraint constraints.txt" in install and "index" not in install
    copied = " ".join(re.findall(r"^COPY (.+) \S+$", TEXT, re.M)).split()
    assert {"pyproject.toml", "constraints.txt", "arkv_sglang/", "jobs/"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_it_runs_as_the_user_of_the_manifests() -> None:
    assert re.findall(r"^USER (.+)$", TEXT, re.M) == ["1000"]
    assert re.search(r"useradd .*--uid 1000 ", TEXT)
    assert f"-t arkv-sglang:{PROJECT['version']} " in TEXT
