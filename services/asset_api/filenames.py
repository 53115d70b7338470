"""The name that a download is saved under. It came from a client, and goes into a header and onto somebody's disk."""

import re
import unicodedata
from urllib.parse import quote

EXTENSIONS: dict[str, tuple[str, ...]] = {
    "jpeg": ("jpg", "jpeg", "jpe", "jfif", "mpo"),
    "png": ("png", "apng"),
    "webp": ("webp",),
    "gif": ("gif",),
    "avif": ("avif",),
}
"""What a name may end with for each format; the first is the usual one."""

_LONGEST = 150
_NOT_ON_DISKS = re.compile(r'[<>:"/\\|?*%;]')
_UNRESERVED = "!#$&+-.^_`|~"  # attr-char of RFC 8187, besides letters and digits


def download_name(filename: str, *, format: str, rendition: str | None = None) -> str:  # noqa: A002 -- the asset's word
    """The original's name, or that of one of its renditions, with an extension that fits what the bytes are.

    ``holiday.html`` may be a good JPEG and a page with scripts at once; as ``holiday.html.jpg`` nobody opens it as one.
    """
    known = EXTENSIONS.get(format.lower(), (format.lower(),))
    # No system keeps blanks and dots at the end, and a dot at the start hides the file.
    name = filename.strip(" .") or "picture"
    stem, dot, extension = name.rpartition(".")
    fits = bool(dot) and extension.lower() in known
    if rendition is not None:
        known_original = bool(dot) and any(extension.lower() in names for names in EXTENSIONS.values())
        return f"{(stem if known_original else name)[:_LONGEST]}-{rendition}.{known[0]}"
    return f"{stem[:_LONGEST]}.{extension}" if fits else f"{name[:_LONGEST]}.{known[0]}"


def attachment(name: str) -> str:
    """The Content-Disposition (RFC 6266): the name for those who read RFC 8187, and one in ASCII for all others."""
    decomposed = unicodedata.normalize("NFKD", name)
    letters = "".join(one for one in decomposed if not unicodedata.combining(one))
    plain = _NOT_ON_DISKS.sub("_", re.sub(r"[^\x20-\x7e]", "_", letters))
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe=_UNRESERVED)}"
