"""``python -m asset_api``."""

from asset_api.server import main
from darkroom.runtime.start import start

if __name__ == "__main__":
    start(main)
