"""Which decoder a file gets, by its content.

The decoders are named here one by one and called directly. Pillow's `Image.open` and its registry are not used, so no
input can reach a reader that is not in this list (EPS, SVG, PDF, TIFF, ...). HEIC, which phones send, is in it where
pillow-heif is installed (the extra `heic`).
"""

import importlib.util
from functools import cache
from io import BytesIO

from PIL import ImageFile, _avif
from PIL.AvifImagePlugin import AvifImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from processor.imaging.rendition import SourceFormat

# Those of still pictures and bursts coded with HEVC. A file that says no more than "mif1" may hold anything.
_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class _Jpeg(JpegImageFile):
    """JPEG, and the first picture of a multi-picture file (MPO), which starts as a plain JPEG."""

    def _read_dpi_from_exif(self) -> None:
        """The resolution is not needed, and Pillow fails a good picture over some kinds of broken EXIF here."""


class _Avif(AvifImageFile):
    """AVIF. Pillow fails a good picture over broken EXIF when it opens one, so EXIF is left out.

    Nothing is lost: in AVIF the properties irot and imir alone say how a picture is turned, whatever its EXIF says.
    """

    def _open(self) -> None:
        if self.fp is None:
            raise ValueError("an AVIF picture is read from a file object")
        # One thread: the pool's size decides how many cores are used, and each thread costs memory under the limit.
        self._decoder = _avif.AvifDecoder(self.fp.read(), "auto", 1)
        self._size, self.n_frames, self._mode, icc_profile, exif, self.orientation, xmp = self._decoder.get_info()
        self.metadata_bytes = sum(len(block) for block in (icc_profile, exif, xmp) if block)
        self.is_animated = self.n_frames > 1
        if icc_profile:
            self.info["icc_profile"] = icc_profile
        self.seek(0)


@cache
def _heic() -> type[ImageFile.ImageFile] | None:
    """The reader of HEIC, or None where pillow-heif is not installed. libheif turns the picture while it decodes."""
    if importlib.util.find_spec("pillow_heif") is None:
        return None
    from pillow_heif import HeifImageFile, options

    # As with AVIF: one thread a picture.
    options.DECODE_THREADS = 1

    class _Heic(HeifImageFile):  # type: ignore[misc,unused-ignore]
        # Already applied: as in AVIF, irot and imir alone say how a picture is turned, whatever its EXIF says.
        orientation = 1

        def _open(self) -> None:
            super()._open()  # type: ignore[no-untyped-call]
            blocks = [self.info.get(name) for name in ("exif", "xmp", "icc_profile")]
            blocks += [block.get("data") for block in self.info.get("metadata", [])]
            self.metadata_bytes = sum(len(block) for block in blocks if block)

    return _Heic


def load_optional() -> bool:
    """Import what is imported only where it is installed. Returns whether HEIC can be read."""
    return _heic() is not None


_DECODERS: dict[SourceFormat, type[ImageFile.ImageFile]] = {
    SourceFormat.JPEG: _Jpeg,
    SourceFormat.PNG: PngImageFile,
    SourceFormat.WEBP: WebPImageFile,
    SourceFormat.GIF: GifImageFile,
    SourceFormat.AVIF: _Avif,
}


def sniff(data: bytes) -> SourceFormat | None:
    """The format by the first bytes, or None when it is none of the accepted ones."""
    if data.startswith(b"\xff\xd8\xff"):
        return SourceFormat.JPEG
    if data.startswith(PNG_SIGNATURE):
        return SourceFormat.PNG
    if data.startswith((b"GIF87a", b"GIF89a")):
        return SourceFormat.GIF
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return SourceFormat.WEBP
    brands = _brands(data)
    if brands & {b"avif", b"avis"}:
        return SourceFormat.AVIF
    if brands & _HEIC_BRANDS:
        return SourceFormat.HEIC
    return None


def _brands(data: bytes) -> set[bytes]:
    """What the file type box names; AVIF and HEIC have the same box with other brands."""
    if data[4:8] != b"ftyp":
        return set()
    box = data[: min(int.from_bytes(data[:4], "big"), 256)]
    return {box[8:12], *(box[at : at + 4] for at in range(16, len(box), 4))}


def readable(source: SourceFormat) -> bool:
    """Whether this installation has the format's decoder."""
    return source in _DECODERS or _heic() is not None


def declared_size(source: SourceFormat, data: bytes) -> tuple[int, int] | None:
    """Width and height where they stand at a fixed place, read without any decoder; None where they do not."""
    if source is SourceFormat.PNG and data[12:16] == b"IHDR" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if source is SourceFormat.GIF and len(data) >= 10:
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if source is SourceFormat.WEBP and len(data) >= 30:
        return _webp_size(data)
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8 ":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
        case _:
            return None


def open_picture(source: SourceFormat, data: bytes) -> ImageFile.ImageFile:
    """Read the header with the format's own decoder. Raises whatever Pillow raises on broken input."""
    reader = _heic() if source is SourceFormat.HEIC else _DECODERS[source]
    if reader is None:
        raise ValueError("HEIC is not readable here")
    return reader(BytesIO(data))
