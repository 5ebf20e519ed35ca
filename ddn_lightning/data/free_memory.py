"""How much memory a process may take: what the machine has left, or its container or job allows."""

import os
from pathlib import Path

MEMORY = Path("/proc/meminfo")
GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes of memory that this process may take, ``None`` if the system does not tell."""
    return min([*_of_machine(), *_of_group()], default=None)


def _of_machine() -> list[int]:
    try:
        rows = dict(line.split(":") for line in MEMORY.read_text().splitlines())
        return [int(rows["MemAvailable"].removesuffix("kB")) * 1024]
    except (OSError, ValueError, KeyError):  # not on Linux
        names = getattr(os, "sysconf_names", {})
        return [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if "SC_PHYS_PAGES" in names else []


def _of_group() -> list[int]:
    """The limits of the control groups that this process is in, as containers and Slurm set them."""
    try:
        own = GROUP.read_text().splitlines()[-1].removeprefix("0::/")
    except (OSError, IndexError):
        return []
    limits = []
    for folder in (GROUPS / own, *(GROUPS / own).parents):
        try:
            limits.append(int((folder / "memory.max").read_text()))
        except (OSError, ValueError):  # none is "max"
            continue
    return limits
