"""What the pool and its children say to each other over pipes: a length, a JSON head, and the bytes it announces.

JSON and not pickle: a child that hostile input took over must not be able to run code in the service.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from processor.imaging.failure import FailureCode, Rejected
from processor.imaging.rendition import Fit, Limits, OutputFormat, Rendered, RenditionBytes, RenditionSpec, SourceFormat

PREFIX = struct.Struct(">IQ")
"""Bytes of the head, then bytes of the payload."""
MAX_HEAD_BYTES = 256 * 1024
PIECE_BYTES = 2**20
"""What a pipe is asked to hold, and as much is read from one at once."""


class Malformed(Exception):
    """The other side does not keep to the format."""


def frame(head: dict[str, Any], *payload: bytes) -> list[bytes]:
    """The pieces to write, in order; payloads are not copied."""
    encoded = json.dumps(head).encode()
    return [PREFIX.pack(len(encoded), sum(map(len, payload))) + encoded, *payload]


def job(data: bytes | Sequence[bytes], specs: Sequence[RenditionSpec], limits: Limits) -> list[bytes]:
    pieces = [data] if isinstance(data, bytes) else data
    return frame({"specs": [asdict(spec) for spec in specs], "limits": asdict(limits)}, *pieces)


def read_job(head: dict[str, Any]) -> tuple[list[RenditionSpec], Limits]:
    specs = [
        RenditionSpec(
            name=spec["name"],
            box=tuple(spec["box"]),
            fit=Fit(spec["fit"]),
            format=OutputFormat(spec["format"]),
            quality=spec["quality"],
            background=tuple(spec["background"]),
            enlarge=spec["enlarge"],
        )
        for spec in head["specs"]
    ]
    return specs, Limits(**head["limits"])


def ready() -> list[bytes]:
    return frame({"kind": "ready"})


def rendered(result: Rendered) -> list[bytes]:
    head = {
        "kind": "rendered",
        "format": result.format,
        "size": (result.width, result.height),
        "labels": dict(result.labels),
        "renditions": [
            {
                "name": one.name,
                "content_type": one.content_type,
                "extension": one.extension,
                "size": (one.width, one.height),
                "bytes": len(one.data),
            }
            for one in result.renditions
        ],
    }
    return frame(head, *(one.data for one in result.renditions))


def rejected(reason: Rejected) -> list[bytes]:
    return frame({"kind": "rejected", "code": reason.code, "message": reason.message[:1_000]})


def crashed(error: BaseException) -> list[bytes]:
    return frame({"kind": "crashed", "message": f"{type(error).__name__}: {error}"[:1_000]})


def read_reply(head: bytes, payload: bytes) -> Rendered | Rejected | str:
    """A result, a rejection, or the message of a child that failed. Raises Malformed."""
    try:
        reply = json.loads(head)
        match reply["kind"]:
            case "rendered":
                return _read_rendered(reply, payload)
            case "rejected":
                return Rejected(FailureCode(reply["code"]), str(reply["message"]))
            case "crashed":
                return str(reply["message"])
            case kind:
                raise Malformed(f"reply of an unknown kind {kind!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Malformed(f"reply that cannot be read: {error}") from error


def _read_rendered(reply: dict[str, Any], payload: bytes) -> Rendered:
    renditions = []
    at = 0
    for one in reply["renditions"]:
        length = _natural(one["bytes"])
        data = payload[at : at + length]
        at += length
        if len(data) != length:
            raise ValueError("fewer bytes than announced")
        width, height = map(_natural, one["size"])
        renditions.append(
            RenditionBytes(
                name=str(one["name"]),
                content_type=str(one["content_type"]),
                extension=str(one["extension"]),
                width=width,
                height=height,
                data=data,
            )
        )
    width, height = map(_natural, reply["size"])
    return Rendered(
        format=SourceFormat(reply["format"]),
        width=width,
        height=height,
        renditions=tuple(renditions),
        labels={str(name): str(value) for name, value in reply["labels"].items()},
    )


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not a positive integer")
    return value
