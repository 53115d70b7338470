"""``python -m darkroom.life``: one sweep."""

from darkroom.life.app import sweep
from darkroom.runtime.start import start


def main() -> None:
    """Sweep once; what was done is logged."""
    sweep()


if __name__ == "__main__":
    start(main)
