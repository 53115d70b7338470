"""What a container says about itself before a decoder sees it: how many frames, how much that is no pixel.

Walked by hand and without a decoder, so that the ceilings hold before any library takes the file apart. A walk stops
where the file makes no sense; whether such a file decodes is for the decoder to say.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from processor.imaging.rendition import SourceFormat

_PNG_PICTURE_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"acTL", b"fcTL", b"fdAT"}
_WEBP_PICTURE_CHUNKS = {b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF"}
_START_OF_SCAN, _END_OF_IMAGE, _COMMENT = 0xDA, 0xD9, 0xFE
_GIF_EXTENSION, _GIF_IMAGE, _GIF_GRAPHIC_CONTROL = 0x21, 0x2C, 0xF9


@dataclass(frozen=True, slots=True)
class Survey:
    """`frames`: pictures in the file, at least 1. `metadata_bytes`: EXIF, XMP, profiles, comments and the like."""

    frames: int = 1
    metadata_bytes: int = 0


def survey(source: SourceFormat, data: bytes) -> Survey:
    """Count frames and bytes of metadata. AVIF and HEIC are counted by their own reader when it opens the header."""
    match source:
        case SourceFormat.JPEG:
            return Survey(metadata_bytes=_jpeg_metadata(data))
        case SourceFormat.PNG:
            return _png(data)
        case SourceFormat.WEBP:
            return _webp(data)
        case SourceFormat.GIF:
            return _gif(data)
        case _:
            return Survey()


def _jpeg_metadata(data: bytes) -> int:
    """Bytes of APPn and COM segments before the first scan. Frames are not counted: MPO's first picture is the one."""
    total, at = 0, 2
    while True:
        # Decoders skip junk between segments, and fill bytes before a marker.
        at = data.find(b"\xff", at)
        if at < 0 or at + 4 > len(data):
            return total
        marker = data[at + 1]
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            return total
        if marker == 0xFF or marker == 0 or 0xD0 <= marker <= 0xD8 or marker == 1:
            at += 1
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xE0 <= marker <= 0xEF or marker == _COMMENT:
            total += min(length, len(data) - at)
        at += 2 + max(length, 2)


def _png(data: bytes) -> Survey:
    frames, metadata = 1, 0
    at = 8
    while at + 12 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"acTL":
            frames = max(1, int.from_bytes(data[at + 8 : at + 12], "big"))
        elif kind not in _PNG_PICTURE_CHUNKS:
            metadata += min(length, len(data) - at)
        at += 12 + length
    return Survey(frames, metadata)


def _webp(data: bytes) -> Survey:
    frames, metadata = 0, 0
    at = 12
    while at + 8 <= len(data):
        kind, length = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        frames += kind == b"ANMF"
        if kind not in _WEBP_PICTURE_CHUNKS:
            metadata += min(length, len(data) - at)
        at += 8 + length + length % 2
    return Survey(max(1, frames), metadata)


def _gif(data: bytes) -> Survey:
    frames, metadata = 0, 0
    for block, length in _gif_blocks(data):
        if block == _GIF_IMAGE:
            frames += 1
        elif block != _GIF_GRAPHIC_CONTROL:
            metadata += length
    return Survey(max(1, frames), metadata)


def _gif_blocks(data: bytes) -> Iterator[tuple[int, int]]:
    """For each block: its separator, or its label if it is an extension, and the bytes that it takes."""
    if len(data) < 13:
        return
    at = 13 + _gif_colours(data[10])
    while at + 2 <= len(data):
        start, kind = at, data[at]
        if kind == _GIF_IMAGE and at + 11 <= len(data):
            at += 11 + _gif_colours(data[at + 9])
        elif kind == _GIF_EXTENSION:
            kind = data[at + 1]
            at += 2
        else:
            return
        while at < len(data) and data[at]:
            at += 1 + data[at]
        at += 1
        yield kind, min(at, len(data)) - start


def _gif_colours(flags: int) -> int:
    """Bytes of the colour table that the flags announce."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0
