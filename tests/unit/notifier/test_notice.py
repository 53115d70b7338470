"""What an e-mail and a webhook say."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from darkroom.contracts.events import Failure
from notifier.notice import Link, Notice, mail, webhook_body

READY = Notice(
    event_id="0190b5a0-0000-4000-8000-000000000001",
    asset_id="0190b5a0-0000-4000-8000-000000000002",
    owner_id="ada@example.com",
    occurred_at=datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
    filename="holiday.jpg",
    link=Link("https://bucket.example/assets/x?a=1&b=2", datetime(2026, 3, 2, 12, 0, tzinfo=UTC)),
)
FAILED = replace(
    READY, link=None, failure=Failure(code="corrupt_or_truncated", message="the file ends in the middle of its data")
)


def test_a_ready_picture_is_named_and_linked() -> None:
    made = mail(READY)
    assert made.subject == "holiday.jpg is ready"
    assert "https://bucket.example/assets/x?a=1&b=2" in made.text
    assert "02 March 2026, 12:00 UTC" in made.text
    assert 'href="https://bucket.example/assets/x?a=1&amp;b=2"' in made.html


def test_a_failed_picture_has_its_reason() -> None:
    made = mail(FAILED)
    assert made.subject == "holiday.jpg could not be processed"
    for body in (made.text, made.html):
        assert "the file ends in the middle of its data" in body
        assert "corrupt_or_truncated" in body


@pytest.mark.parametrize("notice", [READY, FAILED])
def test_a_filename_is_text_and_stays_on_one_line(notice: Notice) -> None:
    made = mail(replace(notice, filename="<b>x</b>\r\nBcc: eve@example.com"))
    assert "\r" not in made.subject
    assert "\n" not in made.subject
    assert "<b>" not in made.html
    assert "&lt;b&gt;x&lt;/b&gt;" in made.html


def test_without_a_filename_the_asset_is_named() -> None:
    assert mail(replace(READY, filename=None)).subject == f"Picture {READY.asset_id} is ready"


def test_a_webhook_has_type_timestamp_and_data() -> None:
    assert json.loads(webhook_body(READY)) == {
        "type": "asset.ready",
        "timestamp": "2026-03-01T12:00:00.000Z",
        "data": {
            "asset_id": READY.asset_id,
            "owner_id": "ada@example.com",
            "filename": "holiday.jpg",
            "url": "https://bucket.example/assets/x?a=1&b=2",
            "url_expires_at": "2026-03-02T12:00:00.000Z",
        },
    }
    failed = json.loads(webhook_body(FAILED))
    assert failed["type"] == "asset.failed"
    assert failed["data"]["failure"]["code"] == "corrupt_or_truncated"
