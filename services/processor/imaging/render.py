"""From a file's bytes to its renditions: one decode, shrink first, then colour, orientation and encoding."""

from collections.abc import Sequence
from io import BytesIO

from PIL import Image

from processor.imaging import colour
from processor.imaging.decode import Decoded, decode
from processor.imaging.failure import FailureCode, Rejected
from processor.imaging.formats import open_picture
from processor.imaging.labels import describe
from processor.imaging.rendition import (
    Limits,
    OutputFormat,
    Rendered,
    RenditionBytes,
    RenditionSpec,
    SourceFormat,
)

# A quarter cheaper than Lanczos on the way down, with no difference that is seen at these sizes.
_FILTER = Image.Resampling.BICUBIC
_WHOLE = (1.0, 1.0)
_TO_LOOK_AT = RenditionSpec(name="small", box=(100, 100))
# Of 0 (smallest file) to 10 (least CPU).
_AVIF_SPEED = 8


def render(data: bytes, specs: Sequence[RenditionSpec], limits: Limits) -> Rendered:
    """Make every rendition of the picture in `data`. Raises Rejected when there is none to be made.

    Pure, but not for several threads at a time (see `decode`), and not for input from outside in a process that must
    live on: that is what `DecoderPool.render` is for.
    """
    try:
        decoded = decode(data, specs, limits)
        images, small = _scale(decoded, specs)
        renditions = tuple(_encode(image, spec) for image, spec in zip(images, specs, strict=True))
        labels = describe(small, size=decoded.size, frames=decoded.frames)
    except MemoryError as error:
        raise Rejected(
            FailureCode.TOO_MANY_PIXELS, "the picture takes more memory than one picture may have"
        ) from error
    width, height = decoded.size
    return Rendered(format=decoded.format, width=width, height=height, renditions=renditions, labels=labels)


def _scale(decoded: Decoded, specs: Sequence[RenditionSpec]) -> tuple[list[Image.Image], Image.Image]:
    """One upright sRGB image a spec, and a small one of the whole picture to look at.

    Whole pictures come first and the largest first: a small one is made from a larger.
    """
    specs = [*specs, _TO_LOOK_AT]
    targets = [spec.target(decoded.size) for spec in specs]
    # What part of the picture each shows: its middle, and all of it but for `cover`.
    parts = [_part(spec.scaled(decoded.size), target) for spec, target in zip(specs, targets, strict=True)]
    made: dict[int, Image.Image] = {}
    wholes: list[Image.Image] = []
    pixels: Image.Image | None = None
    for at in sorted(range(len(specs)), key=lambda index: (parts[index] == _WHOLE, targets[index]), reverse=True):
        target, part = targets[at], parts[at]
        if (source := next((image for image in reversed(wholes) if _serves(image, target, part)), None)) is not None:
            box = _middle((0.0, 0.0, float(source.width), float(source.height)), part)
            made[at] = source.resize(target, _FILTER, box=box, reducing_gap=2.0)
        else:
            pixels = pixels or colour.resizable(decoded.pixels)
            made[at] = _from_decoded(decoded, pixels, target, part)
        if part == _WHOLE:
            wholes.append(made[at])
    *images, small = (made[at] for at in range(len(specs)))
    return images, small


def _part(scaled: tuple[int, int], target: tuple[int, int]) -> tuple[float, float]:
    return target[0] / scaled[0], target[1] / scaled[1]


def _middle(box: tuple[float, float, float, float], part: tuple[float, float]) -> tuple[float, float, float, float]:
    """The middle of `box` that measures `part` (fractions of width and height) of it."""
    left, top, right, bottom = box
    beside, above = (right - left) * (1 - part[0]) / 2, (bottom - top) * (1 - part[1]) / 2
    return left + beside, top + above, right - beside, bottom - above


def _serves(image: Image.Image, target: tuple[int, int], part: tuple[float, float]) -> bool:
    """Whether `target` made from `part` of `image` shows all that it would when made from the original."""
    width, height = image.width * part[0], image.height * part[1]
    return (part == _WHOLE and image.size == target) or (width >= 2 * target[0] and height >= 2 * target[1])


def _from_decoded(
    decoded: Decoded, pixels: Image.Image, target: tuple[int, int], part: tuple[float, float]
) -> Image.Image:
    if decoded.sideways:
        target, part = (target[1], target[0]), (part[1], part[0])
    # Colour and orientation after the shrink: there are far fewer pixels left. Pillow averages transparent pixels
    # premultiplied, so colours hidden under transparency do not bleed into the visible ones.
    scaled = pixels.resize(target, _FILTER, box=_middle(decoded.box, part), reducing_gap=2.0)
    scaled = colour.to_srgb(scaled, decoded.icc_profile)
    return scaled if decoded.turn is None else scaled.transpose(decoded.turn)


def _encode(image: Image.Image, spec: RenditionSpec) -> RenditionBytes:
    if spec.format is OutputFormat.JPEG and image.mode in ("LA", "RGBA"):
        image = _flatten(image, spec.background)
    # Pillow's encoders take comments, profiles and more from here when it is not asked to.
    image.info = {}
    encoded = BytesIO()
    match spec.format:
        case OutputFormat.JPEG:
            image.save(encoded, "JPEG", quality=spec.quality)
        case OutputFormat.WEBP:
            image.save(encoded, "WEBP", quality=spec.quality)
        case OutputFormat.AVIF:
            image.save(encoded, "AVIF", quality=spec.quality, speed=_AVIF_SPEED, max_threads=1)
    data = encoded.getvalue()
    _check_rendition(data, image.size, spec)
    return RenditionBytes(
        name=spec.name,
        content_type=spec.format.content_type,
        extension=spec.format.extension,
        width=image.width,
        height=image.height,
        data=data,
    )


def _flatten(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    colours = image.convert("RGBA")
    flat = Image.new("RGB", image.size, background)
    flat.paste(colours, mask=colours.getchannel("A"))
    return flat


def _check_rendition(data: bytes, size: tuple[int, int], spec: RenditionSpec) -> None:
    """Decode the rendition as a viewer would. A failure here is a fault of this machine or code, not of the picture."""
    back = open_picture(SourceFormat(spec.format), data)
    if back.size != size:
        raise RuntimeError(f"rendition {spec.name!r} was encoded as {back.size}, not {size}")
    # An eighth of the size: every coded bit is read, few pixels are computed.
    back.draft(None, (1, 1))
    back.load()
