"""A photo of our own: nobody's copyright, and large enough to be worth a thumbnail."""

import math
import random
from io import BytesIO

from PIL import Image, ImageDraw, ImageFilter


def dusk(width: int = 3000, height: int = 2000, *, seed: int = 7, grain: float = 0.05) -> bytes:
    """Hills at dusk under a low sun, as a JPEG. With ``grain`` 0.3 a pixel costs as many bytes as a camera makes it."""
    chance = random.Random(seed)  # noqa: S311 -- draws a picture
    sky = Image.linear_gradient("L").resize((width, height))
    picture = Image.merge("RGB", [sky.point(_ramp(*ends)) for ends in ((38, 250), (44, 150), (92, 84))])
    draw = ImageDraw.Draw(picture)
    sun, radius = (width * 0.68, height * 0.55), height * 0.085
    for step in range(24, -1, -1):
        reach = radius * (1 + step * 0.09)
        glow = (255, min(255, 150 + (24 - step) * 4), min(255, 84 + (24 - step) * 5))
        draw.ellipse([sun[0] - reach, sun[1] - reach, sun[0] + reach, sun[1] + reach], fill=glow)
    for depth in range(5):
        draw.polygon(_ridge(width, height, depth, chance), fill=_shade(depth))
    picture = picture.filter(ImageFilter.GaussianBlur(width / 1500))
    noise = Image.effect_noise((width, height), 22)
    picture = Image.blend(picture, Image.merge("RGB", (noise, noise, noise)), grain)
    file = BytesIO()
    picture.save(file, "JPEG", quality=90)
    return file.getvalue()


def _ramp(low: int, high: int) -> list[int]:
    return [round(low + (high - low) * level / 255) for level in range(256)]


def _shade(depth: int) -> tuple[int, int, int]:
    return 96 - depth * 18, 62 - depth * 11, 92 - depth * 15


def _ridge(width: int, height: int, depth: int, chance: random.Random) -> list[tuple[float, float]]:
    waves = [(chance.uniform(0.6, 1.4) * 2 ** (n + depth / 2), chance.uniform(0, 7), 0.5**n) for n in range(5)]
    base = height * (0.6 + depth * 0.085)
    line = [
        (x, base - height * 0.07 * sum(a * math.sin(f * x / width * 4 + p) for f, p, a in waves))
        for x in range(0, width + 12, 12)
    ]
    return [(0, height), *line, (width + 12, height)]
