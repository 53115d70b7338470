"""What a container says about itself before a decoder sees it: how many frames, how much that is no pixel.

Walked by hand and without a decoder, so that the ceilings hold before any library takes the file apart. A walk stops
where the file makes no sense; whether such a file decodes is for the decoder to say.
"""

from dataclasses import dataclass

from processor.imaging.rendition import SourceFormat

_PNG_PICTURE_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"acTL", b"fcTL", b"fdAT"}
_WEBP_PICTURE_CHUNKS = {b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF"}
_START_OF_SCAN, _END_OF_IMAGE, _COMMENT = 0xDA, 0xD9, 0xFE
_GIF_EXTENSION, _GIF_IMAGE, _GIF_GRAPHIC_CONTROL = 0x21, 0x2C, b"\xf9"


@dataclass(frozen=True, slots=True)
class Survey:
    """`frames`: pictures in the file, at least 1. `metadata_bytes`: EXIF, XMP, profiles, comments and the like.

    `truncated`: the file (PNG, GIF) ends before its end marker, which Pillow does not notice. `first_scan`: how many
    components the first scan of a JPEG has, 0 where there is none.
    """

    frames: int = 1
    metadata_bytes: int = 0
    truncated: bool = False
    first_scan: int = 0


def survey(source: SourceFormat, data: bytes) -> Survey:
    """Count frames and bytes of metadata. AVIF and HEIC are counted by their own reader when it opens the header."""
    match source:
        case SourceFormat.JPEG:
            return _jpeg(data)
        case SourceFormat.PNG:
            return _png(data)
        case SourceFormat.WEBP:
            return _webp(data)
        case SourceFormat.GIF:
            return _gif(data)
        case _:
            return Survey()


def _jpeg(data: bytes) -> Survey:
    """APPn and COM segments up to the first scan. Frames are not counted: MPO's first picture is the one."""
    total, at = 0, 2
    while True:
        # Decoders skip junk between segments, and fill bytes before a marker.
        at = data.find(b"\xff", at)
        if at < 0 or at + 4 > len(data):
            return Survey(metadata_bytes=total)
        marker = data[at + 1]
        if marker == _START_OF_SCAN:
            return Survey(metadata_bytes=total, first_scan=int.from_bytes(data[at + 4 : at + 5], "big"))
        if marker == _END_OF_IMAGE:
            return Survey(metadata_bytes=total)
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
        if kind == b"IEND":
            return Survey(frames, metadata, truncated=at > len(data))
    return Survey(frames, metadata, truncated=True)


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
    at = 13 + _gif_colours(data[10]) if len(data) > 10 else len(data)
    while at < len(data) and (kind := data[at]) in (_GIF_IMAGE, _GIF_EXTENSION):
        end = _gif_block_end(data, at)
        if kind == _GIF_IMAGE:
            frames += 1
        elif data[at + 1 : at + 2] != _GIF_GRAPHIC_CONTROL:
            metadata += min(end, len(data)) - at
        at = end
    # What is neither a block nor the end marker is junk, which decoders skip or refuse.
    return Survey(max(1, frames), metadata, truncated=at >= len(data))


def _gif_block_end(data: bytes, at: int) -> int:
    """Where the block that starts at `at` ends, perhaps behind the end of the file."""
    if data[at] == _GIF_IMAGE:
        at += 11 + (_gif_colours(data[at + 9]) if at + 9 < len(data) else 0)
    else:
        at += 2
    while at < len(data) and data[at]:
        at += 1 + data[at]
    return at + 1


def _gif_colours(flags: int) -> int:
    """Bytes of the colour table that the flags announce."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0
