"""A notifier with a real inbox and SES endpoint, and a receiver of webhooks that checks signatures."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

import httpx
import pytest
from pymongo.database import Database
from standardwebhooks import Webhook

from darkroom.assets import Asset
from darkroom.contracts.envelope import STREAM_SOURCE, Event, to_record
from darkroom.inbox import Inbox
from darkroom.inbox.consumer import Delivery
from darkroom.inbox.keeper import LeaseKeeper
from darkroom.runtime.mongo import ensure_indexes
from darkroom.runtime.s3 import s3_client
from notifier.channels import Email, SignedWebhook
from notifier.journal import Journal
from notifier.links import Links
from notifier.notify import Notifier
from support import events
from support.servers import aws_client, aws_session

SECRET = "whsec_" + "QUJD" * 10
SENDER = "darkroom@example.com"


@dataclass
class Receiver:
    """Answers ``statuses`` in turn, the last one for ever; what it took with a good signature is in ``taken``."""

    url: str = ""
    statuses: list[int] = field(default_factory=lambda: [204])
    headers: dict[str, str] = field(default_factory=dict)
    content: Iterator[bytes] = field(default_factory=lambda: iter(()))
    """What it says further, a part at a time, for as long as anybody listens."""
    taken: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: int = 0
    forged: int = 0

    @property
    def ids(self) -> Counter[str]:
        return Counter(webhook_id for webhook_id, _ in self.taken)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    state, lock = Receiver(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                state.asked += 1
                status = state.statuses.pop(0) if len(state.statuses) > 1 else state.statuses[0]
                try:
                    Webhook(SECRET).verify(body, dict(self.headers))
                except Exception:  # noqa: BLE001 -- whatever it raises, the signature is no good
                    state.forged += 1
                    status = 401
                if status < 300:
                    state.taken.append((self.headers["webhook-id"], json.loads(body)))
            self.send_response(status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # whoever asked has heard enough
                for part in state.content:
                    self.wfile.write(part)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def ses(aws_endpoint: str) -> Iterator[Any]:
    client = aws_client("sesv2", aws_endpoint)
    client.create_email_identity(EmailIdentity=SENDER)
    yield client
    client.delete_email_identity(EmailIdentity=SENDER)
    client.close()


@dataclass
class Mailbox:
    """What SES sent to one owner."""

    endpoint: str
    owner: str = field(default_factory=lambda: f"{events.new_id()}@example.com")

    @property
    def mails(self) -> list[dict[str, Any]]:
        with urlopen(f"{self.endpoint}/_ministack/ses/messages") as answer:  # noqa: S310 -- the tests' own endpoint
            messages = json.load(answer)["messages"]
        return [mail for account in messages.values() for mail in account if mail["To"] == [self.owner]]


@pytest.fixture
def mailbox(aws_endpoint: str) -> Mailbox:
    return Mailbox(aws_endpoint)


@dataclass
class World:
    db: Database[dict[str, Any]]
    notifier: Notifier
    owner: str

    def asset(self) -> Asset:
        return events.registered(owner_id=self.owner, filename="holiday.jpg").after

    def ready(self, asset: Asset | None = None) -> Event:
        working = events.step(asset or self.asset(), events.processing()).after
        return events.step(working, events.ready(working)).event

    def failed(self) -> Event:
        return events.step(events.step(self.asset(), events.processing()).after, events.failed()).event

    def rows(self, event: Event) -> dict[str, str]:
        return {row["channel"]: row["state"] for row in self.db.notifications.find({"event_id": event.id})}

    def inbox_state(self, event: Event) -> str:
        row = self.db.consumer_inbox.find_one({"event_id": event.id})
        assert row is not None
        return str(row["state"])


def delivery(event: Event) -> Delivery:
    """The event as Kafka hands it over, under a fresh owner."""
    record = to_record(event, source=STREAM_SOURCE)
    return Delivery("assets.events", 0, 0, record.key, record.value, record.headers, owner=events.new_id())


@pytest.fixture
def world(
    mongo_db: Database[dict[str, Any]], aws_endpoint: str, ses: Any, receiver: Receiver, mailbox: Mailbox
) -> Iterator[World]:
    ensure_indexes(mongo_db, {**Inbox.indexes(), **Journal.indexes()})
    inbox = Inbox(mongo_db, consumer="tests.notifier", lease_seconds=30)
    keeper = LeaseKeeper(inbox)
    s3 = s3_client(session=aws_session(), endpoint_url=aws_endpoint)
    with httpx.Client(timeout=5) as client:
        notifier = Notifier(
            inbox=inbox,
            keeper=keeper,
            journal=Journal(mongo_db),
            links=Links(aws_session(), s3, bucket="bucket", seconds=86_400),
            channels=[
                Email(ses, sender=SENDER, to="{owner_id}", resend_in_doubt=False),
                SignedWebhook(client, url=receiver.url, secret=SECRET),
            ],
            max_attempts=3,
            backoff_seconds=1,
        )
        yield World(mongo_db, notifier, mailbox.owner)
    keeper.close()
    s3.close()
