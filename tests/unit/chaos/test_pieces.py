"""Small pure pieces: stalls, pictures, garbage and notifications."""

import random
from io import BytesIO

import pytest
from PIL import Image, UnidentifiedImageError

from darkroom.chaos.aftermath import met
from darkroom.chaos.messages import garbage, notification, pick
from darkroom.chaos.pictures import make
from darkroom.chaos.watch import judge_commits, judge_marks, longest_stall
from darkroom.contracts.envelope import MalformedEvent, from_record
from darkroom.contracts.events import AssetUploaded
from darkroom.contracts.topics import Topics
from s3_bridge.notification import read_notification
from unit.chaos.evidence_made import BROKEN, BUCKET, GOOD, NOW, topic_record, uploaded


@pytest.mark.parametrize(
    ("opened", "ended", "longest"),
    [
        ([], [], 0.0),
        ([1.0], [3.0], 2.0),
        ([0.0, 1.0], [5.0, 6.0], 5.0),
        ([0.0, 10.0], [1.0, 12.0], 2.0),  # nothing was open in between
        ([0.0, 0.0, 0.0], [1.0, 2.0, 9.0], 7.0),
    ],
)
def test_the_longest_stall(opened: list[float], ended: list[float], longest: float) -> None:
    assert longest_stall(opened, ended) == longest


def test_a_commit_past_an_unfinished_event_is_seen_while_it_happens() -> None:
    topic = Topics().uploaded
    records = [topic_record(uploaded(asset), offset=at, topic=topic) for at, asset in enumerate((GOOD, BROKEN))]
    good, broken = uploaded(GOOD).id, uploaded(BROKEN).id
    place = (topic, 0)
    assert judge_commits(records, {place: 2}, {good, broken}, since={}) == (2, {})
    assert judge_commits(records, {place: 1}, {good}, since={}) == (1, {})
    count, suspects = judge_commits(records, {place: 2}, {good}, since={place: 1})
    assert (count, list(suspects)) == (1, [(0, 1)])
    assert broken in suspects[0, 1]
    assert judge_commits(records, {place: 2}, set(), since={place: 2}) == (0, {})


def test_a_mark_without_its_record_is_seen_while_it_happens() -> None:
    assert judge_marks({"a", "b"}, {"a", "b", "c"}) == []
    assert judge_marks({"a", "b"}, {"a"}) == ["event b was marked while Kafka did not have it"]


@pytest.mark.parametrize("seed", range(10))
def test_good_pictures_open_and_broken_ones_do_not(seed: int) -> None:
    with Image.open(BytesIO(make(random.Random(seed), good=True).data)) as good:
        good.load()
    with (
        pytest.raises((OSError, UnidentifiedImageError)),
        Image.open(BytesIO(make(random.Random(seed), good=False).data)) as broken,
    ):
        broken.load()


def test_garbage_is_malformed_or_of_an_asset_nobody_knows() -> None:
    like = topic_record(uploaded(GOOD), offset=0, topic=Topics().uploaded)
    strange = []
    for name, key, value, headers in garbage(like):
        try:
            event = from_record(key=key, value=value, record_headers=headers)
        except MalformedEvent:
            continue
        assert event.asset_id != GOOD
        strange.append(name)
    assert strange == ["unknown asset"]


def test_a_repeated_notification_gives_the_same_event() -> None:
    event = uploaded(GOOD)
    assert isinstance(event.data, AssetUploaded)
    (again,) = read_notification(notification(BUCKET, event.data), bucket=BUCKET, sent_at=NOW).events
    assert again.id == event.id


def test_a_choice_is_a_place_in_the_list() -> None:
    records = [topic_record(uploaded(GOOD), offset=offset) for offset in range(4)]
    assert pick(records, 0.0) is records[0]
    assert pick(records, 0.99) is records[3]
    assert pick([], 0.5) is None


def test_only_an_upload_that_met_a_restart_may_have_lost_its_notification() -> None:
    assert met([(0.0, 1.0)], [(0.5, 4.0)])
    assert met([(0.0, 1.0)], [(2.0, 4.0)])
    assert not met([(0.0, 1.0)], [(10.0, 14.0)])
    assert not met([(20.0, 21.0)], [(10.0, 14.0)])
