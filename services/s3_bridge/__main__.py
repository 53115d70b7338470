"""``python -m s3_bridge`` runs the long-polling container."""

from darkroom.runtime.start import start
from s3_bridge.app import main

if __name__ == "__main__":
    start(main)
