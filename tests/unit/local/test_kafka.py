"""Ids that Kafka's tools accept."""

from darkroom.local.kafka import random_id


def test_an_id_never_looks_like_an_option() -> None:
    ids = {random_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(len(made) == 22 and not made.startswith("-") for made in ids)
