"""What is said of a picture."""

from base64 import b64decode, b64encode
from io import BytesIO

import pytest
from PIL import Image

from processor.imaging.labels import NAMES, describe
from processor.imaging.render import render
from processor.imaging.rendition import Fit, Limits, RenditionSpec, default_specs
from processor.imaging.thumbhash import thumbhash
from support import pictures


def labels(data: bytes, *specs: RenditionSpec) -> dict[str, str]:
    return dict(render(data, specs or default_specs(), Limits()).labels)


def bits_apart(one: str, other: str) -> int:
    return (int(one, 16) ^ int(other, 16)).bit_count()


def patterned(width: int, height: int, clear: bool) -> Image.Image:
    """Pixels by a formula, so that the reference implementation can be given the same."""
    values = (
        ((x * 7 + y * 3) % 256, (x * x + y * 5) % 256, (x * y) % 256, (x + y) * 9 % 256 if clear else 255)
        for y in range(height)
        for x in range(width)
    )
    return Image.frombytes("RGBA", (width, height), bytes(level for value in values for level in value))


@pytest.mark.parametrize(
    ("width", "height", "clear", "reference"),
    [
        # What the format's own JavaScript (npm: thumbhash 0.1.1) gives for these pixels.
        (32, 20, False, "HBkOJIxQdYhkiHiGeIekbw15eA=="),
        (20, 32, False, "2/gJHAhAFnZqiIZ3eHfJaQ9tiw=="),
        (32, 32, False, "3RgKFwogRoczaZmFiGiIaHiHh/fiQGkG"),
        (32, 1, False, "ERsiyYp1h4iIiAiKdYgAjic="),
        (1, 32, False, "yskVeRAIhHuIh4eHCIR3v4g="),
        (3, 32, True, "zsmFCQInhZCouWeNUEr3WHd4YIeAyCc="),
        (1, 1, False, "AAgCBwAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    ],
)
def test_thumbhash_is_the_formats_own(width: int, height: int, clear: bool, reference: str) -> None:
    assert b64encode(thumbhash(patterned(width, height, clear))).decode() == reference


def test_thumbhash_tells_the_average_color_of_a_large_picture() -> None:
    head = int.from_bytes(thumbhash(Image.new("RGBA", (900, 500), (255, 128, 0, 255)))[:3], "little")
    lightness, yellow_blue, red_green = (head & 63) / 63, (head >> 6 & 63) / 31.5 - 1, (head >> 12 & 63) / 31.5 - 1
    blue = lightness - 2 / 3 * yellow_blue
    red = (3 * lightness - blue + red_green) / 2
    assert (round(red, 1), round(red - red_green, 1), round(blue, 1)) == (1.0, 0.5, 0.0)


def test_every_ready_picture_has_every_label_and_all_are_text() -> None:
    for name, data in pictures.all_formats().items():
        found = labels(data)
        assert tuple(found) == NAMES, name
        assert all(isinstance(value, str) for value in found.values())


def test_dominant_colors_are_those_that_are_seen_most() -> None:
    image = Image.new("RGB", (400, 300), pictures.BLUE)
    image.paste(pictures.RED, (0, 0, 400, 90))
    assert labels(pictures.encoded(image, "PNG"))["dominant_colors"].split()[:2] == ["#283cd2", "#dc1e1e"]


def test_colors_under_transparency_do_not_count() -> None:
    image = Image.new("RGBA", (100, 100), (0, 255, 0, 0))
    image.paste((*pictures.RED, 255), (40, 40, 80, 80))
    found = labels(pictures.encoded(image, "PNG"))
    assert (found["dominant_colors"], found["has_alpha"]) == ("#dc1e1e", "true")
    nothing = labels(pictures.encoded(Image.new("RGBA", (10, 10)), "PNG"))
    assert nothing["dominant_colors"] == ""


def test_the_perceptual_hash_stays_near_when_a_picture_is_compressed_or_scaled_and_not_for_another() -> None:
    photo = Image.open(BytesIO(pictures.photo_jpeg(900, 600)))
    first = labels(pictures.encoded(photo, "PNG"))["perceptual_hash"]
    assert len(first) == 16
    for other in (pictures.encoded(photo, "JPEG", quality=30), pictures.encoded(photo.resize((300, 200)), "WEBP")):
        assert bits_apart(first, labels(other)["perceptual_hash"]) <= 6
    for different in (photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT), pictures.drawing()):
        assert bits_apart(first, labels(pictures.encoded(different, "PNG"))["perceptual_hash"]) > 12


def test_an_alpha_channel_that_is_opaque_everywhere_is_no_transparency() -> None:
    assert labels(pictures.encoded(pictures.quarters(mode="RGBA"), "PNG"))["has_alpha"] == "false"


@pytest.mark.parametrize(
    ("size", "exif", "expected"),
    [
        ((80, 40), 1, "landscape"),
        ((80, 40), 6, "portrait"),
        ((40, 80), 1, "portrait"),
        ((80, 80), 1, "square"),
        ((100, 96), 1, "square"),
        ((100, 95), 1, "landscape"),
    ],
)
def test_orientation_is_that_of_the_upright_picture(size: tuple[int, int], exif: int, expected: str) -> None:
    assert labels(pictures.jpeg(*size, exif=pictures.oriented_exif(exif)))["orientation"] == expected


def test_photos_and_graphics_are_told_apart() -> None:
    assert labels(pictures.photo_jpeg(1200, 800))["kind"] == "photo"
    for form in ("PNG", "JPEG", "WEBP"):
        assert labels(pictures.encoded(pictures.drawing(), form))["kind"] == "graphic"


def test_labels_do_not_depend_on_the_renditions() -> None:
    data = pictures.photo_jpeg(1600, 900)
    usual = labels(data)
    for other in (
        labels(data, RenditionSpec(name="square", box=(64, 64), fit=Fit.COVER)),
        labels(data, RenditionSpec(name="large", box=(1600, 1600))),
    ):
        assert bits_apart(usual["perceptual_hash"], other["perceptual_hash"]) <= 3
        assert (usual["kind"], usual["orientation"]) == (other["kind"], other["orientation"])
        assert len(b64decode(other["thumbhash"])) > 15


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_every_mode_that_comes_of_decoding(mode: str) -> None:
    assert describe(pictures.quarters(mode=mode), size=(64, 40), frames=1)["has_alpha"] == "false"
