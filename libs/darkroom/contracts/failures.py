"""Why an asset fails. Apart from the events, so that a decoding process can name it without importing pydantic."""

from enum import StrEnum


class FailureCode(StrEnum):
    """The reason that an asset is FAILED for good. New codes may be added; treat an unknown one as permanent."""

    EMPTY_OBJECT = "empty_object"
    """The original has no bytes."""
    OBJECT_MISSING = "object_missing"
    """The original is not in the bucket, also after retries."""
    TOO_LARGE = "too_large"
    """The original has more bytes than the service accepts."""
    SIZE_MISMATCH = "size_mismatch"
    """The original has another number of bytes than was declared at registration."""
    CHECKSUM_MISMATCH = "checksum_mismatch"
    """The original's SHA-256 is not the one that was declared at registration."""
    UNSUPPORTED_FORMAT = "unsupported_format"
    """The content is not JPEG, PNG, WebP, GIF or AVIF, whatever the name says."""
    TOO_MANY_PIXELS = "too_many_pixels"
    """The picture is larger than the ceiling on pixels, on a side, or on the memory that decoding would take."""
    DECOMPRESSION_BOMB = "decompression_bomb"
    """Compressed metadata (text or colour profile) that would expand beyond its bound."""
    CORRUPT_OR_TRUNCATED = "corrupt_or_truncated"
    """The format is accepted but the file cannot be decoded to its end. That includes a JPEG without its end marker."""
    DECODE_TIMEOUT = "decode_timeout"
    """Decoding took more CPU seconds or more time than allowed, or is made to: a JPEG with hundreds of scans."""
    DECODER_CRASHED = "decoder_crashed"
    """The decoding process died twice on this picture."""
    RETRIES_EXHAUSTED = "retries_exhausted"
    """Every attempt failed for a reason that could have been temporary."""
