"""Why a local server could not start, each naming the missing piece and the fix."""

from pathlib import Path


class LocalServerError(Exception):
    """A server on this machine could not be started or reached; the message says which, why and what to do."""


class PortTakenError(LocalServerError):
    """Another process listens on the port that was asked for."""


class DataFolderInUseError(LocalServerError):
    """Another process runs servers on the same data folder."""


class FolderUnusableError(LocalServerError):
    """A folder cannot be made or written to."""


class NoDiskSpaceError(LocalServerError):
    """The disk has less free space than the servers need to start."""


class PieceMissingError(LocalServerError):
    """A program or package that a server needs is not on this machine."""


class JarHashMismatchError(LocalServerError):
    """A jar of Kafka has not the bytes that the committed list names."""


class DownloadFailedError(LocalServerError):
    """A jar of Kafka could not be fetched."""


class ServerDiedError(LocalServerError):
    """A process ended before it was ready. `log_tail` holds the last lines it wrote."""

    def __init__(self, message: str, *, log_tail: str, log_path: Path) -> None:
        super().__init__(message)
        self.log_tail = log_tail
        self.log_path = log_path


class ServerNotReadyError(LocalServerError):
    """A process runs but did not become ready before its deadline."""


class ServerUnreachableError(LocalServerError):
    """The server named by an explicit address does not answer."""


class AnotherStackError(LocalServerError):
    """The environment is that of a stack of this machine, whose servers and deployment would be taken over."""


class NotAReplicaSetError(LocalServerError):
    """The MongoDB named by an explicit address is a standalone server."""
