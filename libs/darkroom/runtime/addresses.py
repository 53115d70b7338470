"""Origins and URLs as settings may name them: what nobody would ever send or reach is refused at the start, with why.

A value itself is never part of why, since a URL may carry a secret; of an origin it is.
"""

import re
import socket
import unicodedata
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address

PORTS = {"http": 80, "https": 443}

_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
_BLANK = re.compile(r"[\s\x00-\x20\x7f-\xa0]")
# Underscores are in no host's name by RFC 1123, and in those of Compose's services.
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_OTHER_DOTS = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})
_MOST_HOST = 253
_PROTOCOLS = frozenset({"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"})
"""Of Kafka; librdkafka takes them before a server, too."""


@dataclass(frozen=True)
class Address:
    """``scheme://[userinfo@]host[:port]rest``: scheme and host as browsers write them, port None for the scheme's."""

    scheme: str
    userinfo: str | None
    host: str
    port: int | None
    rest: str


def parse(text: str, *, only_http: bool = False) -> Address:
    """Take an address apart.

    Raises:
        ValueError: it is none. The message says why, in words that follow on "it".

    """
    if _BLANK.search(text):
        raise ValueError("has a blank or a control character in it: write it without")
    if (parts := _PARTS.fullmatch(text)) is None:
        raise ValueError("does not begin with a scheme: write it as https://HOST")
    scheme, authority, rest = parts[1].lower(), parts[2], parts[3]
    if only_http and scheme not in PORTS:
        raise ValueError("begins with neither http:// nor https://: write it as https://HOST")
    userinfo, at, place = authority.rpartition("@")
    host, colon, port = _host_and_port(place)
    if scheme in PORTS:
        host = canonical_host(host)
    elif not re.fullmatch(r"[A-Za-z0-9._-]+", host):
        # Of a scheme of an application's own it is any name, such as that of an extension.
        raise ValueError("has no host that is one: write a name of letters, digits, ., _ and - behind ://")
    number = None
    if colon:
        if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
            raise ValueError("has no port that is one: write 1 to 65535 behind the host, or nothing")
        number = None if int(port) == PORTS.get(scheme) else int(port)
    return Address(scheme, userinfo if at else None, host, number, rest)


def canonical_host(host: str) -> str:
    """A host as browsers write it: in lower case, as punycode, IPv4 with its four numbers, IPv6 in its shortest form.

    Raises:
        ValueError: it is none, see ``parse``.

    """
    if not host:
        raise ValueError("has no host: write it as https://HOST")
    if host.startswith("["):
        return _ipv6(host)
    if "*" in host:
        raise ValueError("has a * in its host: write each host by its name")
    labels = [_ascii(label) for label in unicodedata.normalize("NFKC", host.translate(_OTHER_DOTS)).lower().split(".")]
    # One dot at the end is the root of all names: such a host is another one for browsers, and found all the same.
    named = labels[:-1] if labels[-1] == "" and len(labels) > 1 else labels
    whole = ".".join(labels)
    if len(".".join(named)) > _MOST_HOST or not all(map(_is_label, named)):
        raise ValueError("has no host that is one: write labels of letters, digits, - and _, with dots between them")
    if _NUMBER.fullmatch(named[-1]):
        # What ends in a number is taken for IPv4 by everybody, in forms that few know.
        try:
            return socket.inet_ntoa(socket.inet_aton(".".join(named)))
        except OSError:
            raise ValueError("has a host that ends in a number and is no IPv4 address") from None
    return whole


def _host_and_port(place: str) -> tuple[str, str, str]:
    if place.startswith("["):
        host, bracket, behind = place.partition("]")
        if bracket and (not behind or behind.startswith(":")):
            return host + bracket, behind[:1], behind[1:]
        raise ValueError("has no IPv6 address that is one: write it as [ADDRESS], and the port behind it")
    return place.partition(":")


def _ipv6(host: str) -> str:
    try:
        # A zone (%eth0) is a matter of one machine: nothing that is sent has it.
        address = IPv6Address("" if "%" in host else host[1:-1])
    except AddressValueError:
        raise ValueError("has no IPv6 address that is one between its brackets") from None
    mapped = address.ipv4_mapped
    if mapped is None:
        return f"[{address.compressed}]"
    # Newer versions of Python write these with dots, and browsers do not.
    return f"[::ffff:{int(mapped) >> 16:x}:{int(mapped) & 0xFFFF:x}]"


def _ascii(label: str) -> str:
    return label if label.isascii() else f"xn--{label.encode('punycode').decode()}"


def _is_label(label: str) -> bool:
    if not _LABEL.fullmatch(label):
        return False
    if not label.startswith("xn--"):
        return True
    try:
        return not label[4:].encode().decode("punycode").isascii()
    except UnicodeError:
        return False


_NO_PAGES = {
    "null": "all sandboxed pages and all files send it, whosoever they are: serve the page by https",
    "file": "browsers send null for files, whosoever they are: serve the page by http://localhost:PORT",
    "ftp": "no page is shown from there",
    "ws": "an origin is the page's, not the connection's: write http://",
    "wss": "an origin is the page's, not the connection's: write https://",
    "data": "browsers send null for it",
    "blob": "the origin is the one of the page that made it",
}


def check_origin(origin: str) -> str:
    """The same, if it is what a browser sends as Origin, letter by letter: nothing else would ever match.

    Raises:
        ValueError: it is not; with what browsers send instead, or why it must not be allowed.

    """
    scheme = origin.partition(":")[0].lower()
    if scheme in _NO_PAGES:
        raise ValueError(f"{origin!r} is no origin to allow: {_NO_PAGES[scheme]}")
    if "*" in origin:
        raise ValueError(f"{origin!r} is no origin: write each one by its name, or * alone for every page there is")
    try:
        address = parse(origin)
    except ValueError as error:
        raise ValueError(f"{origin!r} is no origin: it {error}") from None
    sent = f"{address.scheme}://{address.host}" + ("" if address.port is None else f":{address.port}")
    if origin != sent:
        raise ValueError(f"{origin!r} is not what browsers send: write {sent}")
    return origin


def check_url(url: str, *, userinfo: bool = False, base: bool = False) -> str:
    """The same, if it is a URL of HTTP that can be asked.

    ``userinfo`` says whether name and password may stand before the host. ``base``: paths are put behind it.

    Raises:
        ValueError: it is not; with why and the fix, without the URL.

    """
    try:
        address = parse(url, only_http=True)
    except ValueError as error:
        raise ValueError(f"it {error}") from None
    if address.userinfo is not None and not userinfo:
        raise ValueError("it has a name or a password before its host, which logs would show: write it without")
    if "#" in address.rest:
        raise ValueError("it has a # in it, and what is behind that is never sent: write it without")
    if base and "?" in address.rest:
        raise ValueError("it has a ? in it, and paths are put behind it: write it without")
    return url


def check_bootstrap(servers: str) -> str:
    """The same, if it is a list of Kafka's servers as librdkafka takes it: ``[protocol://]host[:port]``, by commas.

    Raises:
        ValueError: it is not; with which of them, why and the fix.

    """
    for number, server in enumerate(servers.split(","), start=1):
        protocol, slashes, place = server.strip().rpartition("://")
        if slashes and protocol.lower() not in _PROTOCOLS:
            raise ValueError(f"of server {number}: it begins with another protocol than Kafka's: write it as HOST:PORT")
        try:
            address = parse(f"http://{place}")
        except ValueError as error:
            raise ValueError(f"of server {number}: it {error}".replace("https://HOST", "HOST:PORT")) from None
        if address.userinfo is not None or address.rest:
            raise ValueError(f"of server {number}: it is more than a host and a port: write it as HOST:PORT")
    return servers
