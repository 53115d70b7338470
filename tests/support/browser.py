"""Where the browser tests get Chromium, axe-core and other npm packages from. What is not there skips its tests."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM_VARIABLE = "DARKROOM_CHROMIUM"
_CANDIDATES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_NPM_SECONDS = 120


def chromium() -> str | None:
    """Chromium's path: DARKROOM_CHROMIUM, or one on PATH. None: let Playwright take its own.

    Skips the test when there is none at all.
    """
    from playwright.sync_api import sync_playwright

    if given := os.environ.get(CHROMIUM_VARIABLE):
        return given
    if found := next(filter(None, map(shutil.which, _CANDIDATES)), None):
        return found
    with sync_playwright() as playwright:
        if Path(playwright.chromium.executable_path).exists():
            return None
    pytest.skip(
        f"no Chromium: install Debian's package chromium, run `playwright install chromium`, or set {CHROMIUM_VARIABLE}"
    )


def npm_packages(*wanted: str) -> Path:
    """The node_modules with these packages (name@version), kept in the user's cache folder.

    Skips the test where npm is not there or cannot fetch them.
    """
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on PATH")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "darkroom" / ("npm-" + hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12])
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", *wanted]
        try:
            got = subprocess.run(command, capture_output=True, text=True, timeout=_NPM_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not fetch {', '.join(wanted)} within {_NPM_SECONDS} s")
        if got.returncode != 0:
            pytest.skip(f"npm cannot fetch {', '.join(wanted)}: {got.stderr.strip()[-300:]}")
        (folder / "complete").touch()
    return folder / "node_modules"
