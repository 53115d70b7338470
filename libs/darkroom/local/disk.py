"""Whether the disk has room for what is about to be started, and who holds a data folder."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from darkroom.local.errors import DataFolderInUseError, FolderUnusableError, NoDiskSpaceError


def require_space(folder: Path, needed: int, *, purpose: str) -> None:
    """Raise NoDiskSpaceError when the disk that `folder` is on has fewer than `needed` bytes free."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise NoDiskSpaceError(
            f"{purpose} needs {needed / 1e6:,.0f} MB free at {folder}, but only {free / 1e6:,.0f} MB are. "
            f"Free some space or use a folder on another disk."
        )


def make_folder(folder: Path, *, purpose: str, instead: str) -> None:
    """Make the folder unless it is there, and see that it can be written to; otherwise raise FolderUnusableError.

    ``instead`` says how another one is named.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FolderUnusableError(
            f"{folder} cannot be used for {purpose}: {error.strerror}. Name another folder: {instead}."
        ) from error


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[int]:
    """Hold the data folder: yields the locked file descriptor.

    Whoever inherits the descriptor holds the lock too, until the last one closes it. Raises DataFolderInUseError when
    it is held elsewhere, FolderUnusableError when it is no folder that can be written to.
    """
    make_folder(folder, purpose="data", instead="--data FOLDER")
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataFolderInUseError(
                f"{folder} is in use by another process that runs servers on it, or one that is just ending them. "
                f"Wait for it, or use another data folder."
            ) from error
        yield descriptor
    finally:
        os.close(descriptor)
