"""Ids that are the same however often they are computed."""

from darkroom.contracts.ids import stream_event_id, upload_event_id

ASSET = "0b8f5f2e-6c1d-4d8e-9f0a-3c2b1a4d5e6f"
KEY = f"assets/{ASSET}/original.jpg"


def test_a_stream_id_depends_on_asset_and_sequence_alone() -> None:
    assert stream_event_id(ASSET, 1) == stream_event_id(ASSET, 1)
    assert len({stream_event_id(ASSET, n) for n in range(1, 100)}) == 99


def test_the_ids_never_change_between_releases() -> None:
    # Redrives and rebuilds of old data depend on these very values.
    assert stream_event_id(ASSET, 1) == "c0a5d5a7-d5c4-5f82-8ea3-ba1162561877"
    assert upload_event_id("b", KEY, None, "etag") == "4101a9f6-f34f-59e2-8ac2-61be47178d74"


def test_the_version_is_the_identity_of_an_upload_and_the_etag_stands_in() -> None:
    assert upload_event_id("b", KEY, "v1", "e1") == upload_event_id("b", KEY, "v1", "e2")
    assert upload_event_id("b", KEY, "v1", "e") != upload_event_id("b", KEY, "v2", "e")
    assert upload_event_id("b", KEY, None, "e1") != upload_event_id("b", KEY, None, "e2")
    assert upload_event_id("b", KEY, "", "e1") == upload_event_id("b", KEY, None, "e1")
    assert upload_event_id("a", KEY, "v1", None) != upload_event_id("b", KEY, "v1", None)
