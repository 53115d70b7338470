"""What can be said of a picture by looking at its pixels, cheaply: the labels of an asset.

All values are text, so that they stand side by side with the labels of a user's own classifier. docs/labels.md says
what each means and how well it can be trusted.
"""

from base64 import b64encode

from PIL import Image, ImageChops

from processor.imaging.thumbhash import thumbhash

NAMES = ("dominant_colors", "thumbhash", "perceptual_hash", "has_alpha", "animated", "orientation", "kind")
"""The labels that every READY picture has."""

_SQUARE_UP_TO = 1.05
# Of 255: what is more transparent has no colour to speak of.
_VISIBLE = 128
_COLORS = 5
_LEAST_SHARE = 0.05
# Of a graphic's neighbouring pixels most are equal, of a photo's few, even after it was scaled down.
_EQUAL_IN_GRAPHICS = 0.5
_COLORS_IN_GRAPHICS = 64


def describe(small: Image.Image, *, size: tuple[int, int], frames: int) -> dict[str, str]:
    """The labels of a picture of `size` (as a viewer sees it), told from `small`: the same, upright, sRGB, scaled down.

    `small` may have any of the modes L, LA, RGB and RGBA; 100 pixels a side are enough.
    """
    pixels = small.convert("RGBA")
    alpha = pixels.getchannel("A")
    return {
        "dominant_colors": " ".join(_dominant_colors(pixels)),
        "thumbhash": b64encode(thumbhash(pixels)).decode(),
        "perceptual_hash": _perceptual_hash(pixels),
        "has_alpha": _truth(_least(alpha) < 255),
        "animated": _truth(frames > 1),
        "orientation": _orientation(size),
        "kind": _kind(pixels),
    }


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _least(channel: Image.Image) -> int:
    return next(level for level, count in enumerate(channel.histogram()) if count)


def _orientation(size: tuple[int, int]) -> str:
    width, height = size
    if max(size) <= min(size) * _SQUARE_UP_TO:
        return "square"
    return "landscape" if width > height else "portrait"


def _dominant_colors(pixels: Image.Image) -> list[str]:
    """Up to five colours as #rrggbb, the most frequent first; each is a twentieth or more of what is visible."""
    tiny = pixels.resize((min(pixels.width, 32), min(pixels.height, 32)), Image.Resampling.BOX)
    visible = tiny.convert("RGB") if _least(tiny.getchannel("A")) >= _VISIBLE else _only_visible(tiny)
    if visible is None:
        return []
    reduced = visible.quantize(_COLORS, Image.Quantize.MEDIANCUT)
    palette = reduced.getpalette("RGB") or []
    counts = sorted(((count, at) for at, count in enumerate(reduced.histogram()) if count), reverse=True)
    return [
        "#{:02x}{:02x}{:02x}".format(*palette[3 * at : 3 * at + 3])
        for count, at in counts
        if count >= _LEAST_SHARE * visible.width * visible.height
    ]


def _only_visible(pixels: Image.Image) -> Image.Image | None:
    raw = pixels.tobytes()
    kept = [raw[at : at + 3] for at in range(0, len(raw), 4) if raw[at + 3] >= _VISIBLE]
    return Image.frombytes("RGB", (len(kept), 1), b"".join(kept)) if kept else None


def _perceptual_hash(pixels: Image.Image) -> str:
    """64 bits in hexadecimal: whether each of 8 x 8 places is darker than its right neighbour (dHash).

    Nearly the same picture has a hash that differs in few bits, also after scaling and compression. What is transparent
    counts as white.
    """
    grey = _on_white(pixels).convert("L").resize((9, 8), Image.Resampling.BOX).tobytes()
    bits = 0
    for row in range(8):
        for column in range(8):
            at = row * 9 + column
            bits = bits << 1 | (grey[at] < grey[at + 1])
    return f"{bits:016x}"


def _on_white(pixels: Image.Image) -> Image.Image:
    flat = Image.new("RGB", pixels.size, (255, 255, 255))
    flat.paste(pixels, mask=pixels.getchannel("A"))
    return flat


def _kind(pixels: Image.Image) -> str:
    """`graphic` for drawings, logos, charts and screenshots, else `photo`: by plain areas and by few colours."""
    flat = _on_white(pixels)
    if flat.getcolors(_COLORS_IN_GRAPHICS) is not None:
        return "graphic"
    step = ImageChops.difference(flat, ImageChops.offset(flat, 1, 0))
    largest = ImageChops.lighter(ImageChops.lighter(*step.split()[:2]), step.getchannel("B"))
    equal = largest.histogram()[0] / (flat.width * flat.height)
    return "graphic" if equal >= _EQUAL_IN_GRAPHICS else "photo"
