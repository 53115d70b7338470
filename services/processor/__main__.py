"""``python -m processor``."""

from darkroom.runtime.start import start
from processor.app import main

if __name__ == "__main__":
    start(main)
