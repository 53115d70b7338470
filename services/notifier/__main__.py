"""``python -m notifier``."""

from darkroom.runtime.start import start
from notifier.app import main

if __name__ == "__main__":
    start(main)
