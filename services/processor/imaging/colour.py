"""Every kind of pixel becomes sRGB: grey (L, LA) or colour (RGB, RGBA), eight bits a channel."""

import contextlib
from io import BytesIO

from PIL import Image, ImageCms

# 16 bits to 8, rounded; and the same with everything else than one value opaque.
_HIGH_BYTE = [(value * 255 + 32_767) // 65_535 for value in range(65_536)]


def resizable(image: Image.Image) -> Image.Image:
    """The image in a mode whose pixels can be averaged: L, LA, RGB, RGBA or CMYK."""
    transparency = image.info.get("transparency")
    match image.mode:
        case "L" | "RGB" | "1" if transparency is not None:
            return _keyed_out(image, transparency)
        case "L" | "LA" | "RGB" | "RGBA" | "CMYK":
            return image
        case "1":
            return image.convert("L")
        case "I" | "I;16" | "I;16B" | "I;16L":
            return _from_16_bits(image, transparency)
        case "P" if transparency is None and image.palette is not None and image.palette.mode == "RGB":
            return image.convert("RGB")
        case _:
            return image.convert("RGBA")


def _keyed_out(image: Image.Image, transparency: int | tuple[int, ...]) -> Image.Image:
    """One colour of the picture means transparent (PNG's tRNS)."""
    key = transparency if isinstance(transparency, tuple) else (transparency,)
    # Of 16 bits a channel Pillow kept the high byte of the pixels, but not of the key.
    if max(key) > 255:
        key = tuple(level >> 8 for level in key)
    image.info["transparency"] = key if image.mode == "RGB" else key[0]
    return image.convert("RGBA" if image.mode == "RGB" else "LA")


def _from_16_bits(image: Image.Image, transparency: int | None) -> Image.Image:
    """Scaled to 8 bits. (Pillow's own conversion clips, which makes nearly everything white.)"""
    wide = image if image.mode == "I" else image.convert("I")
    grey = wide.point(_HIGH_BYTE, "L")
    if transparency is None:
        return grey
    opaque = wide.point([0 if value == transparency else 255 for value in range(65_536)], "L")
    return Image.merge("LA", (grey, opaque))


def to_srgb(image: Image.Image, icc_profile: bytes | None) -> Image.Image:
    """Convert by the embedded profile; without one, or when it is broken or does not fit the pixels, sRGB holds."""
    if icc_profile:
        with contextlib.suppress(ImageCms.PyCMSError, OSError, ValueError, TypeError):
            return _by_profile(image, icc_profile)
    return image.convert("RGB") if image.mode == "CMYK" else image


def _by_profile(image: Image.Image, icc_profile: bytes) -> Image.Image:
    profile = ImageCms.ImageCmsProfile(BytesIO(icc_profile))
    space = profile.profile.xcolor_space.strip()
    grey = image.mode in ("L", "LA")
    if grey and space == "RGB":
        image = image.convert("RGB" if image.mode == "L" else "RGBA")
    expected = {"L": "GRAY", "LA": "GRAY", "CMYK": "CMYK"}.get(image.mode, "RGB")
    if space != expected:
        raise ValueError(f"a {space} profile on {image.mode} pixels")
    alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
    opaque = image if alpha is None else image.convert("L" if space == "GRAY" else "RGB")
    converted = ImageCms.profileToProfile(opaque, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    if converted is None:
        raise ValueError("no conversion came of the profile")
    if alpha is not None:
        converted.putalpha(alpha)
    if grey:
        return converted.convert("L" if alpha is None else "LA")
    return converted
