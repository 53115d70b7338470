"""The watchdog: a process that ends process groups when the process that started it is gone, in whatever way.

It runs as a program of its own (`python -I reaper.py PARENT_PID`) and imports only the standard library. On standard
input it is told `+PGID` when a group starts and `-PGID` when it has ended. The kernel closes that pipe however the
parent dies, also by SIGKILL; then every group still known gets SIGTERM, and SIGKILL after a grace time.
"""

import os
import select
import signal
import sys
import time

GRACE_SECONDS = 10.0
_POLL_SECONDS = 1.0


def _signal_group(group: int, number: int) -> bool:
    """Whether the group still had a process to signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        return False
    return True


def _learn(line: bytes, groups: set[int]) -> None:
    group = int(line[1:])
    if line.startswith(b"+"):
        groups.add(group)
    else:
        groups.discard(group)


def _follow(parent: int, groups: set[int]) -> None:
    """Keep `groups` up to date until the parent has closed the pipe or died."""
    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
        # Read all there is before looking at the parent: it may have died while this process was still starting.
        if readable:
            received = os.read(0, 65536)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                _learn(line, groups)
        # A child that the parent forked without exec keeps the pipe open, so also look whose child this is.
        elif os.getppid() != parent:
            return


def end_groups(groups: set[int], *, grace: float = GRACE_SECONDS) -> None:
    """SIGTERM to every group, SIGKILL to what is left after `grace` seconds."""
    left = set(groups)
    for group in groups:
        _signal_group(group, signal.SIGTERM)
        _signal_group(group, signal.SIGCONT)  # a paused process handles SIGTERM only once it runs again
    deadline = time.monotonic() + grace
    while left and time.monotonic() < deadline:
        left = {group for group in left if _signal_group(group, 0)}
        time.sleep(0.05)
    for group in left:
        _signal_group(group, signal.SIGKILL)


def main() -> None:
    """Follow the parent, then end what it left behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    _follow(int(sys.argv[1]), groups)
    end_groups(groups)


if __name__ == "__main__":
    main()
