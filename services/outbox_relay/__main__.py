"""``python -m outbox_relay``."""

from darkroom.runtime.start import start
from outbox_relay.app import main

if __name__ == "__main__":
    start(main)
