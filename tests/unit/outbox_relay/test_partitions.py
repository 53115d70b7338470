"""The partitioner agrees with Java's."""

import pytest

from outbox_relay.partitions import murmur2


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # Signed, as Kafka's own tests of its murmur2 list them.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_it_gives_javas_numbers(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32
