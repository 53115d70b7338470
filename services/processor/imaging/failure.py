"""Why a picture gets no renditions."""

from darkroom.contracts.failures import FailureCode

__all__ = ["Cancelled", "DecoderUnavailable", "FailureCode", "Rejected"]


class Rejected(Exception):
    """The picture itself is at fault: record FAILED, retrying cannot help."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Cancelled(Exception):
    """The caller withdrew the work while it ran; nothing is known about the picture."""


class DecoderUnavailable(Exception):
    """No child process could do the work: the pool is closed, or children do not start. Another attempt may succeed."""
