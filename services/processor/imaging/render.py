"""From a file's bytes to its renditions: one decode, shrink first, then colour, orientation and encoding."""

from collections.abc import Sequence
from io import BytesIO

from PIL import Image, JpegImagePlugin, WebPImagePlugin

from processor.imaging import colour
from processor.imaging.decode import Decoded, decode
from processor.imaging.failure import FailureCode, Rejected
from processor.imaging.rendition import Limits, OutputFormat, Rendered, RenditionBytes, RenditionSpec

# A quarter cheaper than Lanczos on the way down, with no difference that is seen at these sizes.
_FILTER = Image.Resampling.BICUBIC


def render(data: bytes, specs: Sequence[RenditionSpec], limits: Limits) -> Rendered:
    """Make every rendition of the picture in `data`. Raises Rejected when there is none to be made.

    Pure, but not for several threads at a time (see `decode`), and not for input from outside in a process that must
    live on: that is what `DecoderPool.render` is for.
    """
    try:
        decoded = decode(data, specs, limits)
        images = _scale(decoded, specs)
        renditions = tuple(_encode(image, spec) for image, spec in zip(images, specs, strict=True))
    except MemoryError as error:
        raise Rejected(
            FailureCode.TOO_MANY_PIXELS, "the picture takes more memory than one picture may have"
        ) from error
    width, height = decoded.size
    return Rendered(format=decoded.format, width=width, height=height, renditions=renditions)


def _scale(decoded: Decoded, specs: Sequence[RenditionSpec]) -> list[Image.Image]:
    """One upright sRGB image a spec. Largest first, so that a small one is made from a larger one."""
    targets = [spec.fit(decoded.size) for spec in specs]
    made: dict[int, Image.Image] = {}
    pixels: Image.Image | None = None
    for at in sorted(range(len(specs)), key=lambda index: targets[index], reverse=True):
        target = targets[at]
        if (source := next((image for image in made.values() if _serves(image, target)), None)) is not None:
            made[at] = source.resize(target, _FILTER, reducing_gap=2.0)
            continue
        pixels = pixels or colour.resizable(decoded.pixels)
        made[at] = _from_decoded(decoded, pixels, target)
    return [made[at] for at in range(len(specs))]


def _serves(image: Image.Image, target: tuple[int, int]) -> bool:
    """Whether `target` made from `image` shows all that it would when made from the original."""
    return image.size == target or (image.width >= 2 * target[0] and image.height >= 2 * target[1])


def _from_decoded(decoded: Decoded, pixels: Image.Image, target: tuple[int, int]) -> Image.Image:
    stored = (target[1], target[0]) if decoded.sideways else target
    # Colour and orientation after the shrink: there are far fewer pixels left. Pillow averages transparent pixels
    # premultiplied, so colours hidden under transparency do not bleed into the visible ones.
    scaled = pixels.resize(stored, _FILTER, box=decoded.box, reducing_gap=2.0)
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
    reader = {OutputFormat.JPEG: JpegImagePlugin.JpegImageFile, OutputFormat.WEBP: WebPImagePlugin.WebPImageFile}
    back = reader[spec.format](BytesIO(data))
    if back.size != size:
        raise RuntimeError(f"rendition {spec.name!r} was encoded as {back.size}, not {size}")
    # An eighth of the size: every coded bit is read, few pixels are computed.
    back.draft(None, (1, 1))
    back.load()
