"""A collection of pictures from bug reports, with the right outcome of each, through the real decoding processes.

The collection is not part of this repository: it lies in ../shared/corpus or where DARKROOM_CORPUS says. The tests that
make equal cases themselves are in tests/unit/imaging.
"""

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
from processor.imaging.rendition import Limits, OutputFormat, Rendered, RenditionSpec, default_specs

CORPUS = Path(os.environ.get("DARKROOM_CORPUS", Path(__file__).parents[4] / "shared" / "corpus")) / "images"
MANIFEST = CORPUS / "MANIFEST.tsv"
pytestmark = pytest.mark.skipif(not MANIFEST.exists(), reason=f"no collection of pictures at {CORPUS}")

# The table's words for what has a code of another name here.
CODES = {"undecodable": FailureCode.CORRUPT_OR_TRUNCATED, "timeout/too_complex": FailureCode.DECODE_TIMEOUT}
SPECS = (*default_specs(), RenditionSpec(name="webp", box=(256, 256), format=OutputFormat.WEBP))
SECRETS = (b"Exif", b"GPS", b"http://ns.adobe.com", b"<script", b"<html", b"ICC_PROFILE", b"NIKON", b"SecretCam")


def table() -> dict[str, str]:
    if not MANIFEST.exists():
        return {}
    with MANIFEST.open(encoding="utf-8", newline="") as file:
        return {row["file"]: row["expected"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


EXPECTED = table()


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(size=1) as made:
        yield made


def outcome(pool: DecoderPool, name: str) -> str:
    """Written as in the table: READY with the size, or FAILED with the code."""
    try:
        made = pool.render((CORPUS / name).read_bytes(), SPECS, Limits())
    except Rejected as reason:
        return f"FAILED {reason.code}"
    return f"READY {made.width}x{made.height}"


def allowed(expected: str) -> set[str]:
    """Every outcome that the table's sentence allows."""
    found = {f"READY {size}" for size in re.findall(r"READY (\d+x\d+)", expected)}
    for word in re.findall(r"FAILED ([a-z_/]+)", expected):
        found.add(f"FAILED {CODES.get(word) or FailureCode(word)}")
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_the_outcome_is_the_tables(pool: DecoderPool, name: str) -> None:
    right = allowed(EXPECTED[name])
    assert right
    # A refusal is the same on every retry.
    assert [outcome(pool, name) for _ in range(2)] in [[one, one] for one in right], EXPECTED[name]


def test_the_table_and_the_folder_name_the_same_files() -> None:
    assert set(EXPECTED) == {path.name for path in CORPUS.iterdir()} - {MANIFEST.name}


def rendered(pool: DecoderPool, name: str) -> Rendered:
    return pool.render((CORPUS / name).read_bytes(), SPECS, Limits())


def thumb(pool: DecoderPool, name: str) -> Image.Image:
    image = Image.open(BytesIO(rendered(pool, name).renditions[0].data))
    image.load()
    return image


def near(image: Image.Image, at: tuple[int, int], expected: tuple[int, int, int], tolerance: int = 12) -> bool:
    actual = image.convert("RGB").getpixel(at)
    assert isinstance(actual, tuple)
    return all(abs(one - other) <= tolerance for one, other in zip(actual, expected, strict=True))


def mean_is_near(image: Image.Image, expected: tuple[int, int, int], tolerance: int = 6) -> bool:
    return near(image.convert("RGB").resize((1, 1), Image.Resampling.BOX), (0, 0), expected, tolerance)


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected.startswith("READY")])
def test_nothing_but_pixels_is_in_a_rendition(pool: DecoderPool, name: str) -> None:
    for made in rendered(pool, name).renditions:
        assert not any(secret in made.data for secret in SECRETS)
        with Image.open(BytesIO(made.data)) as image:
            assert not image.getexif()
            assert "icc_profile" not in image.info
            assert image.size == (made.width, made.height)
            assert min(image.size) >= 1


def test_what_the_table_says_of_pixels(pool: DecoderPool) -> None:
    turned = thumb(pool, "own_exif_orientation_6_nonsquare.jpg")
    assert near(turned, (2, 2), (8, 247, 130), 25)
    assert near(turned, (turned.width - 3, 2), (2, 7, 125), 25)
    cmyk = thumb(pool, "pil_sample_cmyk.jpg")
    assert cmyk.mode == "RGB"
    assert mean_is_near(cmyk, (30, 5, 7))
    assert mean_is_near(thumb(pool, "vips_sample_a98.jpg"), (127, 118, 109))
    assert near(thumb(pool, "own_display_p3_patch.jpg"), (30, 20), (215, 93, 31))
    assert len(set(thumb(pool, "own_gray16_ramp.png").convert("L").tobytes())) > 200
    assert len(set(thumb(pool, "rs_basi0g16.png").convert("L").tobytes())) > 100
    for name in ("own_rgba_transparent_black.png", "own_palette_transparent.png"):
        assert near(thumb(pool, name), (1, 1), (255, 255, 255))
        assert near(thumb(pool, name), (32, 32), (255, 0, 0), 30)
    assert thumb(pool, "own_1x20000.jpg").size == (1, 256)
    assert thumb(pool, "own_20000x1.png").size == (256, 1)


def test_square_pictures_are_turned_too(pool: DecoderPool) -> None:
    # The same picture upright, in another format: only its pixels tell.
    upright, turned = (
        thumb(pool, name).convert("RGB").resize((8, 8), Image.Resampling.BOX).tobytes()
        for name in ("hopper.avif", "hopper_orientation_5.jpg")
    )
    assert max(abs(one - other) for one, other in zip(upright, turned, strict=True)) < 30


def test_animations_are_told_apart(pool: DecoderPool) -> None:
    animated = {name for name in EXPECTED if name in ("rs_anim.webp", "vips_cogs.gif")}
    for name in [*animated, "transparent.webp", "frozenpond.mpo"]:
        assert rendered(pool, name).labels["animated"] == ("true" if name in animated else "false")
