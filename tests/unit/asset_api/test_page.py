"""The page is whole: whatever it names is served, and a browser need not ask for more."""

import re

from asset_api.page import FILES, FOLDER


def test_every_file_that_the_page_names_is_served() -> None:
    page = (FOLDER / "index.html").read_text()
    named = set(re.findall(r'(?:href|src)="/pages/([^"]+)"', page))
    assert named == set(FILES) == {path.name for path in FOLDER.iterdir()} - {"index.html"}


def test_the_page_names_its_icon() -> None:
    # Without it every browser asks for /favicon.ico, which is logged as not found.
    assert '<link rel="icon"' in (FOLDER / "index.html").read_text()
