"""What is told about one event, as an e-mail and as a webhook's body. No I/O here."""

import json
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from darkroom.contracts.envelope import timestamp
from darkroom.contracts.events import Failure


@dataclass(frozen=True)
class Link:
    """A URL that shows the picture to whoever has it, until ``expires_at``."""

    url: str
    expires_at: datetime


@dataclass(frozen=True)
class Notice:
    """An asset came to its end: READY with a ``link``, or FAILED with a ``failure``.

    ``filename`` is the owner's own name of the file, where it is known.
    """

    event_id: str
    asset_id: str
    owner_id: str
    occurred_at: datetime
    filename: str | None = None
    link: Link | None = None
    failure: Failure | None = None

    @property
    def name(self) -> str:
        """The picture's name on one line, for people."""
        return " ".join((self.filename or f"Picture {self.asset_id}").split())


@dataclass(frozen=True)
class Mail:
    """An e-mail's subject and its two bodies."""

    subject: str
    text: str
    html: str


def mail(notice: Notice) -> Mail:
    """The notice for people. Whatever the owner called the file is text here, never markup."""
    name = notice.name
    if notice.link is not None:
        until = notice.link.expires_at.strftime("%d %B %Y, %H:%M UTC")
        return Mail(
            subject=f"{name} is ready",
            text=f"{name} is ready.\n\nSee it here until {until}:\n{notice.link.url}\n",
            html=_page(
                f"<p><strong>{escape(name)}</strong> is ready.</p>"
                f'<p><a href="{escape(notice.link.url)}">See it</a> until {until}.</p>'
            ),
        )
    reason = notice.failure.message if notice.failure is not None else "no reason is known"
    code = notice.failure.code if notice.failure is not None else "unknown"
    return Mail(
        subject=f"{name} could not be processed",
        text=f"{name} could not be processed: {reason} ({code}).\n\nUpload another file to try again.\n",
        html=_page(
            f"<p><strong>{escape(name)}</strong> could not be processed: {escape(reason)} "
            f"(<code>{escape(code)}</code>).</p><p>Upload another file to try again.</p>"
        ),
    )


def webhook_body(notice: Notice) -> str:
    """The notice for programs: ``type``, ``timestamp`` and ``data``, as Standard Webhooks advises."""
    data: dict[str, Any] = {"asset_id": notice.asset_id, "owner_id": notice.owner_id, "filename": notice.filename}
    if notice.link is not None:
        data["url"] = notice.link.url
        data["url_expires_at"] = timestamp(notice.link.expires_at)
    if notice.failure is not None:
        data["failure"] = notice.failure.model_dump()
    kind = "asset.ready" if notice.link is not None else "asset.failed"
    return json.dumps({"type": kind, "timestamp": timestamp(notice.occurred_at), "data": data})


def _page(body: str) -> str:
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><body>{body}</body></html>'
