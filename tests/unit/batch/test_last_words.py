import subprocess
import sys
from pathlib import Path

from arkv_sglang.batch.last_words import last_exception

SCRIPT = """
import subprocess, sys, traceback
from arkv_sglang.batch.last_words import LastWords

def fail(message):
    try:
        raise RuntimeError(message)
    except RuntimeError:
        traceback.print_exc()

fail("long ago")
words = LastWords()
print(words.exception())
code = "raise ValueError('no room\\\\nfor the cache')"
subprocess.run([sys.executable, "-c", code])
print("after that", file=sys.stderr)
print(words.exception())
"""


def test_what_a_child_wrote_is_read_back(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        command = [sys.executable, "-c", SCRIPT]
        said = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, check=True)
    assert said.stdout.decode().splitlines() == ["None", "ValueError: no room"]


def test_a_terminal_or_a_pipe_cannot_be_read_back() -> None:
    command = [sys.executable, "-c", SCRIPT]
    said = subprocess.run(command, capture_output=True, check=True)
    assert said.stdout.decode().splitlines() == ["None", "None"]


def test_the_last_of_several_tracebacks_counts() -> None:
    log = (
        "[2026-11-30 18:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n'
        "    g()\n"
        "    ^^^\n"
        "KeyError: 'x'\n"
        "\n"
        "During handling of the above exception, another exception occurred:\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "b.py", line 2, in g\n'
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
        "\n"
        "[2026-11-30 18:00:00 TP0] done\n"
    )
    assert last_exception(log) == (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    )
    assert last_exception("KeyError: 'x'\n") is None
