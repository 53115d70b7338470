"""The process in which pictures are decoded. `DecoderPool` starts it; it limits itself before it reads any input.

It imports Pillow and `processor.imaging`, holds no secret, and serves one job after the other until its input ends.
Once all code is loaded it gives up every right to open a file or a socket: two pipes are all that it has.
"""

import codecs
import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from io import BufferedReader, BytesIO
from pathlib import Path

from PIL import Image, ImageChops, ImageCms, ImageColor, ImageFilter, ImagePalette, TiffImagePlugin

from processor.imaging import formats, wire
from processor.imaging.failure import Rejected
from processor.imaging.render import render
from processor.imaging.rendition import Limits, OutputFormat, RenditionSpec

# From <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

# From <linux/capability.h>: the version whose sets have two words each.
_CAPABILITY_VERSION_3 = 0x20080522

_MAX_OPEN_FILES = 32

# What Pillow would import, or Python look up, at the first picture that needs it: too late in a process that may no
# longer open a file.
_NEEDED_LATER = (ImageChops, ImageCms, ImageColor, ImageFilter, ImagePalette, TiffImagePlugin)
_NEEDED_CODECS = ("ascii", "latin-1", "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32")


def main(arguments: list[str]) -> int:
    """Serve jobs. `arguments`: parent's process id, bytes of address space, CPU seconds a job."""
    parent, memory_bytes, cpu_seconds = map(int, arguments)
    jobs, replies = _take_over_pipes()
    _bind_to(parent)
    _limit(memory_bytes)
    _warm_up()
    shut_in()
    _write(replies, wire.ready())
    while len(prefix := jobs.read(wire.PREFIX.size)) == wire.PREFIX.size:
        head_length, data_length = wire.PREFIX.unpack(prefix)
        # Each in one piece of memory: a buffered reader fills it in place.
        head, data = jobs.read(head_length), jobs.read(data_length)
        if len(head) + len(data) < head_length + data_length:
            return 0
        _limit_cpu(cpu_seconds)
        if not _serve(head, data, replies):
            return 1
    return 0


def _serve(head: bytes, data: bytes, replies: int) -> bool:
    """Answer one job; False when the process should not take another."""
    specs, limits = wire.read_job(json.loads(head))
    try:
        _write(replies, wire.rendered(render(data, specs, limits)))
    except Rejected as reason:
        _write(replies, wire.rejected(reason))
    except Exception as error:  # noqa: BLE001 - the parent hears why; it counts as a crash
        _write(replies, wire.crashed(error))
        return False
    return True


def _take_over_pipes() -> tuple[BufferedReader, int]:
    """Keep the pipes for jobs and replies; what a library prints must not end up between replies."""
    jobs, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return jobs, replies


def _bind_to(parent: int) -> None:
    """Die with the parent, also in the middle of a picture. Elsewhere than on Linux the end of the pipe must do."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_PDEATHSIG, signal.SIGKILL), (_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")
    if os.getppid() != parent:
        # It died before the signal was asked for.
        sys.exit(0)


def _limit(memory_bytes: int) -> None:
    if sys.platform == "linux":
        # When the machine runs out of memory, it shall take this process and not the service. Best effort: some
        # containers mount /proc read-only.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        _, hard = resource.getrlimit(limit)
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lowered, lowered))


def shut_in() -> None:
    """Give up opening anything for good: no file, no socket, no pipe, also by code that a hostile picture smuggled in.

    A new descriptor of any kind must be below the limit on open files, so a limit of 0 leaves those that are open and
    allows no other. It is the one ban on the network that needs no privilege, no kernel option and no library.
    """
    if sys.platform == "linux":
        # Root could raise the limit again; without capabilities it is a user like any other.
        _drop_capabilities()
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _drop_capabilities() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset was refused")


def _warm_up() -> None:
    """Render once: the first picture finds all code loaded, and a child that cannot work is noticed at its start."""
    for name in _NEEDED_CODECS:
        codecs.lookup(name)
    formats.load_optional()
    file = BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG")
    for output in OutputFormat:
        render(file.getvalue(), [RenditionSpec(name="warm", box=(16, 16), format=output)], Limits())


def _limit_cpu(seconds: int) -> None:
    """Let the kernel end this process after so many more seconds of CPU. The limit counts from the process's start."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, hard))


def _write(descriptor: int, pieces: list[bytes]) -> None:
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
