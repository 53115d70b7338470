"""``python -m asset_api``."""

from asset_api.server import main

if __name__ == "__main__":
    main()
