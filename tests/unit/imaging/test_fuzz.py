"""Whatever the bytes, the answer is renditions or Rejected."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processor.imaging.failure import Rejected
from processor.imaging.render import render
from processor.imaging.rendition import Limits, RenditionSpec
from support import pictures

FILES = {
    **pictures.all_formats(24, 16),
    "grey16": pictures.grey16_ramp(16, 4, transparent=0),
    "gif palette": pictures.encoded(pictures.quarters(24, 16).quantize(4), "GIF"),
    "webp alpha": pictures.encoded(pictures.quarters(24, 16, "RGBA"), "WEBP", lossless=True),
    "jpeg with all": pictures.encoded(
        pictures.quarters(24, 16, "CMYK"),
        "JPEG",
        progressive=True,
        exif=pictures.oriented_exif(6, gps=True),
        icc_profile=pictures.srgb_profile(),
        comment=b"comment",
    ),
}
# Small ceilings, so that a header which claims much is refused and not tried out in this process.
LIMITS = Limits(max_pixels=250_000, max_side=5_000, max_decode_bytes=8 * 2**20)
SPECS = [RenditionSpec(name="thumb", box=(8, 8)), RenditionSpec(name="preview", box=(20, 20))]


def survives(data: bytes) -> None:
    try:
        result = render(data, SPECS, LIMITS)
    except Rejected:
        return
    assert len(result.renditions) == 2


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_flipped_bytes(name: str, data: st.DataObject) -> None:
    file = bytearray(FILES[name])
    flips = st.tuples(st.integers(0, min(len(file), 700) - 1), st.integers(0, 255))
    for at, value in data.draw(st.lists(flips, min_size=1, max_size=6)):
        file[at] = value
    survives(bytes(file))


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_truncations_and_repetitions(name: str, data: st.DataObject) -> None:
    file = FILES[name]
    start, end = sorted((data.draw(st.integers(0, len(file))), data.draw(st.integers(0, len(file)))))
    survives(file[:end])
    survives(file[:end] + file[start:])
    survives(file[:start] + file[end:])
