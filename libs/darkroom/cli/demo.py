"""``darkroom demo``: real pictures through the whole pipeline, with the time that each hop took."""

import contextlib
import json
import mimetypes
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from darkroom.cli.client import TERMINAL, Refused, Sent, Uploader
from darkroom.cli.operation import JsonFile, between, plain
from darkroom.cli.photo import dusk
from darkroom.cli.tail import Seen, Tail
from darkroom.cli.up import announce, describe, wait_for_interrupt
from darkroom.contracts.events import EventType
from darkroom.local.processes import ended_by_signals
from darkroom.local.stack import start_stack

OWNER = "demo"
DEADLINE = 120.0
"""Seconds that one picture may take."""
PARALLEL = 4
# What phones and newer systems write, and the standard library does not know everywhere.
CONTENT_TYPES = {".webp": "image/webp", ".avif": "image/avif", ".heic": "image/heic", ".heif": "image/heif"}
# A JPEG with further pictures behind the first.
CONTENT_TYPES |= {".mpo": "image/jpeg"}


@dataclass
class Outcome:
    """What became of one file; the shape of the list that ``--json`` writes."""

    file: str
    asset_id: str | None = None
    status: str = "LOST"
    failure_code: str | None = None
    width: int | None = None
    height: int | None = None
    renditions: list[dict[str, Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    ms: int | None = None


def demo(
    once: Annotated[bool, typer.Option("--once", help="End when every picture has its outcome.")] = False,
    images: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Send every file of this folder instead.")
    ] = None,
    json_file: JsonFile = None,
    data: Annotated[Path | None, typer.Option(help="Folder for data and logs. Default: a temporary one.")] = None,
    port: Annotated[int | None, between(1, 65_535, "Port of the API and the page. Default: a free one.")] = None,
) -> None:
    """Start everything, send a photo through the public API as a browser would, and show its journey."""
    console = Console()
    failed = True
    with ended_by_signals(), contextlib.suppress(KeyboardInterrupt), _folder(data) as folder:
        began = time.monotonic()
        announce(console, os.environ)
        with start_stack(folder, api_port=port) as stack:
            console.print(f"Everything is up after {time.monotonic() - began:.1f} s.\n", highlight=False)
            describe(console, stack, owner=OWNER)
            uploader = Uploader(stack.api_url, stack.token(OWNER))
            try:
                with Tail(stack.servers.kafka_bootstrap, stack.topics) as tail:
                    if images is None:
                        outcomes = [_show_journey(console, uploader, tail)]
                    else:
                        outcomes = _send_all(
                            console, uploader, tail, sorted(p for p in images.iterdir() if p.is_file())
                        )
            finally:
                uploader.close()
            if json_file is not None:
                json_file.write_text(json.dumps([asdict(one) for one in outcomes], indent=2) + "\n", encoding="utf-8")
            failed = any(one.asset_id is not None and one.status not in ("READY", "FAILED") for one in outcomes)
            if not once:
                console.print("\nIt stays up: open the page above and drop pictures in. Ctrl-C ends everything.")
                wait_for_interrupt(console, stack)
    if failed:
        raise typer.Exit(1)


@contextlib.contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="darkroom-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _show_journey(console: Console, uploader: Uploader, tail: Tail) -> Outcome:
    photo = dusk()
    console.print(f"\nSending dusk.jpg ({len(photo):,} bytes) …\n", highlight=False)
    sent = uploader.send(filename="dusk.jpg", content_type="image/jpeg", data=photo)
    seen = tail.wait_for_end(sent.asset_id, deadline=DEADLINE)
    outcome = _outcome("dusk.jpg", uploader, sent, seen)
    console.print(_timeline(sent, seen))
    if seen:
        event = seen[-1].event
        console.print(f"\n{event.type} as it was read from Kafka:")
        console.print_json(
            data={**event.model_dump(mode="json", exclude={"data"}), "data": event.data.model_dump(mode="json")}
        )
    return outcome


def _timeline(sent: Sent, seen: Sequence[Seen]) -> Table:
    table = Table("hop", "ms", "ms since the start", title="The journey of one photo")
    for column in table.columns[1:]:
        column.justify = "right"
    hops = [("POST /assets answered: registered, URL signed", sent.registered), ("bytes in S3", sent.uploaded)]
    for one in seen:
        match one.event.type:
            case EventType.ASSET_UPLOADED:
                hops.append(("S3 → SQS → Lambda → Kafka: AssetUploaded", one.sent))
            case EventType.ASSET_PROCESSING:
                hops.append(("processor claimed it: PROCESSING", one.event.occurred_at.timestamp()))
            case EventType.ASSET_READY | EventType.ASSET_FAILED:
                hops.append((f"rendered, stored, committed: {one.event.type}", one.event.occurred_at.timestamp()))
                hops.append((f"relay → Kafka: {one.event.type}", one.sent))
                hops.append(("read back from Kafka", one.read))
            case _:
                pass
    before = sent.began
    for name, at in hops:
        table.add_row(name, f"{(at - before) * 1000:,.0f}", f"{(at - sent.began) * 1000:,.0f}")
        before = at
    return table


def _send_all(console: Console, uploader: Uploader, tail: Tail, files: Sequence[Path]) -> list[Outcome]:
    with ThreadPoolExecutor(PARALLEL) as pool:
        outcomes = list(pool.map(lambda file: _send_one(file, uploader, tail), files))
    table = Table(title=f"{len(outcomes)} files", box=SIMPLE)
    for heading in ("file", "status", "failure", "size", "renditions", "ms"):
        table.add_column(heading, no_wrap=heading != "renditions", justify="right" if heading == "ms" else "left")
    for one in outcomes:
        size = "" if one.width is None else f"{one.width}x{one.height}"
        made = " ".join(f"{rendition['width']}x{rendition['height']}" for rendition in one.renditions)
        code = (one.failure_code or "").removeprefix("urn:darkroom:problem:")
        table.add_row(plain(one.file), one.status, plain(code), size, made, "" if one.ms is None else f"{one.ms:,}")
    console.print(table)
    return outcomes


def _send_one(file: Path, uploader: Uploader, tail: Tail) -> Outcome:
    try:
        sent = uploader.send(filename=file.name, content_type=_content_type(file), data=file.read_bytes())
    except Refused as refused:
        # Refused by S3 it is an asset all the same, which will wait for its bytes: that is no end.
        status = "REFUSED" if refused.asset_id is None else "UPLOADING"
        return Outcome(file.name, asset_id=refused.asset_id, status=status, failure_code=refused.problem_type)
    except httpx.HTTPError as error:
        return Outcome(file.name, asset_id="", failure_code=f"{type(error).__name__}: {error}")
    return _outcome(file.name, uploader, sent, tail.wait_for_end(sent.asset_id, deadline=DEADLINE))


def _outcome(file: str, uploader: Uploader, sent: Sent, seen: Sequence[Seen]) -> Outcome:
    asset = uploader.get(sent.asset_id)
    original = asset.get("original") or {}
    return Outcome(
        file=file,
        asset_id=sent.asset_id,
        status=asset["status"],
        failure_code=(asset.get("failure") or {}).get("code"),
        width=original.get("width"),
        height=original.get("height"),
        renditions=[
            {name: rendition[name] for name in ("name", "width", "height", "content_type", "url")}
            for rendition in asset.get("renditions", [])
        ],
        events=[str(one.event.type) for one in seen],
        ms=round((seen[-1].read - sent.began) * 1000) if seen and asset["status"] in TERMINAL else None,
    )


def _content_type(file: Path) -> str:
    suffix = file.suffix.lower()
    return CONTENT_TYPES.get(suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
