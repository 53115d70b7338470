"""``python -m outbox_relay``."""

from outbox_relay.app import main

if __name__ == "__main__":
    main()
