"""From bytes to pixels, strictly: a file that does not decode to its end has no pixels at all."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import ExifTags, Image, ImageFile

from processor.imaging.failure import FailureCode, Rejected
from processor.imaging.formats import declared_size, open_picture, readable, sniff
from processor.imaging.rendition import Limits, RenditionSpec, SourceFormat
from processor.imaging.survey import Survey, survey

# The most bytes a pixel takes at the worst moment, counted from how Pillow and the libraries hold it: WebP has two
# canvases beside the frame's bytes and the image, AVIF its 16-bit planes and reference frames, the others the image and
# a premultiplied copy. A progressive JPEG keeps two bytes of coefficients a sample whatever the shrink.
_BYTES_PER_PIXEL = {
    SourceFormat.JPEG: 4,
    SourceFormat.PNG: 12,
    SourceFormat.GIF: 12,
    SourceFormat.WEBP: 20,
    SourceFormat.AVIF: 24,
    SourceFormat.HEIC: 24,
}
_PROGRESSIVE_JPEG_BYTES_PER_PIXEL = 12
_START_OF_SCAN = re.compile(rb"\xff\xda")

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = {5, 6, 7, 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The first frame's pixels as stored (not yet turned), perhaps already shrunk by the decoder."""

    format: SourceFormat
    stored_size: tuple[int, int]
    pixels: Image.Image
    box: tuple[float, float, float, float]
    """What part of `pixels` is the picture: a shrinking decoder rounds up, so the last column may be partly outside."""
    turn: Image.Transpose | None
    icc_profile: bytes | None
    frames: int = 1

    @property
    def sideways(self) -> bool:
        """Whether turning swaps width and height."""
        return self.turn in {_TURNS[value] for value in _SIDEWAYS}

    @property
    def size(self) -> tuple[int, int]:
        """Width and height as a viewer sees them."""
        width, height = self.stored_size
        return (height, width) if self.sideways else (width, height)


def decode(data: bytes, specs: Sequence[RenditionSpec], limits: Limits) -> Decoded:
    """Decode once, no larger than the largest of `specs` needs. Raises Rejected.

    Not for several threads at a time: Pillow's warnings and its own pixel ceiling are process-wide and are set aside
    meanwhile, so that only `limits` decides.
    """
    if not data:
        raise Rejected(FailureCode.EMPTY_OBJECT, "the file has no bytes")
    source = sniff(data)
    if source is None:
        raise Rejected(FailureCode.UNSUPPORTED_FORMAT, "the content is not JPEG, PNG, WebP, GIF, AVIF or HEIC")
    if not readable(source):
        raise Rejected(FailureCode.UNSUPPORTED_FORMAT, f"{source.name} is not accepted here: install darkroom[heic]")
    if (declared := declared_size(source, data)) is not None:
        _check_size(declared, _BYTES_PER_PIXEL[source], limits)
    told = survey(source, data)
    _check_survey(told, limits)
    with _only_our_limits():
        picture = _open(source, data)
        stored_size = picture.size
        _check_size(stored_size, _bytes_per_pixel(source, picture), limits)
        if source in (SourceFormat.AVIF, SourceFormat.HEIC):
            told = Survey(getattr(picture, "n_frames", 1), getattr(picture, "metadata_bytes", 0))
            _check_survey(told, limits)
        box = (0.0, 0.0, float(stored_size[0]), float(stored_size[1]))
        if source is SourceFormat.JPEG:
            if not _is_one_scan(picture, told):
                _check_scans(data, limits)
            drafted = picture.draft(None, _enough_for(stored_size, specs))
            box = drafted[1] if drafted else box
        _load(picture)
        if told.truncated:
            raise Rejected(FailureCode.CORRUPT_OR_TRUNCATED, "the file ends before its end marker")
        # After the pixels: Pillow reads the rest of a PNG for EXIF, and would then hide that its data was broken.
        turn = _TURNS.get(_orientation(picture))
    return Decoded(
        format=source,
        stored_size=stored_size,
        pixels=picture,
        box=box,
        turn=turn,
        icc_profile=picture.info.get("icc_profile"),
        frames=told.frames,
    )


@contextmanager
def _only_our_limits() -> Iterator[None]:
    ceiling = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        with warnings.catch_warnings():
            # Broken metadata makes Pillow warn; that alone fails no picture.
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = ceiling


def _open(source: SourceFormat, data: bytes) -> ImageFile.ImageFile:
    try:
        return open_picture(source, data)
    except Exception as error:  # on broken input Pillow raises nearly any type; all mean the same here
        raise _rejection(error) from error


def _load(picture: ImageFile.ImageFile) -> None:
    try:
        picture.load()
    except Exception as error:  # as above; the picture object is never used again
        raise _rejection(error) from error


def _rejection(error: Exception) -> Rejected:
    text = str(error) or type(error).__name__
    if isinstance(error, MemoryError) or "memory error" in text:
        return Rejected(FailureCode.TOO_MANY_PIXELS, "decoding takes more memory than one picture may have")
    # Pillow has no type of its own for its bounds on compressed metadata.
    if isinstance(error, ValueError) and text.startswith(("Decompressed data too large", "Too much memory used")):
        return Rejected(FailureCode.DECOMPRESSION_BOMB, text)
    return Rejected(FailureCode.CORRUPT_OR_TRUNCATED, text)


def _check_size(size: tuple[int, int], bytes_per_pixel: int, limits: Limits) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise Rejected(FailureCode.CORRUPT_OR_TRUNCATED, f"the header says {width} x {height} pixels")
    if max(size) > limits.max_side:
        raise Rejected(FailureCode.TOO_MANY_PIXELS, f"{width} x {height} pixels; a side may have {limits.max_side}")
    if width * height > limits.max_pixels:
        raise Rejected(
            FailureCode.TOO_MANY_PIXELS, f"{width} x {height} pixels; a picture may have {limits.max_pixels} in all"
        )
    needed = width * height * bytes_per_pixel
    if needed > limits.max_decode_bytes:
        raise Rejected(
            FailureCode.TOO_MANY_PIXELS,
            f"{width} x {height} pixels would take {needed} bytes to decode; {limits.max_decode_bytes} are allowed",
        )


def _check_survey(told: Survey, limits: Limits) -> None:
    if told.frames > limits.max_frames:
        raise Rejected(FailureCode.TOO_MANY_FRAMES, f"{told.frames} frames; an animation may have {limits.max_frames}")
    if told.metadata_bytes > limits.max_metadata_bytes:
        raise Rejected(
            FailureCode.TOO_MUCH_METADATA,
            f"{told.metadata_bytes} bytes of metadata; a picture may have {limits.max_metadata_bytes}",
        )


def _is_one_scan(picture: ImageFile.ImageFile, told: Survey) -> bool:
    """Whether the first scan has all components at once and their full precision: no decoder looks for another then."""
    return "progressive" not in picture.info and told.first_scan == getattr(picture, "layers", None)


def _check_scans(data: bytes, limits: Limits) -> None:
    # Within coded data the two bytes can be nothing else than a start of scan; embedded thumbnails add one or two.
    # Found by `re` in less than half of the time that `bytes.count` takes.
    scans = sum(1 for _ in _START_OF_SCAN.finditer(data))
    if scans > limits.max_scans:
        raise Rejected(FailureCode.DECODE_TIMEOUT, f"{scans} scans to decode; a JPEG may have {limits.max_scans}")


def _bytes_per_pixel(source: SourceFormat, picture: ImageFile.ImageFile) -> int:
    if source is SourceFormat.JPEG and "progressive" in picture.info:
        return _PROGRESSIVE_JPEG_BYTES_PER_PIXEL
    return _BYTES_PER_PIXEL[source]


def _enough_for(stored: tuple[int, int], specs: Sequence[RenditionSpec]) -> tuple[int, int]:
    """The size, as stored, that serves every rendition whether or not the picture will be turned sideways."""
    width, height = 1, 1
    for spec in specs:
        upright = spec.scaled(stored)
        sideways = spec.scaled((stored[1], stored[0]))
        width = max(width, upright[0], sideways[1])
        height = max(height, upright[1], sideways[0])
    return width, height


def _orientation(picture: ImageFile.ImageFile) -> int:
    """How to turn the picture, by one rule for all formats; 1, which is not at all, when nothing can be read.

    Where the container itself says it (AVIF and HEIC: irot and imir), that alone counts. Else EXIF's value counts, and
    where EXIF has none, XMP's tiff:Orientation.
    """
    declared = getattr(picture, "orientation", None)
    if declared is None:
        try:
            declared = picture.getexif().get(ExifTags.Base.Orientation)
        except MemoryError as error:
            raise _rejection(error) from error
        except Exception:  # noqa: BLE001 - broken metadata raises nearly any type and must not fail a good picture
            return 1
    return declared if isinstance(declared, int) else 1
