import os
import subprocess
import sys
from pathlib import Path

import pytest

from arkv_sglang.batch.compile_cache import VARIABLES, CompileCache
from arkv_sglang.batch.types import BatchError

HOLDER = """
import sys
from arkv_sglang.batch.compile_cache import CompileCache
cache = CompileCache(sys.argv[1])
print(cache.folder, flush=True)
sys.stdin.read()
"""


def hold(root: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_engines_share_no_folder_and_a_new_start_finds_the_one_of_the_engine_that_died(
    tmp_path: Path,
) -> None:
    first, folder = hold(tmp_path)
    second, other = hold(tmp_path)
    try:
        assert (folder, other) == (tmp_path / "0", tmp_path / "1")
        (folder / "kernel").touch()
        first.kill()
        first.wait()
        cache = CompileCache(str(tmp_path))
        assert cache.folder == folder and (cache.folder / "kernel").exists()
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def test_the_environment_of_the_user_wins(tmp_path: Path) -> None:
    variables = CompileCache(str(tmp_path)).variables({"TRITON_CACHE_DIR": "/mine"})
    assert variables.keys() == VARIABLES.keys() - {"TRITON_CACHE_DIR"}
    assert all(value.startswith(f"{tmp_path}/0{os.sep}") for value in variables.values())


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BatchError, match=r"^engines.cache_dir must be a folder .*/file/cache") as e:
        CompileCache(str(tmp_path / "file" / "cache"))
    assert "\n" not in str(e.value)
