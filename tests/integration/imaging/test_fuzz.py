"""Damaged and made-up files through the real decoding processes: renditions or a refusal come of each, no child dies.

`make test` tries a second of each format; `make fuzz` tries as many examples as it is told.
"""

import os
import struct
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.imaging.failure import FailureCode, Rejected
from processor.imaging.pool import DecoderPool
from processor.imaging.rendition import Limits, OutputFormat, RenditionSpec
from support import pictures

EXAMPLES = int(os.environ.get("DARKROOM_FUZZ_EXAMPLES", "60"))
SPECS = (RenditionSpec(name="thumb", box=(16, 16)), RenditionSpec(name="webp", box=(24, 24), format=OutputFormat.WEBP))
# So that a header which claims much is refused, and does not take the test's time.
LIMITS = Limits(max_pixels=4_000_000)

FILES = {
    "jpeg": pictures.jpeg(40, 24, exif=pictures.oriented_exif(6), icc_profile=pictures.srgb_profile()),
    "progressive": pictures.encoded(pictures.quarters(40, 24, "CMYK"), "JPEG", progressive=True),
    "png": pictures.encoded(pictures.quarters(40, 24, "RGBA"), "PNG", exif=pictures.oriented_exif(3)),
    "palette png": pictures.encoded(pictures.quarters(40, 24).quantize(4), "PNG", transparency=1),
    "grey16": pictures.grey16_ramp(16, 4, transparent=0),
    "webp": pictures.encoded(pictures.quarters(40, 24), "WEBP", exif=pictures.oriented_exif(8)),
    "lossless webp": pictures.encoded(pictures.quarters(40, 24, "RGBA"), "WEBP", lossless=True),
    "animated webp": pictures.encoded(
        pictures.quarters(40, 24), "WEBP", save_all=True, append_images=[pictures.drawing(40, 24)]
    ),
    "gif": pictures.encoded(pictures.quarters(40, 24), "GIF", comment=b"comment"),
    "animated gif": pictures.encoded(
        pictures.quarters(40, 24), "GIF", save_all=True, append_images=[pictures.drawing(40, 24)]
    ),
    "avif": pictures.encoded(pictures.quarters(40, 24), "AVIF", exif=pictures.oriented_exif(6)),
    "heic": pictures.heic(pictures.quarters(40, 24), exif=pictures.oriented_exif(6)),
}
MAGIC = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\x40\0\0\0WEBPVP8X", b"RIFF\x40\0\0\0WEBPVP8L"]
MAGIC += [b"RIFF\x40\0\0\0WEBPVP8 ", b"\0\0\0\x18ftypavif\0\0\0\0avifmif1", b"\0\0\0\x18ftypheic\0\0\0\0heicmif1"]


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(size=1, cpu_seconds=10, jobs_per_child=10**9) as made:
        yield made


def ends_well(pool: DecoderPool, data: bytes) -> None:
    before = pool.pids()
    try:
        made = pool.render(data, SPECS, LIMITS)
    except Rejected as reason:
        # A decoder that dies, or that never ends on a small file, is a finding.
        if reason.code in (FailureCode.DECODER_CRASHED, FailureCode.DECODE_TIMEOUT):
            raise
    else:
        assert len(made.renditions) == len(SPECS)
        assert all(one.width and one.height and one.data for one in made.renditions)
    assert pool.pids() == before, "a child died on the first try"


@st.composite
def damaged(draw: st.DrawFn, file: bytes) -> bytes:
    """The file with bytes changed, cut out, doubled or cut off; mostly in its header, where all the numbers are."""
    data = bytearray(file)
    for _ in range(draw(st.integers(1, 5))):
        reach = len(data) if draw(st.booleans()) else min(len(data), 200)
        at = draw(st.integers(0, max(0, reach - 1)))
        match draw(st.sampled_from(["set", "number", "cut", "double", "end"])):
            case "set":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "number":
                value = draw(st.sampled_from([0, 1, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, len(data)]))
                data[at : at + 4] = struct.pack(draw(st.sampled_from(["<I", ">I"])), value)
            case "cut":
                del data[at : at + draw(st.integers(1, 40))]
            case "double":
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
            case _:
                del data[at:]
    return bytes(data)


def with_right_checksums(data: bytes) -> bytes:
    """A PNG whose chunks' checksums fit, so that damage reaches what reads the chunk."""
    made, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        length = min(int.from_bytes(data[at : at + 4], "big"), len(data) - at - 12)
        body = data[at + 4 : at + 8 + length]
        made += data[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return bytes(made)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", FILES)
def test_damaged_files(pool: DecoderPool, name: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(data=damaged(FILES[name]))
    def fuzz(data: bytes) -> None:
        ends_well(pool, data)
        if data.startswith(b"\x89PNG"):
            ends_well(pool, with_right_checksums(data))

    fuzz()


@pytest.mark.timeout(0)
def test_every_truncation(pool: DecoderPool) -> None:
    expected = {FailureCode.CORRUPT_OR_TRUNCATED, FailureCode.UNSUPPORTED_FORMAT, FailureCode.EMPTY_OBJECT}
    for name, file in FILES.items():
        for length in {*range(0, len(file), max(1, len(file) // EXAMPLES)), len(file) - 1, len(file) - 2}:
            with pytest.raises(Rejected) as caught:
                pool.render(file[:length], SPECS, LIMITS)
            assert caught.value.code in expected, f"{name}: {length} of {len(file)} bytes"


@pytest.mark.timeout(0)
def test_noise_behind_a_right_beginning(pool: DecoderPool) -> None:
    @settings(max_examples=2 * EXAMPLES)
    @given(magic=st.sampled_from(MAGIC), noise=st.binary(max_size=300))
    def fuzz(magic: bytes, noise: bytes) -> None:
        ends_well(pool, magic + noise)

    fuzz()
