"""``python -m processor``."""

from processor.app import main

if __name__ == "__main__":
    main()
