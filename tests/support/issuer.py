"""An issuer of tokens with keys of every accepted kind, and a server that gives its key set and counts who asks."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ALGORITHMS = ("RS256", "ES256", "EdDSA")


def new_key(algorithm: str, *, bits: int = 2048) -> Any:
    if algorithm == "RS256":
        return rsa.generate_private_key(public_exponent=65537, key_size=bits)
    return ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Any, algorithm: str, *, kid: str) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": kid, "alg": algorithm, "use": "sig"}


def public_texts(key: Any) -> dict[str, bytes]:
    """The public key in every form that somebody may take for a secret."""
    public = key.public_key()
    encoding, form = serialization.Encoding, serialization.PublicFormat
    return {
        "PEM": public.public_bytes(encoding.PEM, form.SubjectPublicKeyInfo),
        "PEM without its last line end": public.public_bytes(encoding.PEM, form.SubjectPublicKeyInfo).strip(),
        "DER": public.public_bytes(encoding.DER, form.SubjectPublicKeyInfo),
        "SSH": public.public_bytes(encoding.OpenSSH, form.OpenSSH),
        "JWK": json.dumps(jwt.get_algorithm_by_name("RS256").to_jwk(public, as_dict=True)).encode(),
    }


def claims(**changed: Any) -> dict[str, Any]:
    """Good claims, but for what is changed; ``...`` leaves one out."""
    now = int(time.time())
    good = {"sub": "owner-1", "aud": "darkroom", "iss": "darkroom", "iat": now, "exp": now + 60, **changed}
    return {name: value for name, value in {"scope": "assets:read", **good}.items() if value is not ...}


def encoded(part: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")


def forged(header: dict[str, Any], payload: dict[str, Any], *, secret: bytes | None = None) -> str:
    """A token with whatever header; signed by HMAC with ``secret``, which may be a public key, or by nobody."""
    body = encoded(header) + b"." + encoded(payload)
    if secret is None:
        return (body + b".").decode()
    signature = hmac.digest(secret, body, hashlib.sha256)
    return (body + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


@dataclass
class Issuer:
    """Signs tokens. ``key_set`` is what it publishes; tests change it at will."""

    keys: dict[str, Any] = field(default_factory=lambda: {algorithm: new_key(algorithm) for algorithm in ALGORITHMS})
    key_set: Any = None

    def __post_init__(self) -> None:
        self.publish()

    def publish(self) -> None:
        """Publish all keys; a key's id is its name here."""
        self.key_set = {"keys": [public_jwk(key, self.algorithm(kid), kid=kid) for kid, key in self.keys.items()]}

    def algorithm(self, kid: str) -> str:
        return kid.split("-")[0]

    def token(self, kid: str = "RS256", *, header: dict[str, Any] | None = None, **changed: Any) -> str:
        return jwt.encode(
            claims(**changed), self.keys[kid], algorithm=self.algorithm(kid), headers={"kid": kid, **(header or {})}
        )


@dataclass
class KeyServer:
    """Where the key set is, and what was asked for."""

    url: str
    issuer: Issuer
    asked: list[str]
    status: int = 200
    encoded: tuple[str, bytes] | None = None
    """Sent instead of the key set: Content-Encoding and the content in it."""
    accepted: list[str] = field(default_factory=list)
    """What each request accepts as Content-Encoding."""


@contextmanager
def key_server(issuer: Issuer) -> Iterator[KeyServer]:
    """An issuer's key set at an address of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            served.accepted.append(self.headers.get("Accept-Encoding", ""))
            content = json.dumps(served.issuer.key_set).encode()
            self.send_response(served.status)
            if served.encoded is not None:
                encoding, content = served.encoded
                self.send_header("Content-Encoding", encoding)
            if served.status == 302:
                self.send_header("Location", f"{served.url}-elsewhere")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Tests look at what was asked for."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = KeyServer(f"http://127.0.0.1:{server.server_port}/keys", issuer, [])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
