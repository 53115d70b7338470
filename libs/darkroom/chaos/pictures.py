"""Small pictures that are made in a moment: good ones in three formats, and broken ones."""

import random
from dataclasses import dataclass
from io import BytesIO

from PIL import Image

FORMATS = (("JPEG", "jpg", "image/jpeg"), ("PNG", "png", "image/png"), ("WEBP", "webp", "image/webp"))
TRUNCATED = 3
"""The part of its bytes that a broken picture keeps: one third."""


@dataclass(frozen=True)
class Picture:
    """A file to upload, and whether it can become READY."""

    filename: str
    content_type: str
    data: bytes
    good: bool


def make(chance: random.Random, *, good: bool) -> Picture:
    """A picture of 60 to 600 pixels a side. A broken one is a JPEG whose end is missing."""
    form, suffix, content_type = chance.choice(FORMATS) if good else FORMATS[0]
    size = (chance.randrange(60, 600), chance.randrange(60, 600))
    colours = [tuple(chance.randrange(256) for _ in range(3)) for _ in range(2)]
    image = Image.new("RGB", size, colours[0])
    image.paste(Image.new("RGB", (size[0] // 2, size[1] // 2), colours[1]), (size[0] // 4, size[1] // 4))
    file = BytesIO()
    image.save(file, form)
    data = file.getvalue()
    return Picture(f"picture.{suffix}", content_type, data if good else data[: len(data) // TRUNCATED], good)
