"""What comes of each kind of body. Ids in the names are those of the collected cases of others' bugs."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.contracts.envelope import BRIDGE_SOURCE, from_record, to_record
from darkroom.contracts.events import AssetUploaded
from darkroom.contracts.ids import upload_event_id
from s3_bridge.notification import EXTENSIONS, Notification, Reason, read_notification
from support.s3_messages import ASSET, BUCKET, ETAG, OTHER, body, eventbridge, original, s3_record, sns

SENT_AT = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)


def read(text: str | None) -> Notification:
    return read_notification(text, bucket=BUCKET, sent_at=SENT_AT)


def reasons(text: str | None) -> list[Reason]:
    found = read(text)
    assert not found.events
    assert not found.malformed
    return [ignored.reason for ignored in found.ignored]


def only_event(text: str) -> Any:
    found = read(text)
    assert not found.malformed
    (event,) = found.events
    return event


def test_an_original_becomes_asset_uploaded() -> None:
    event = only_event(body(s3_record(versionId="v1")))
    assert event.asset_id == ASSET
    assert event.id == upload_event_id(BUCKET, original(), "v1", ETAG)
    assert event.occurred_at == datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    assert event.sequence is None
    assert event.owner_id is None
    assert event.data == AssetUploaded(
        bucket=BUCKET,
        object_key=original(),
        etag=ETAG,
        version_id="v1",
        size=48213,
        sequencer="0055AED6DCD90281E5",
        uploaded_at=datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
    )


def test_the_event_survives_kafka() -> None:
    event = only_event(body(s3_record()))
    record = to_record(event, source=BRIDGE_SOURCE)
    assert from_record(key=record.key, value=record.value, record_headers=record.headers) == event


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_every_known_extension_is_an_original(extension: str) -> None:
    assert only_event(body(s3_record(original(extension=extension)))).asset_id == ASSET


def test_s3e_01_05_06_an_encoded_slash_gives_the_same_event() -> None:
    encoded = s3_record(raw_key=original().replace("/", "%2F"))
    assert only_event(body(encoded)) == only_event(body(s3_record()))


def test_s3e_02_03_keys_are_decoded_once() -> None:
    decoded = {
        "assets/my+asset/original.jpg": "assets/my asset/original.jpg",
        "assets/a%2Bb/original.jpg": "assets/a+b/original.jpg",
        "assets/caf%C3%A9/original.jpg": "assets/café/original.jpg",
        "assets/100%2525/original.jpg": "assets/100%25/original.jpg",
        "assets/bad%ZZ/original.jpg": "assets/bad%ZZ/original.jpg",
    }
    found = read(body(*(s3_record(raw_key=key) for key in decoded)))
    assert [ignored.detail for ignored in found.ignored] == [ascii(key) for key in decoded.values()]
    assert {ignored.reason for ignored in found.ignored} == {Reason.NOT_AN_ORIGINAL}


def test_a_doubly_encoded_original_is_none() -> None:
    assert reasons(body(s3_record(raw_key=original().replace("/", "%252F")))) == [Reason.NOT_AN_ORIGINAL]


def test_a_key_that_is_not_utf8_is_ignored() -> None:
    assert reasons(body(s3_record(raw_key="assets/%FF%FE/original.jpg"))) == [Reason.UNDECODABLE_KEY]


def test_s3e_07_test_event_and_empty_notifications() -> None:
    test_event = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": BUCKET})
    assert reasons(test_event) == [Reason.TEST_EVENT]
    assert reasons(sns(test_event)) == [Reason.TEST_EVENT]
    for empty in ("{}", '{"Records":null}', '{"Records":[]}'):
        assert reasons(empty) == [Reason.EMPTY]


def test_s3e_09_sns_is_unwrapped() -> None:
    assert only_event(sns(body(s3_record()))) == only_event(body(s3_record()))
    assert only_event(sns(eventbridge())).id == only_event(body(s3_record())).id


@pytest.mark.parametrize("wrapped", [sns("no json"), sns("[]"), json.dumps({"Type": "Notification"}), sns(sns("{}"))])
def test_an_sns_message_that_holds_no_notification_is_malformed(wrapped: str) -> None:
    assert read(wrapped).malformed


def test_an_sns_handshake_is_acknowledged() -> None:
    assert reasons(json.dumps({"Type": "SubscriptionConfirmation", "TopicArn": "t"})) == [Reason.NOT_FROM_S3]


def test_s3e_10_eventbridge_does_not_encode_keys() -> None:
    assert only_event(eventbridge()).id == only_event(body(s3_record())).id
    assert reasons(eventbridge("assets/a+b/original.jpg")) == [Reason.NOT_AN_ORIGINAL]
    assert read(eventbridge("assets/a+b/original.jpg")).ignored[0].detail == "'assets/a+b/original.jpg'"
    assert reasons(eventbridge(original().replace("/", "%2F"))) == [Reason.NOT_AN_ORIGINAL]


def test_eventbridge_events_of_other_kinds_are_acknowledged() -> None:
    assert reasons(eventbridge(detail_type="Object Deleted")) == [Reason.NOT_CREATED]
    assert reasons(eventbridge(source="my.app")) == [Reason.NOT_FROM_S3]


@pytest.mark.parametrize(
    "key",
    [
        f"assets/{ASSET}/thumb.jpg",
        f"assets/{ASSET}/preview.webp",
        f"assets/{ASSET}/derived/original.jpg",
        f"assets/{ASSET}/original.jpg/",
        f"assets/{ASSET}/original.jpg\n",
        f"assets/{ASSET}/original.jpg.exe",
        f"assets/{ASSET}/original.svg",
        f"assets/{ASSET}/original.JPG",
        f"assets/{ASSET}/original",
        f"assets/{ASSET.upper()}/original.jpg",
        f"assets/{{{ASSET}}}/original.jpg",
        f"assets/{ASSET.replace('-', '')}/original.jpg",
        f"/assets/{ASSET}/original.jpg",
        f"x/assets/{ASSET}/original.jpg",
        f"assets/../assets/{ASSET}/original.jpg",
        "assets/",
        "",
        "assets/\ud800/original.jpg",
    ],
)
def test_s3e_11_22_sec_13_only_exact_keys_of_originals_count(key: str) -> None:
    raw = {"raw_key": key} if "\ud800" in key else {}
    assert reasons(body(s3_record("" if raw else key, **raw))) == [Reason.NOT_AN_ORIGINAL]


def test_s3e_13_each_write_of_a_key_is_its_own_event() -> None:
    found = read(body(s3_record(eTag="aa", sequencer="0B00000000000000"), s3_record(eTag="bb", sequencer="0A1B2C3D")))
    sequencers = [event.data.sequencer for event in found.events if isinstance(event.data, AssetUploaded)]
    assert sequencers == ["0B00000000000000", "0A1B2C3D"]
    assert len({event.id for event in found.events}) == 2


def test_s3e_14_23_the_sequencer_is_no_part_of_the_identity() -> None:
    first, again = (only_event(body(s3_record(sequencer=text))) for text in ("0055AED6DCD9", "0055AED6DCD90000"))
    assert first.id == again.id


def test_s3e_23_the_same_bytes_written_again_are_a_new_event_only_under_a_new_version() -> None:
    one, two = (only_event(body(s3_record(versionId=version))) for version in ("v1", "v2"))
    assert one.id != two.id


@pytest.mark.parametrize("missing", [..., None, ""])
def test_s3e_15_a_put_without_sequencer_or_etag_has_a_stable_id(missing: Any) -> None:
    event = only_event(body(s3_record(sequencer=missing, eTag=missing)))
    assert event.data.sequencer is None
    assert event.data.etag is None
    assert event.id == upload_event_id(BUCKET, original(), None, None)


@pytest.mark.parametrize("name", ["LifecycleTransition", "ObjectRemoved:DeleteMarkerCreated", "ObjectTagging:Put"])
def test_s3e_15_other_types_are_ignored_whatever_they_lack(name: str) -> None:
    assert reasons(body({"eventName": name})) == [Reason.NOT_CREATED]


def test_s3e_17_an_empty_object_is_announced() -> None:
    assert only_event(body(s3_record(size=0))).data.size == 0
    assert only_event(body(s3_record(size=...))).data.size is None


@pytest.mark.parametrize("none", [..., None, "", "null"])
def test_s3e_18_all_ways_to_say_no_version(none: Any) -> None:
    event = only_event(body(s3_record(versionId=none)))
    assert event.data.version_id is None
    assert event.id == only_event(body(s3_record())).id


def test_s3e_19_the_version_travels() -> None:
    assert only_event(body(s3_record(versionId="096fKKXTRTtl"))).data.version_id == "096fKKXTRTtl"


def test_an_etag_in_the_quotes_of_http_is_the_same() -> None:
    assert only_event(body(s3_record(eTag=f'"{ETAG}"'))).id == only_event(body(s3_record())).id


@pytest.mark.parametrize("kind", ["Put", "Post", "Copy", "CompleteMultipartUpload"])
@pytest.mark.parametrize("prefix", ["", "s3:"])
def test_s3e_21_everything_that_creates_counts(kind: str, prefix: str) -> None:
    assert only_event(body(s3_record(name=f"{prefix}ObjectCreated:{kind}"))).asset_id == ASSET


def test_sec_13_another_bucket_is_ignored() -> None:
    assert reasons(body(s3_record(bucket="someone-elses-bucket"))) == [Reason.FOREIGN_BUCKET]


def test_one_message_with_originals_and_others() -> None:
    found = read(body(s3_record(), s3_record(f"assets/{ASSET}/thumb.jpg"), s3_record(original(OTHER))))
    assert [event.asset_id for event in found.events] == [ASSET, OTHER]
    assert [ignored.reason for ignored in found.ignored] == [Reason.NOT_AN_ORIGINAL]


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("2026-03-01T14:00:00+02:00", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T12:00:00", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("yesterday", None),
        (1772366400, None),
        ("0001-01-01T00:00:00+23:00", None),
    ],
)
def test_an_unreadable_time_is_no_reason_to_fail(time: Any, expected: datetime | None) -> None:
    event = only_event(body({**s3_record(), "eventTime": time}))
    assert event.occurred_at == (SENT_AT if expected is None else expected)
    assert event.data.uploaded_at == expected


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "this is not json",
        "[]",
        "null",
        '"text"',
        "[" * 100_000,
        "9" * 5000,
        '{"unknown": 1}',
        '{"Records": 1}',
        '{"Records": 0}',
        '{"Records": {}}',
        '{"Records": ""}',
        '{"Records": false}',
        '{"Records": {"a": 1}}',
        '{"Records": [null]}',
        '{"Records": [{}]}',
        '{"Records": [{"eventName": 1}]}',
        '{"Records": [{"eventName": "ObjectCreated:Put"}]}',
        '{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"object": {"key": 1}}}]}',
        body({**s3_record(), "s3": {"object": {"key": original()}}}),
        body(s3_record(size=-1)),
        body(s3_record(size="many")),
        body(s3_record(eTag=5)),
        body(s3_record(eTag="\ud800")),
        body(s3_record(versionId=["v"])),
        json.dumps({"detail-type": "Object Created", "source": "aws.s3"}),
    ],
)
def test_what_is_not_understood_is_malformed(text: str | None) -> None:
    found = read(text)
    assert found.malformed
    assert not found.events


def test_what_is_understood_beside_something_malformed_is_not_lost() -> None:
    found = read(body({"eventName": 1}, s3_record()))
    assert [event.asset_id for event in found.events] == [ASSET]
    assert len(found.malformed) == 1


FIELDS = [
    "Records",
    "Event",
    "Type",
    "Message",
    "detail-type",
    "source",
    "detail",
    "eventName",
    "s3",
    "bucket",
    "object",
    "key",
    "name",
    "size",
    "eTag",
    "versionId",
    "eventTime",
    "sequencer",
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["ObjectCreated:Put", BUCKET]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_no_body_raises_and_none_is_silently_dropped(value: Any) -> None:
    found = read(json.dumps(value))
    assert found.events or found.ignored or found.malformed


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(["size", "eTag", "versionId", "sequencer", "eventTime"], JSON)),
)
def test_no_field_of_an_original_raises(fields: dict[str, Any]) -> None:
    record = s3_record(**{name: value for name, value in fields.items() if name != "eventTime"})
    found = read(body({**record, "eventTime": fields.get("eventTime")}))
    assert len(found.events) + len(found.malformed) == 1
    for event in found.events:
        to_record(event, source=BRIDGE_SOURCE)
