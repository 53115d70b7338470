"""Takes secrets out of what is about to be logged: the second line of defence, behind not logging them.

Three things are looked for: fields whose name says that they hold a secret; texts of a secret's form, wherever they are
(tokens, signatures, signed URLs, passwords in URLs); and the very values that this process was given as its secrets.
"""

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

HIDDEN = "[redacted]"
LEAST = 6
"""Characters from which a given secret is looked for; a shorter one would take ordinary words out."""
SHORTEST_KEPT = 4
"""Characters of an idempotency key that are shown, so that lines of one client can be told apart."""

_SECRET_NAMES = re.compile(
    r"authorization|cookie|password|passwd|secret|credential|signature|api[-_]?key|private[-_]?key"
    r"|(?:^|[-_.])(?:token|sas|saslpassword|jwt|access_?token|id_?token|security-token|session_?token|policy)$",
    re.IGNORECASE,
)
_IDEMPOTENCY = re.compile(r"idempotency[-_]?key", re.IGNORECASE)

_QUOTE = r"(?:\\*[\"']|%22|&quot;)?"
_FORMS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # A URL's query as a whole: of a signed one every parameter matters, and none is needed to find a request.
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s\"'<>?\\]*)\?[^\s\"'<>\\]+", re.IGNORECASE), rf"\1?{HIDDEN}"),
    # And where the URL is itself a parameter, or no scheme stands before it.
    (
        re.compile(
            r"((?:X-Amz-(?:Signature|Credential|Security-Token)|Signature|Policy|Key-Pair-Id|AWSAccessKeyId"
            r"|access_token|id_token|token|sig)(?:=|%3D|%253D))(?!\[)[^\s&\"'<>,;\\%]+(?:%(?!26)[0-9A-F]{2}[^\s&\"'<>,;\\%]*)*",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(://)[^\s/@\"']+@"), rf"\1{HIDDEN}@"),
    (re.compile(r"%3A%2F%2F[^\s/@\"']+?%40", re.IGNORECASE), f"%3A%2F%2F{HIDDEN}%40"),
    # JSON Web Tokens, whole or cut off.
    (re.compile(r"eyJ[\w-]{6,}(?:(?:\.|%2E)[\w-]*){0,4}"), HIDDEN),
    (re.compile(r"\b(Bearer|Basic)(\s+|%20|\+)(?!\[)[^\s\"',\\]+", re.IGNORECASE), rf"\1\2{HIDDEN}"),
    (re.compile(r"whsec_[\w+/=-]+"), HIDDEN),
    (re.compile(r"\bv1a?,[A-Za-z0-9+/=_-]{20,}"), HIDDEN),
    # What botocore tells of its signing at DEBUG.
    (re.compile(r"(Signature:\s+)[0-9a-f]{64}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"(x-amz-security-token\s*[:=]\s*)[^\s\"',\\]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), HIDDEN),
    # The same of many at once, as a query asks for them; pymongo cuts what is long.
    (
        re.compile(
            rf"({_QUOTE}\bidempotency[-_]?key\b{_QUOTE}\s*:\s*)\{{\s*{_QUOTE}\$in{_QUOTE}\s*:\s*\[.*?(?:\]\s*\}}|$)",
            re.IGNORECASE | re.DOTALL,
        ),
        rf"\1{HIDDEN}",
    ),
    # Fields inside a text, such as a command that pymongo shows, or the headers of a request.
    (
        re.compile(
            rf"({_QUOTE}\b(?:idempotency[-_]?key|authorization|password|secret|token|sasl\.password|payload|signature)\b"
            rf"{_QUOTE}\s*[:=]\s*b?{_QUOTE})(?!\[|{{)[^\s\"'\\,}})]+",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
)
_HINT = re.compile(
    r"://|=|%3|eyj|bearer|basic|whsec_|v1a?,|private key"
    r"|signature|token|secret|password|idempotency|authorization|payload"
)
"""In lower case, what is in whatever has any of the forms: most texts have none of it, and looking costs little."""


class Redactor:
    """Hides secrets. ``secrets`` are those of this process. Thread-safe."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _written(secret) if len(form) >= LEAST}
        # Longest first: a secret may begin like another one.
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        self._given = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def fields(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """The same fields, with what is secret hidden, at any depth."""
        return {str(name): self._field(str(name), value) for name, value in event.items()}

    def text(self, text: str) -> str:
        """The same text, with what is secret hidden."""
        if self._given is not None:
            text = self._given.sub(HIDDEN, text)
        if _HINT.search(text.lower()):
            for pattern, instead in _FORMS:
                text = pattern.sub(instead, text)
        return text

    def _field(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float)):
            return value
        of_a_key, secret = _told_by(name)
        if of_a_key and isinstance(value, str):
            return f"{value[:SHORTEST_KEPT]}…" if len(value) > 4 * SHORTEST_KEPT else HIDDEN
        if secret:
            return HIDDEN
        return self.text(value) if isinstance(value, str) else self._value(value)

    def _value(self, value: Any) -> Any:
        match value:
            case bool() | int() | float() | None:
                return value
            case str():
                return self.text(value)
            case Mapping():
                # Here names may be anybody's data, too.
                return {self.text(name): one for name, one in self.fields(value).items()}
            case list() | tuple() | set() | frozenset():
                return [self._value(one) for one in value]
            case bytes() | bytearray():
                return self.text(bytes(value).decode(errors="backslashreplace"))
            case _:
                return self.text(str(value))


@lru_cache(maxsize=1024)
def _told_by(name: str) -> tuple[bool, bool]:
    """Whether a field's name says that it holds an idempotency key, or a secret. The names of a log are few."""
    return _IDEMPOTENCY.search(name) is not None, _SECRET_NAMES.search(name) is not None


def secrets_in(settings: Mapping[str, Any], environment: Mapping[str, str]) -> set[str]:
    """What of a process's settings and environment must never be logged.

    ``settings`` are by name; those of a type with ``get_secret_value`` are secrets, of a URL among them its password.
    """
    found = {environment[name] for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN") if environment.get(name)}
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        found |= {unquote(header.partition("=")[2]).strip() for header in environment.get(name, "").split(",")}
    for name, value in settings.items():
        if hasattr(value, "get_secret_value"):
            found |= _of(str(value.get_secret_value()))
        elif isinstance(value, Mapping):
            found |= {str(one) for key, one in value.items() if _SECRET_NAMES.search(str(key))}
        elif _SECRET_NAMES.search(name) and isinstance(value, str):
            found.add(value)
    return found


def _of(secret: str) -> set[str]:
    if "://" not in secret:
        return {secret}
    try:
        password = urlsplit(secret).password
    except ValueError:
        return {secret}
    # The address itself helps whoever reads the log.
    return set() if password is None else {password, unquote(password)}


def _written(secret: str) -> set[str]:
    """The ways in which a text is written into URLs, JSON and Basic authorization."""
    bare = secret.removeprefix("whsec_")
    once = {secret, bare, quote(secret, safe=""), quote_plus(secret), quote(secret), secret.replace('"', '\\"')}
    encoded = {base64.b64encode(secret.encode()).decode(), base64.urlsafe_b64encode(secret.encode()).decode()}
    return once | encoded | {quote(form, safe="") for form in once | encoded}
