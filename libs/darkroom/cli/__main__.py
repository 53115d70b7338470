"""``python -m darkroom.cli``."""

from darkroom.cli.main import main

if __name__ == "__main__":
    main()
