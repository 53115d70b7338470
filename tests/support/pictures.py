"""Small pictures that tests make themselves: every format, every kind of trouble."""

import struct
import zlib
from io import BytesIO

import pillow_heif
from PIL import Image, ImageCms, ImageDraw

RED, GREEN, BLUE, WHITE = (220, 30, 30), (30, 160, 40), (40, 60, 210), (255, 255, 255)
CORNERS = (RED, GREEN, BLUE, WHITE)
"""Top left, top right, bottom left, bottom right of `quarters`."""


def quarters(width: int = 64, height: int = 40, mode: str = "RGB") -> Image.Image:
    """Four plain quarters of known colours, so that a turned picture is told from an upright one."""
    image = Image.new("RGB", (width, height))
    for at, colour in enumerate(CORNERS):
        left, top = (at % 2) * (width // 2), (at // 2) * (height // 2)
        image.paste(colour, (left, top, left + width - width // 2, top + height - height // 2))
    return image.convert(mode)


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    """The image as a file of Pillow's format name `form`."""
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def jpeg(width: int = 64, height: int = 40, **options: object) -> bytes:
    return encoded(quarters(width, height), "JPEG", **{"quality": 92, "subsampling": 0, **options})


def photo_jpeg(width: int = 4000, height: int = 3000, quality: int = 90) -> bytes:
    """Gradients, blurs and grain: decodes and compresses about as a photograph does (12 megapixels: 3 MB)."""
    planes = (
        Image.effect_noise((width // 16 + 1, height // 16 + 1), 90).resize((width, height)),
        Image.effect_noise((width // 40 + 1, height // 40 + 1), 120).resize((width, height)),
        Image.radial_gradient("L").resize((width, height)),
    )
    grain = Image.effect_noise((width, height), 14)
    photo = Image.blend(Image.merge("RGB", planes), Image.merge("RGB", (grain, grain, grain)), 0.25)
    return encoded(photo, "JPEG", quality=quality)


def all_formats(width: int = 64, height: int = 40) -> dict[str, bytes]:
    """The same picture in each accepted format."""
    image = quarters(width, height)
    return {
        "jpeg": jpeg(width, height),
        "png": encoded(image, "PNG"),
        "webp": encoded(image, "WEBP", quality=90),
        "gif": encoded(image, "GIF"),
        "avif": encoded(image, "AVIF", quality=90),
    }


def heic(image: Image.Image, **options: object) -> bytes:
    """The image as a phone would send it."""
    file = BytesIO()
    pillow_heif.from_pillow(image).save(file, **{"quality": 90, **options})
    return file.getvalue()


def oriented_exif(orientation: int, *, gps: bool = False) -> bytes:
    """An EXIF block with an orientation, a camera maker and, if asked, a position."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "SecretCameraMaker"
    if gps:
        exif.get_ifd(0x8825).update({1: "N", 2: (52.0, 30.0, 0.0), 3: "E", 4: (13.0, 24.0, 0.0)})
    return exif.tobytes()


def stored_for(upright: Image.Image, orientation: int) -> Image.Image:
    """The pixels that a camera stores so that a viewer who applies `orientation` sees `upright`."""
    inverse = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }.get(orientation)
    return upright if inverse is None else upright.transpose(inverse)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *, bits: int = 8, colour: int = 0, rows: bytes = b"", extra: bytes = b"") -> bytes:
    """A PNG by hand: `rows` are the filtered scanlines, `extra` chunks stand before them."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + extra
        + png_chunk(b"IDAT", zlib.compress(rows, 9))
        + png_chunk(b"IEND", b"")
    )


def pixel_bomb(side: int = 12_000) -> bytes:
    """One bit a pixel, a few kilobytes, `side` squared pixels."""
    return png(side, side, bits=1, rows=bytes((side + 7) // 8 + 1) * side)


def grey16_ramp(width: int = 256, height: int = 16, *, transparent: int | None = None) -> bytes:
    """16-bit grey from black to white, perhaps with one transparent level."""
    row = b"\0" + b"".join(struct.pack(">H", at * 65_535 // (width - 1)) for at in range(width))
    extra = b"" if transparent is None else png_chunk(b"tRNS", struct.pack(">H", transparent))
    return png(width, height, bits=16, rows=row * height, extra=extra)


def text_bomb(megabytes: int = 3) -> bytes:
    """A zTXt chunk that expands a thousandfold."""
    body = b"Comment\0\0" + zlib.compress(bytes(megabytes * 2**20), 9)
    return png(1, 1, rows=b"\0\0", extra=png_chunk(b"zTXt", body))


def profile_bomb(megabytes: int = 3) -> bytes:
    """A colour profile that expands a thousandfold."""
    body = b"icc\0\0" + zlib.compress(bytes(megabytes * 2**20), 9)
    return png(1, 1, rows=b"\0\0", extra=png_chunk(b"iCCP", body))


def many_scans_jpeg(width: int = 4000, height: int = 4000, scans: int = 5_000) -> bytes:
    """A small progressive grey JPEG whose decoder walks all pixels once for each of its empty scans: a CPU bomb."""
    plain = encoded(Image.new("L", (width, height), 128), "JPEG", progressive=True, quality=50)
    end = plain.rindex(b"\xff\xd9")
    last = plain.rindex(b"\xff\xda", 0, end)
    # The last scan refines a bit that is zero everywhere, so it can be said again and again.
    return plain[:end] + plain[last:end] * scans + b"\xff\xd9"


def wide_gamut_jpeg(colour: tuple[int, int, int] = (200, 100, 50), size: tuple[int, int] = (64, 48)) -> bytes:
    """A plain colour in a profile whose red and green are swapped primaries, so that ignoring it is plainly visible."""
    return encoded(Image.new("RGB", size, colour), "JPEG", quality=95, subsampling=0, icc_profile=swapped_profile())


def srgb_profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def swapped_profile() -> bytes:
    """sRGB with its red and green primaries exchanged: a right conversion exchanges the two channels."""
    profile = bytearray(srgb_profile())
    (count,) = struct.unpack_from(">I", profile, 128)
    entries = {bytes(profile[132 + 12 * at : 136 + 12 * at]): 132 + 12 * at for at in range(count)}
    red, green = entries[b"rXYZ"], entries[b"gXYZ"]
    profile[red : red + 4], profile[green : green + 4] = b"gXYZ", b"rXYZ"
    return bytes(profile)


def with_segment(file: bytes, marker: int, body: bytes) -> bytes:
    """A JPEG with one more segment right behind its start marker."""
    return file[:2] + bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body + file[2:]


def drawing(width: int = 600, height: int = 400) -> Image.Image:
    """A chart: plain areas, sharp edges, few colours."""
    image = Image.new("RGB", (width, height), WHITE)
    draw = ImageDraw.Draw(image)
    for at, colour in enumerate((RED, GREEN, BLUE)):
        draw.rectangle((80 + 150 * at, 350 - 90 * (at + 1), 180 + 150 * at, 350), fill=colour)
    draw.text((80, 20), "Sales by quarter", fill=(0, 0, 0), font_size=28)
    return image
