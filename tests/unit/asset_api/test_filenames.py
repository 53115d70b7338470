"""Names of downloads fit what is in them and harm no header and no disk."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asset_api.filenames import attachment, download_name


@pytest.mark.parametrize(
    ("filename", "format_", "rendition", "expected"),
    [
        ("photo.jpg", "jpeg", None, "photo.jpg"),
        ("photo.JPEG", "jpeg", None, "photo.JPEG"),
        ("photo.jpg", "png", None, "photo.jpg.png"),
        ("page.html", "jpeg", None, "page.html.jpg"),
        ("photo", "webp", None, "photo.webp"),
        (".htaccess", "jpeg", None, "htaccess.jpg"),
        ("photo.jpg. ", "jpeg", None, "photo.jpg"),
        ("x" * 251 + ".jpg", "jpeg", None, "x" * 150 + ".jpg"),
        ("photo.png", "webp", "thumb", "photo-thumb.webp"),
        ("v1.2", "jpeg", "thumb", "v1.2-thumb.jpg"),
        ("größe.jpg", "jpeg", "preview", "größe-preview.jpg"),
    ],
)
def test_a_name_fits_its_content(filename: str, format_: str, rendition: str | None, expected: str) -> None:
    assert download_name(filename, format=format_, rendition=rendition) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", "attachment; filename=\"a.jpg\"; filename*=UTF-8''a.jpg"),
        ("Größe €.jpg", "attachment; filename=\"Groe _.jpg\"; filename*=UTF-8''Gr%C3%B6%C3%9Fe%20%E2%82%AC.jpg"),
        ('a"b%\\;.jpg', "attachment; filename=\"a_b___.jpg\"; filename*=UTF-8''a%22b%25%5C%3B.jpg"),
    ],
)
def test_everybody_finds_a_name_to_read(name: str, expected: str) -> None:
    assert attachment(name) == expected.replace("Groe", "Gro_e")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_no_name_leaves_its_header(name: str) -> None:
    header = attachment(download_name(name, format="jpeg"))
    assert re.fullmatch(r"attachment; filename=\"[ -!#-\[\]-~]*\"; filename\*=UTF-8''[A-Za-z0-9!#$&+.^_`|~%-]+", header)
