"""ThumbHash: about 25 bytes that show what a picture looks like before it is there.

Written after the published description of the format (https://evanw.github.io/thumbhash/): the lowest frequencies of
lightness, of two colour differences and of transparency, four bits each. Decoders exist for the web and for phones.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import cos, floor, pi
from operator import mul

from PIL import Image

# The format allows 100. The frequencies it keeps do not change visibly above this, and the work grows with the area.
_SIDE = 32

Rows = list[list[float]]


def thumbhash(pixels: Image.Image) -> bytes:
    """The hash of an RGBA picture of any size; about 25 bytes."""
    scale = min(1.0, _SIDE / max(pixels.size))
    size = (max(1, round(pixels.width * scale)), max(1, round(pixels.height * scale)))
    return _encode(pixels.resize(size, Image.Resampling.BOX) if size != pixels.size else pixels)


def _encode(pixels: Image.Image) -> bytes:
    width, height = pixels.size
    red, green, blue, alpha = ([value / 255 for value in pixels.getchannel(band).tobytes()] for band in "RGBA")
    visible = sum(alpha)
    clear = visible < width * height
    if clear:
        red, green, blue = (_on_average(channel, alpha, visible) for channel in (red, green, blue))
    limit = 5 if clear else 7
    longest = max(width, height)
    across, down = (max(1, _round(limit * side / longest)) for side in (width, height))

    lightness = [(r + g + b) / 3 for r, g, b in zip(red, green, blue, strict=True)]
    yellow_blue = [(r + g) / 2 - b for r, g, b in zip(red, green, blue, strict=True)]
    red_green = [r - g for r, g in zip(red, green, strict=True)]
    l_dc, l_ac, l_scale = _frequencies(lightness, width, height, max(3, across), max(3, down))
    p_dc, p_ac, p_scale = _frequencies(yellow_blue, width, height, 3, 3)
    q_dc, q_ac, q_scale = _frequencies(red_green, width, height, 3, 3)

    landscape = width > height
    first = _round(63 * l_dc) | _round(31.5 + 31.5 * p_dc) << 6 | _round(31.5 + 31.5 * q_dc) << 12
    first |= _round(31 * l_scale) << 18 | clear << 23
    second = (down if landscape else across) | _round(63 * p_scale) << 3 | _round(63 * q_scale) << 9 | landscape << 15
    head = first.to_bytes(3, "little") + second.to_bytes(2, "little")
    quarters = [*l_ac, *p_ac, *q_ac]
    if clear:
        a_dc, a_ac, a_scale = _frequencies(alpha, width, height, 5, 5)
        head += bytes([_round(15 * a_dc) | _round(15 * a_scale) << 4])
        quarters += a_ac
    levels = [_round(15 * value) for value in quarters]
    levels += [0] * (len(levels) % 2)
    return head + bytes(low | high << 4 for low, high in zip(levels[::2], levels[1::2], strict=True))


def _on_average(channel: Sequence[float], alpha: Sequence[float], visible: float) -> list[float]:
    """The channel on a background of the picture's own average colour."""
    average = sum(map(mul, channel, alpha)) / visible if visible else 0.0
    return [average * (1 - a) + value * a for value, a in zip(channel, alpha, strict=True)]


def _frequencies(
    channel: Sequence[float], width: int, height: int, across: int, down: int
) -> tuple[float, list[float], float]:
    """Mean, the lowest frequencies (scaled to 0..1, those of a triangle) and their scale."""
    rows = [channel[at : at + width] for at in range(0, width * height, width)]
    # A cosine transform can be done along the rows and then along the columns.
    by_row = [[sum(map(mul, row, wave)) for row in rows] for wave in _waves(width, across)]
    area = width * height
    values = [
        sum(map(mul, by_row[x], _waves(height, down)[y])) / area
        for y in range(down)
        for x in range(across)
        if x * down < across * (down - y)
    ]
    mean, others = values[0], values[1:]
    scale = max(map(abs, others), default=0.0)
    if scale:
        others = [0.5 + 0.5 / scale * value for value in others]
    return mean, others, scale


@lru_cache(maxsize=256)
def _waves(length: int, count: int) -> list[list[float]]:
    return [[cos(pi / length * wave * (at + 0.5)) for at in range(length)] for wave in range(count)]


def _round(value: float) -> int:
    # Halves go up, as in the description's own code.
    return floor(value + 0.5)
