"""HEIC, where the extra `heic` is installed and where it is not."""

import subprocess
import sys
from io import BytesIO

import pytest
from PIL import Image

from processor.imaging.failure import FailureCode, Rejected
from processor.imaging.render import render
from processor.imaging.rendition import Limits, RenditionSpec, SourceFormat, default_specs
from support import pictures

WHOLE = (RenditionSpec(name="whole", box=(4096, 4096), quality=95),)


def corners(data: bytes) -> list[object]:
    image = Image.open(BytesIO(data)).convert("RGB")
    return [
        image.getpixel((int(image.width * x), int(image.height * y)))
        for x, y in ((0.2, 0.2), (0.8, 0.2), (0.2, 0.8), (0.8, 0.8))
    ]


def assert_upright(data: bytes) -> None:
    for actual, expected in zip(corners(data), pictures.CORNERS, strict=True):
        assert isinstance(actual, tuple)
        assert all(abs(one - other) < 20 for one, other in zip(actual, expected, strict=True)), corners(data)


def test_a_phones_picture_becomes_renditions() -> None:
    result = render(pictures.heic(pictures.quarters(800, 400)), default_specs(), Limits())
    assert (result.format, result.width, result.height) == (SourceFormat.HEIC, 800, 400)
    assert [(one.content_type, one.width, one.height) for one in result.renditions] == [
        ("image/jpeg", 256, 128),
        ("image/jpeg", 800, 400),
    ]
    assert_upright(result.renditions[1].data)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_it_is_turned_once_whatever_its_exif_says(orientation: int) -> None:
    # The library writes EXIF's orientation as irot.
    stored = pictures.stored_for(pictures.quarters(160, 80), orientation)
    data = pictures.heic(stored, exif=pictures.oriented_exif(orientation))
    result = render(data, WHOLE, Limits())
    assert (b"irot" in data) is (orientation != 1)
    assert (result.width, result.height) == (160, 80)
    assert_upright(result.renditions[0].data)


def test_transparency_is_flattened_and_metadata_left_behind() -> None:
    clear = Image.new("RGBA", (80, 60), (0, 0, 0, 0))
    data = pictures.heic(clear, exif=pictures.oriented_exif(1, gps=True))
    (made,) = render(data, WHOLE, Limits()).renditions
    assert b"SecretCameraMaker" not in made.data
    assert min(Image.open(BytesIO(made.data)).convert("L").tobytes()) > 250


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_truncated(share: float) -> None:
    whole = pictures.heic(pictures.quarters(300, 200))
    with pytest.raises(Rejected) as caught:
        render(whole[: int(len(whole) * share)], WHOLE, Limits())
    assert caught.value.code is FailureCode.CORRUPT_OR_TRUNCATED


def test_pixels_are_counted_before_decoding() -> None:
    with pytest.raises(Rejected) as caught:
        render(pictures.heic(pictures.quarters(300, 200)), WHOLE, Limits(max_pixels=59_999))
    assert caught.value.code is FailureCode.TOO_MANY_PIXELS


WITHOUT = """
import sys
sys.modules["pillow_heif"] = None  # as if it were not installed
from processor.imaging.failure import Rejected
from processor.imaging.render import render
from processor.imaging.rendition import Limits, default_specs
try:
    render(sys.stdin.buffer.read(), default_specs(), Limits())
except Rejected as reason:
    print(reason)
"""


def test_without_the_extra_it_is_an_unsupported_format_that_says_what_to_install() -> None:
    data = pictures.heic(pictures.quarters())
    shown = subprocess.run([sys.executable, "-c", WITHOUT], input=data, capture_output=True, check=True, timeout=60)
    assert shown.stdout.decode().startswith("unsupported_format: HEIC")
    assert b"darkroom[heic]" in shown.stdout
