"""Parsing at the boundary: what a client sends becomes a normalised value or a problem that names the field."""

import base64
import binascii
import hashlib
import json
import re
import unicodedata
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from asset_api.problems import Problem, Problems, invalid

EXTENSIONS = {
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/webp": "webp",
    "image/gif": "gif",
    "image/avif": "avif",
    "image/heic": "heic",
    "image/heif": "heif",
}
"""Accepted content types, and the extension of the object that each is stored as. Whether a picture can be decoded is
for the processor to say; SVG is a document with scripts and no picture, so it is not taken at all."""

KEY_PATTERNS = (r"^[!#-~][!-~]{0,254}$", r'^"(?:[!#-\[\]-~]|\\["\\]){1,255}"$')
"""An Idempotency-Key as it is, and as a string of RFC 8941, in which a backslash is before each quote and backslash."""
_PLAIN, _QUOTED = (re.compile(pattern) for pattern in KEY_PATTERNS)
_ESCAPED = re.compile(r'\\(["\\])')
_SHA256_BYTES = 32
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)
_REFUSED_CATEGORIES = {"Cc": "a control character", "Zl": "a line separator", "Zp": "a paragraph separator"}
# They turn the order in which a name is shown, so that it seems to end otherwise than it does.
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
MAX_NAME_CHARACTERS = 255
MAX_REFERENCE_CHARACTERS = 128
MAX_METADATA_ENTRIES = 16
MAX_METADATA_CHARACTERS = 256
METADATA_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,39}$"
_METADATA_NAME = re.compile(METADATA_NAME_PATTERN)

# The rules below once more, as the description tells them; that both say the same is what schemathesis looks for.
_UNSEEN = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
_WIDTHLESS = r"\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
_ANY, _SEEN = rf"[^{_UNSEEN}/\\]", rf"[^{_UNSEEN}{_WIDTHLESS}/\\\s.]"
_NOTHING_SEEN = re.compile(rf"[{_WIDTHLESS}\s.]*")
FILENAME_SCHEMA: dict[str, Any] = {"maxLength": MAX_NAME_CHARACTERS, "pattern": f"^{_ANY}*{_SEEN}{_ANY}*$"}
REFERENCE_SCHEMA: dict[str, Any] = {
    "minLength": 1,
    "maxLength": MAX_REFERENCE_CHARACTERS,
    "pattern": rf"^[^{_UNSEEN}\s]([^{_UNSEEN}]*[^{_UNSEEN}\s])?$",
}
# Of the last digit two bits are left over, and are none.
CHECKSUM_SCHEMA: dict[str, Any] = {"pattern": "^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$"}
METADATA_SCHEMA: dict[str, Any] = {
    "maxProperties": MAX_METADATA_ENTRIES,
    "propertyNames": {"pattern": METADATA_NAME_PATTERN},
    "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_CHARACTERS, "pattern": r"^[^\x00]*$"},
}


class UploadRequest(BaseModel):
    """What ``POST /assets`` takes: the upload that is wanted. ``size`` in bytes; the checksum in base64."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    filename: Annotated[
        str,
        Field(
            description="the file's name, without a path", examples=["holiday.jpg"], json_schema_extra=FILENAME_SCHEMA
        ),
    ]
    content_type: Annotated[
        str,
        Field(
            description="what the bytes are; in upper case as well",
            examples=["image/jpeg"],
            json_schema_extra={"enum": list(EXTENSIONS)},
        ),
    ]
    size: Annotated[int, Field(description="exact number of bytes that will be uploaded", ge=1, examples=[48213])]
    checksum_sha256: Annotated[
        Annotated[str, Field(json_schema_extra=CHECKSUM_SCHEMA)] | None,
        Field(description="SHA-256 of the bytes in base64; checked by S3 when given"),
    ] = None
    reference: Annotated[
        Annotated[str, Field(json_schema_extra=REFERENCE_SCHEMA)] | None,
        Field(description="your own id of what this belongs to; assets can be listed by it", examples=["order-4711"]),
    ] = None
    metadata: Annotated[
        Annotated[dict[str, str], Field(json_schema_extra=METADATA_SCHEMA)] | None,
        Field(description="a few short strings of your own, given back as they are"),
    ] = None

    @field_validator("filename")
    @classmethod
    def _filename(cls, given: str) -> str:
        name = _text(given, longest=MAX_NAME_CHARACTERS)
        if "/" in name or "\\" in name:
            raise ValueError("must be a name without a path; leave out / and \\")
        if _NOTHING_SEEN.fullmatch(name):
            raise ValueError("must be a file's name, not blanks, dots or characters without width alone")
        return name

    @field_validator("reference")
    @classmethod
    def _reference(cls, given: str | None) -> str | None:
        return None if given is None else parse_reference(given)

    @field_validator("metadata")
    @classmethod
    def _metadata(cls, given: dict[str, str] | None) -> dict[str, str] | None:
        if not given:
            return None
        if len(given) > MAX_METADATA_ENTRIES:
            raise ValueError(f"must have at most {MAX_METADATA_ENTRIES} entries, not {len(given)}")
        for name, value in given.items():
            if not _METADATA_NAME.fullmatch(name):
                raise ValueError("each name must be a letter and up to 39 letters, digits, - and _")
            if len(value) > MAX_METADATA_CHARACTERS:
                raise ValueError(f"{name} must have at most {MAX_METADATA_CHARACTERS} characters, not {len(value)}")
            if "\0" in value:
                raise ValueError(f"{name} contains a control character (U+0000)")
        return given

    @field_validator("content_type")
    @classmethod
    def _content_type(cls, given: str) -> str:
        media_type = given.lower()
        if media_type not in EXTENSIONS:
            raise ValueError("must be one of " + ", ".join(EXTENSIONS))
        return media_type

    @field_validator("size", mode="before")
    @classmethod
    def _whole(cls, given: object) -> object:
        # To JSON 4.0 is the integer 4, and some clients write it so.
        return int(given) if isinstance(given, float) and given.is_integer() else given

    @field_validator("size")
    @classmethod
    def _size(cls, given: int, info: ValidationInfo) -> int:
        limit = (info.context or {}).get("max_upload_bytes")
        if limit is not None and given > limit:
            raise ValueError(f"must be at most {limit} bytes")
        return given

    @field_validator("checksum_sha256")
    @classmethod
    def _checksum(cls, given: str | None) -> str | None:
        if given is None:
            return None
        try:
            digest = base64.b64decode(given, validate=True)
        except (binascii.Error, ValueError):
            digest = b""
        # Compared with its own encoding, so that one digest has one spelling in the fingerprint and the signature.
        if len(digest) != _SHA256_BYTES or base64.b64encode(digest).decode() != given:
            raise ValueError("must be a SHA-256 digest, 32 bytes in base64")
        return given


def _text(given: str, *, longest: int) -> str:
    """Normalised text of one line that is shown as it is read."""
    if len(given) > 4 * longest:  # before it is normalised, which takes its time
        raise ValueError(f"must have 1 to {longest} characters, not {len(given)}")
    text = unicodedata.normalize("NFC", given)
    if not 1 <= len(text) <= longest:
        raise ValueError(f"must have 1 to {longest} characters, not {len(text)}")
    for character in text:
        reason = _REFUSED_CATEGORIES.get(unicodedata.category(character))
        if character in _DIRECTIONS:
            reason = "a character that turns the direction of writing"
        if reason:
            raise ValueError(f"contains {reason} (U+{ord(character):04X})")
    return text


def parse_upload(body: bytes, *, max_upload_bytes: int) -> UploadRequest:
    """Read the body of ``POST /assets``.

    Raises:
        Problem: 400 when it is no JSON, 422 naming each field that breaks a rule.

    """
    try:
        return UploadRequest.model_validate_json(body, context={"max_upload_bytes": max_upload_bytes})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        if found[0]["type"] == "json_invalid":
            raise Problem(Problems.MALFORMED_BODY, "The body must be one JSON object in UTF-8.") from None
        errors = [
            {
                "field": ".".join(str(part) for part in one["loc"])[:100] or "body",
                "message": _message(one["type"], one["msg"]),
            }
            for one in found
        ]
        raise invalid(errors) from None


def parse_reference(given: str) -> str:
    """A reference, normalised.

    Raises:
        ValueError: it is empty, too long or has characters that cannot be seen.

    """
    reference = _text(given, longest=MAX_REFERENCE_CHARACTERS)
    if reference != reference.strip():
        raise ValueError("must not begin or end with a blank")
    return reference


def parse_idempotency_key(fields: list[str]) -> str:
    """The key out of the header fields of that name: opaque, case-sensitive; ``"abc"`` and ``abc`` are the same key.

    Raises:
        Problem: 400 when there is none, more than one, or one that is not 1 to 255 visible ASCII characters.

    """
    if not fields:
        raise Problem(
            Problems.MISSING_KEY,
            "Send an Idempotency-Key header: a new random value for each upload, the same value for each retry.",
        )
    if len(fields) > 1:
        raise Problem(Problems.INVALID_KEY, "There are several Idempotency-Key headers; send one.")
    key = fields[0].strip(" \t")
    if _QUOTED.fullmatch(key):
        return _ESCAPED.sub(r"\1", key[1:-1])
    if not _PLAIN.fullmatch(key):
        raise Problem(
            Problems.INVALID_KEY,
            "The Idempotency-Key must be 1 to 255 visible ASCII characters; if it begins with a quotation mark, "
            "it must be quoted.",
        )
    return key


def fingerprint(wanted: UploadRequest) -> str:
    """SHA-256 in hex over the normalised request: order, blanks and absent fields of the JSON make no difference."""
    meaning = {"request": "POST /assets", **wanted.model_dump(exclude_none=True)}
    return hashlib.sha256(_CANONICAL.encode(meaning).encode()).hexdigest()


def object_key(asset_id: str, content_type: str) -> str:
    """Where the original of an asset is stored."""
    return f"assets/{asset_id}/original.{EXTENSIONS[content_type]}"


def _message(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "is not a field of this request; leave it out"
    return message.removeprefix("Value error, ")[:200]
