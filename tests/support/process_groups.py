"""Look at the processes of this machine, to see that none was left behind."""

import os
from pathlib import Path


def alive_in_group(group: int) -> list[int]:
    """The ids of the processes in a process group, without zombies (where there is no /proc: the leader's, if any)."""
    if not Path("/proc/self/stat").exists():
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return []
        return [group]
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "pid (command) state parent group …"; the command may hold blanks and brackets
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if int(its_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found
