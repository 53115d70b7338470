"""Which messages come back, whatever fails in a batch."""

from datetime import UTC, datetime

import pytest

from s3_bridge.bridge import Message, Result, bridge, sent_at
from s3_bridge.notification import Reason
from support.s3_messages import ASSET, BUCKET, OTHER, RecordingPublisher, body, original, s3_record

SENT_AT = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)


def run(publisher: RecordingPublisher, *bodies: str | None) -> Result:
    messages = [Message(f"m{place}", text, SENT_AT) for place, text in enumerate(bodies)]
    return bridge(messages, bucket=BUCKET, publisher=publisher, timeout=3.0)


def test_all_records_are_published_at_once_within_the_time_given() -> None:
    publisher = RecordingPublisher()
    result = run(publisher, body(s3_record()), body(s3_record(original(OTHER))))
    assert [event.asset_id for event in publisher.events] == [ASSET, OTHER]
    assert publisher.timeouts == [3.0]
    assert result == Result(failed=(), published=2, ignored=result.ignored, malformed=0)


def test_sqs_03_only_the_malformed_message_comes_back() -> None:
    publisher = RecordingPublisher()
    result = run(publisher, body(s3_record()), "this is not json", body(s3_record(original(OTHER))))
    assert result.failed == (1,)
    assert result.malformed == 1
    assert result.published == 2


def test_sqs_02_nothing_confirmed_means_that_all_with_events_come_back() -> None:
    result = run(RecordingPublisher(lambda _: True), body(s3_record()), "{}", body(s3_record(original(OTHER))))
    assert result.failed == (0, 2)
    assert result.published == 0


def test_sqs_10_one_of_two_records_fails_so_the_message_comes_back_with_the_same_ids() -> None:
    text = body(s3_record(), s3_record(original(OTHER)))
    broken = RecordingPublisher(lambda event: event.asset_id == OTHER)
    assert run(broken, text, body(s3_record())).failed == (0,)
    mended = RecordingPublisher()
    assert run(mended, text).failed == ()
    assert mended.events[0] == broken.events[0]


def test_duplicates_in_a_batch_are_published_once_and_share_their_fate() -> None:
    publisher = RecordingPublisher()
    assert run(publisher, body(s3_record()), body(s3_record()), body(s3_record(), s3_record())).failed == ()
    assert len(publisher.events) == 1
    assert run(RecordingPublisher(lambda _: True), body(s3_record()), body(s3_record())).failed == (0, 1)


def test_what_is_ignored_is_counted_and_suspect_things_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="s3_bridge"):
        result = run(
            RecordingPublisher(),
            body(s3_record(f"assets/{ASSET}/thumb.jpg"), s3_record(bucket="another")),
            body(s3_record(raw_key="assets/%FF/original.jpg")),
        )
    assert result.failed == ()
    assert result.ignored == {Reason.NOT_AN_ORIGINAL: 1, Reason.FOREIGN_BUCKET: 1, Reason.UNDECODABLE_KEY: 1}
    assert [(entry.levelname, entry.reason) for entry in caplog.records] == [  # type: ignore[attr-defined]  # an extra
        ("INFO", "not_an_original"),
        ("WARNING", "foreign_bucket"),
        ("WARNING", "undecodable_key"),
    ]


@pytest.mark.parametrize("text", [None, "", "soon", "9" * 30])
def test_a_message_without_a_readable_time_was_sent_now(text: str | None) -> None:
    assert abs((sent_at(text) - datetime.now(UTC)).total_seconds()) < 60


def test_the_time_sent_is_in_milliseconds() -> None:
    assert sent_at("1772366405123") == datetime(2026, 3, 1, 12, 0, 5, 123000, tzinfo=UTC)
