"""What is asked of a picture and what is given back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class SourceFormat(StrEnum):
    """What a picture is by its content."""

    JPEG = "jpeg"
    PNG = "png"
    WEBP = "webp"
    GIF = "gif"
    AVIF = "avif"
    HEIC = "heic"


class OutputFormat(StrEnum):
    """What a rendition is encoded as."""

    JPEG = "jpeg"
    WEBP = "webp"
    AVIF = "avif"

    @property
    def content_type(self) -> str:
        return f"image/{self.value}"

    @property
    def extension(self) -> str:
        return "jpg" if self is OutputFormat.JPEG else self.value


class Fit(StrEnum):
    """How a picture meets its box."""

    CONTAIN = "contain"
    """All of the picture, within the box: one side may be shorter than the box's."""
    COVER = "cover"
    """All of the box is filled: the middle of the picture, cropped to the box's aspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenditionSpec:
    """One rendition: the picture scaled, its aspect kept, to meet `box` (width, height in pixels) as `fit` says.

    A smaller picture keeps its size unless `enlarge`. `background` (sRGB) shows where JPEG cannot be transparent.
    """

    name: str
    box: tuple[int, int]
    fit: Fit = Fit.CONTAIN
    format: OutputFormat = OutputFormat.JPEG
    quality: int = 82
    background: tuple[int, int, int] = (255, 255, 255)
    enlarge: bool = False

    def __post_init__(self) -> None:
        # 16383 is the longest side that WebP can hold.
        if not all(1 <= side <= 16_383 for side in self.box):
            raise ValueError(f"rendition {self.name!r}: box must be 1 to 16383 pixels a side, not {self.box}")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"rendition {self.name!r}: quality must be 1 to 100, not {self.quality}")
        if not all(0 <= level <= 255 for level in self.background):
            raise ValueError(
                f"rendition {self.name!r}: background must be three levels 0 to 255, not {self.background}"
            )

    def scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        """What all of a picture of `size` measures at this rendition's scale, before a crop; no side is ever 0."""
        choose = min if self.fit is Fit.CONTAIN else max
        scale = choose(self.box[0] / size[0], self.box[1] / size[1])
        if scale >= 1 and not self.enlarge:
            return size
        return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))

    def target(self, size: tuple[int, int]) -> tuple[int, int]:
        """The rendition's size for a picture of `size`; no side is ever 0."""
        width, height = self.scaled(size)
        return min(width, self.box[0]), min(height, self.box[1])


def default_specs(output: OutputFormat = OutputFormat.JPEG) -> tuple[RenditionSpec, ...]:
    """`thumb` fits 256 x 256, `preview` fits 1024 x 1024."""
    return (
        RenditionSpec(name="thumb", box=(256, 256), format=output),
        RenditionSpec(name="preview", box=(1024, 1024), format=output),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ceilings that a picture's header is held against before a pixel is decoded."""

    max_pixels: int = 100_000_000
    max_side: int = 65_535
    max_frames: int = 10_000
    max_metadata_bytes: int = 16 * 2**20
    """EXIF, XMP, colour profiles, comments and unknown blocks together."""
    max_scans: int = 100
    """Scans of a JPEG. Encoders write about ten; thousands of empty ones cost seconds of CPU each megabyte."""
    max_decode_bytes: int = 1_280 * 2**20
    """Memory that decoding may take, by an estimate from format and size; keep it below the child's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenditionBytes:
    """One encoded rendition. It was decoded back and has this size."""

    name: str
    content_type: str
    extension: str
    width: int
    height: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The original as a viewer sees it (size after orientation) and its renditions in the order they were asked for."""

    format: SourceFormat
    width: int
    height: int
    renditions: tuple[RenditionBytes, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    """What was seen in the pixels; see `labels`."""
