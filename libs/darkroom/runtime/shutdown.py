"""An orderly end: SIGTERM and SIGINT set an event that every loop watches."""

import signal
import threading
from types import FrameType


def stop_on_signals() -> threading.Event:
    """An event that the first SIGTERM or SIGINT sets. A second one ends the process at once.

    Must be called from the main thread.
    """
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop
