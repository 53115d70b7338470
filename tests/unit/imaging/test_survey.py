"""What is counted in a file before it is decoded, and the ceilings on it."""

import struct
from collections.abc import Callable

import pytest
from PIL import Image

from processor.imaging.failure import FailureCode, Rejected
from processor.imaging.render import render
from processor.imaging.rendition import Limits, SourceFormat, default_specs
from processor.imaging.survey import survey
from support import pictures

KILOBYTES = 40 * 1024
EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0" + bytes(KILOBYTES)


def animation(form: str, frames: int = 5) -> bytes:
    images = [Image.new("RGB", (20, 10), (at * 40, 90, 30)) for at in range(frames)]
    return pictures.encoded(images[0], form, save_all=True, append_images=images[1:], duration=100)


def comment_gif() -> bytes:
    return pictures.encoded(pictures.quarters(), "GIF", comment=bytes([65]) * KILOBYTES)


def icc_png() -> bytes:
    return pictures.encoded(pictures.quarters(), "PNG", exif=EXIF)


def comments_jpeg() -> bytes:
    file = pictures.jpeg()
    for _ in range(10):
        file = pictures.with_segment(file, 0xFE, bytes(4096))
    return file


HEAVY: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: pictures.jpeg(exif=EXIF),
    "jpeg comments": comments_jpeg,
    "png": icc_png,
    "webp": lambda: pictures.encoded(pictures.quarters(), "WEBP", exif=EXIF),
    "gif": comment_gif,
    "avif": lambda: pictures.encoded(pictures.quarters(), "AVIF", exif=EXIF),
    "heic": lambda: pictures.heic(pictures.quarters(), exif=EXIF),
}


def refusal(data: bytes, limits: Limits) -> FailureCode:
    with pytest.raises(Rejected) as caught:
        render(data, default_specs(), limits)
    return caught.value.code


@pytest.mark.parametrize("name", HEAVY)
def test_too_much_metadata_is_refused_and_a_little_less_is_not(name: str) -> None:
    data = HEAVY[name]()
    assert refusal(data, Limits(max_metadata_bytes=KILOBYTES - 1)) is FailureCode.TOO_MUCH_METADATA
    assert render(data, default_specs(), Limits(max_metadata_bytes=2 * KILOBYTES)).width == 64


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "AVIF"])
def test_frames_are_counted_before_any_is_decoded(form: str) -> None:
    data = animation(form)
    assert refusal(data, Limits(max_frames=4)) is FailureCode.TOO_MANY_FRAMES
    assert render(data, default_specs(), Limits(max_frames=5)).labels["animated"] == "true"


@pytest.mark.parametrize("name", ["png", "webp", "gif", "jpeg"])
def test_plain_files_have_one_frame_and_next_to_no_metadata(name: str) -> None:
    found = survey(SourceFormat(name), pictures.all_formats()[name])
    assert found.frames == 1
    assert found.metadata_bytes < 64


def test_metadata_is_counted_behind_junk_and_fill_bytes() -> None:
    file = pictures.jpeg()
    segment = b"\xff\xff\xff\xfe" + struct.pack(">H", 1002) + bytes(1000)
    told = survey(SourceFormat.JPEG, file[:2] + b"junk\xff\x00" + segment + file[2:])
    assert told.metadata_bytes >= 1002


@pytest.mark.parametrize("source", [SourceFormat.JPEG, SourceFormat.PNG, SourceFormat.WEBP, SourceFormat.GIF])
@pytest.mark.parametrize("filler", [b"\xff", b"\0", b"\x21\xfe", b"\x2c"])
def test_a_walk_ends_and_counts_no_more_than_there_is(source: SourceFormat, filler: bytes) -> None:
    data = {
        SourceFormat.JPEG: b"\xff\xd8",
        SourceFormat.PNG: pictures.png(1, 1)[:33],
        SourceFormat.WEBP: b"RIFF\0\0\0\0WEBP",
        SourceFormat.GIF: b"GIF89a" + bytes(7),
    }[source] + filler * 3000
    assert survey(source, data).metadata_bytes <= len(data)


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "AVIF"])
def test_an_animation_that_stops_after_its_first_frame_is_truncated(form: str) -> None:
    whole = animation(form)
    for length in (len(whole) * 3 // 4, len(whole) - 1):
        assert refusal(whole[:length], Limits()) is FailureCode.CORRUPT_OR_TRUNCATED
    assert render(whole + b"behind the end", default_specs(), Limits()).width == 20
