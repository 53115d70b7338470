"""Every file of the shared corpus gets the outcome that its manifest states. Skipped where there is no corpus."""

import csv
import os
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from processor.imaging.failure import FailureCode, Rejected
from processor.imaging.pool import DecoderPool
from processor.imaging.rendition import Limits, Rendered, default_specs

UNDECODABLE = {FailureCode.CORRUPT_OR_TRUNCATED, FailureCode.UNSUPPORTED_FORMAT}
NAMES = {
    **{code.value: {code} for code in FailureCode},
    "undecodable": UNDECODABLE,
    "timeout": {FailureCode.DECODE_TIMEOUT},
}


def corpus() -> Path | None:
    named = os.environ.get("DARKROOM_CORPUS")
    if named is not None:
        return Path(named)
    root = Path(__file__).parents[3]
    beside = (parent / "shared" / "corpus" for parent in root.parents)
    return next((folder for folder in beside if (folder / "images" / "MANIFEST.tsv").is_file()), None)


def cases() -> list[tuple[str, str]]:
    folder = corpus()
    if folder is None:
        return []
    with (folder / "images" / "MANIFEST.tsv").open() as table:
        return [(row["file"], row["expected"]) for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE)]


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(size=1) as made:
        yield made


def outcome(pool: DecoderPool, name: str) -> Rendered | FailureCode:
    folder = corpus()
    assert folder is not None
    try:
        return pool.render((folder / "images" / name).read_bytes(), default_specs(), Limits())
    except Rejected as reason:
        return reason.code


def is_right(got: Rendered | FailureCode, expected: str) -> bool:
    if isinstance(got, FailureCode):
        words = re.findall(r"FAILED ([a-z_]+)", expected)
        return any(got in NAMES.get(word, set()) for word in words)
    sizes = re.findall(r"READY (\d+)x(\d+)", expected)
    return (str(got.width), str(got.height)) in sizes


@pytest.mark.skipif(not cases(), reason="no corpus beside the project and DARKROOM_CORPUS is not set")
@pytest.mark.parametrize(("name", "expected"), cases())
def test_outcome(pool: DecoderPool, name: str, expected: str) -> None:
    got = outcome(pool, name)
    assert is_right(got, expected), f"{got} instead of {expected}"
    if isinstance(got, Rendered):
        for rendition in got.renditions:
            image = Image.open(BytesIO(rendition.data))
            image.load()
            assert image.mode in ("L", "RGB")
            assert not {"exif", "xmp", "comment", "icc_profile"} & image.info.keys()
            assert b"script" not in rendition.data


PIXELS = {
    # file: place in the thumb as parts of width and height, colour, tolerance
    "own_exif_orientation_6_nonsquare.jpg": [((0.02, 0.02), (8, 247, 130), 12), ((0.98, 0.02), (2, 7, 125), 12)],
    "own_display_p3_patch.jpg": [((0.5, 0.5), (215, 93, 31), 4)],
    "own_rgba_transparent_black.png": [((0.02, 0.02), (255, 255, 255), 2)],
    "own_palette_transparent.png": [((0.02, 0.02), (255, 255, 255), 2)],
}
MEANS = {"pil_sample_cmyk.jpg": (30, 5, 7), "vips_sample_a98.jpg": (127, 118, 109)}


def thumb(pool: DecoderPool, name: str) -> Image.Image:
    got = outcome(pool, name)
    assert isinstance(got, Rendered)
    return Image.open(BytesIO(got.renditions[0].data)).convert("RGB")


@pytest.mark.skipif(not cases(), reason="no corpus beside the project and DARKROOM_CORPUS is not set")
@pytest.mark.parametrize("name", PIXELS)
def test_pixels(pool: DecoderPool, name: str) -> None:
    image = thumb(pool, name)
    for (x, y), colour, tolerance in PIXELS[name]:
        pixel = image.getpixel((int(image.width * x), int(image.height * y)))
        assert isinstance(pixel, tuple)
        assert all(abs(one - other) <= tolerance for one, other in zip(pixel, colour, strict=True)), pixel


@pytest.mark.skipif(not cases(), reason="no corpus beside the project and DARKROOM_CORPUS is not set")
@pytest.mark.parametrize("name", MEANS)
def test_mean_colours(pool: DecoderPool, name: str) -> None:
    mean = thumb(pool, name).resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    assert isinstance(mean, tuple)
    assert all(abs(one - other) <= 6 for one, other in zip(mean, MEANS[name], strict=True)), mean


@pytest.mark.skipif(not cases(), reason="no corpus beside the project and DARKROOM_CORPUS is not set")
def test_grey_levels_and_the_turned_portrait(pool: DecoderPool) -> None:
    assert len(set(thumb(pool, "own_gray16_ramp.png").convert("L").tobytes())) > 200
    assert len(set(thumb(pool, "rs_basi0g16.png").convert("L").tobytes())) > 30
