"""``python poisoned_processor.py ASSET_ID``: the processor, which dies as soon as it decodes that one asset."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from processor import app
from processor.process import Processor

Fetch = Callable[..., Any]


def poison(asset_id: str) -> None:
    """From now on fetching the asset's original ends this process, as the kernel does when memory runs out."""
    fetch: Fetch = Processor._fetch

    def deadly(self: Processor, job: Any, asset: Any) -> Any:
        if asset.id == asset_id:
            os.kill(os.getpid(), signal.SIGKILL)
        return fetch(self, job, asset)

    Processor._fetch = deadly  # type: ignore[method-assign]  # a crash at a named point


if __name__ == "__main__":
    poison(sys.argv[1])
    app.main()
