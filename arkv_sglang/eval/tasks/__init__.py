"""Every task by its name."""

from __future__ import annotations

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.sample import Task
from arkv_sglang.eval.tasks import (
    counting,
    gsm8k,
    longbench,
    needles,
    pairs,
    ruler,
    running_text,
    tracking,
)

_MODULES = (needles, tracking, counting, pairs, running_text, gsm8k, longbench, ruler)
TASKS: dict[str, Task] = {task.name: task for module in _MODULES for task in module.TASKS}
# What needs neither other packages nor options of their own.
OWN = tuple(
    name for name, task in TASKS.items() if task.needs is None and not name.startswith("ruler-")
)
GROUPS = {"own": OWN, "ruler": tuple(task.name for task in ruler.TASKS)}


def chosen_tasks(text: str, samples: int) -> dict[Task, int]:
    """How many samples of which tasks: ``"needle:50,summary"`` has 50 of one and ``samples`` of the
    other; a group's name stands for its tasks. Raises ConfigError."""
    found: dict[Task, int] = {}
    for item in text.split(","):
        name, _, number = item.strip().partition(":")
        for each in GROUPS.get(name, (name,)):
            if each not in TASKS:
                raise ConfigError(
                    f"--tasks must be of {', '.join(GROUPS)} and the tasks that --list shows, got "
                    f"{each!r}"
                )
            if number and not (number.isdecimal() and int(number) > 0):
                raise ConfigError(
                    f"--tasks must have a number from 1 on behind the colon, got {item!r}"
                )
            found[TASKS[each]] = int(number or samples)
    return found
