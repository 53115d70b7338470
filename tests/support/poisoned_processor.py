"""``python poisoned_processor.py ASSET_ID``: the processor, which dies as soon as it decodes that one asset."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from processor import app
from processor.rendering import Rendering

Fetch = Callable[..., Any]


def poison(asset_id: str) -> None:
    """From now on fetching the asset's original ends this process, as the kernel does when memory runs out."""
    fetch: Fetch = Rendering._fetch

    def deadly(self: Rendering, asset: Any, *others: Any) -> Any:
        if asset.id == asset_id:
            os.kill(os.getpid(), signal.SIGKILL)
        return fetch(self, asset, *others)

    Rendering._fetch = deadly  # type: ignore[method-assign, assignment]  # a crash at a named point


if __name__ == "__main__":
    poison(sys.argv[1])
    app.main()
