"""The place for a user's own classifier: one function that is given a finished picture and returns labels."""

import importlib
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import cast

from processor.imaging.labels import NAMES

MAX_LABELS = 64
MAX_CHARACTERS = 1_000

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a classifier sees: the largest rendition as a file, never the original, and the labels so far."""

    asset_id: str
    content_type: str
    width: int
    height: int
    data: bytes
    labels: Mapping[str, str]


Classify = Callable[[Picture], Mapping[str, str]]


class OnFailure(StrEnum):
    """What becomes of the picture when the classifier raises, takes too long or returns no labels."""

    SKIP = "skip"
    """It becomes READY without the classifier's labels."""
    RETRY = "retry"
    """It costs an attempt; after the last one the asset is FAILED with retries_exhausted."""


class ClassifierFailed(Exception):
    """The classifier gave no labels. The message says why."""


def load(path: str) -> Classify:
    """The function that `path` names as `module:function`. Raises ValueError."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"DARKROOM_CLASSIFIER: {path!r} names no function as module:function ({error})") from error
    return cast("Classify", function)


class Classifier:
    """Calls the function with a deadline. Thread-safe.

    The function runs in this process, with its environment and network, in a thread of its own. A thread cannot be
    ended: a call that outlives its deadline goes on, and while `limit` calls do, further ones fail at once.
    """

    def __init__(self, function: Classify, *, seconds: float, on_failure: OnFailure, limit: int) -> None:
        self._function = function
        self._seconds = seconds
        self._running = threading.BoundedSemaphore(limit)
        self.on_failure = on_failure

    def labels(self, picture: Picture) -> dict[str, str]:
        """The function's labels, checked. Raises ClassifierFailed."""
        if not self._running.acquire(blocking=False):
            raise ClassifierFailed("earlier calls of the classifier have not come back")
        answers: SimpleQueue[Mapping[str, str] | Exception] = SimpleQueue()
        threading.Thread(target=self._call, args=(picture, answers), name="classifier", daemon=True).start()
        try:
            answer = answers.get(timeout=self._seconds)
        except Empty:
            raise ClassifierFailed(f"the classifier took more than {self._seconds:g} s") from None
        if isinstance(answer, Exception):
            raise ClassifierFailed(f"{type(answer).__name__}: {answer}") from answer
        return _checked(answer)

    def _call(self, picture: Picture, answers: "SimpleQueue[Mapping[str, str] | Exception]") -> None:
        try:
            answer: Mapping[str, str] | Exception = self._function(picture)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is told to the one who waits
            answer = error
        # Before the answer is seen: whoever got it may call again at once.
        self._running.release()
        answers.put(answer)


def _checked(labels: object) -> dict[str, str]:
    if not isinstance(labels, Mapping):
        raise ClassifierFailed(f"the classifier returned {type(labels).__name__}, not a mapping of names to texts")
    if len(labels) > MAX_LABELS:
        raise ClassifierFailed(f"{len(labels)} labels; at most {MAX_LABELS} are kept with an asset")
    for name, value in labels.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in NAMES:
            raise ClassifierFailed(f"label {name!r}: lower-case letters, digits and _, and none of {', '.join(NAMES)}")
        if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
            raise ClassifierFailed(f"label {name!r}: its value must be a text of at most {MAX_CHARACTERS} characters")
    return dict(labels)
