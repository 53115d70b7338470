"""Topics are read whatever somebody has put on them."""

from collections.abc import Callable

from confluent_kafka import Producer

from darkroom.contracts.topics import TopicSpec
from darkroom.ops.topics import read
from darkroom.runtime.kafka import ensure_topics
from support.raw_records import produce_with_header


def test_a_header_whose_name_is_no_text_ends_no_reader(kafka_bootstrap: str, topic_names: Callable[[str], str]) -> None:
    topic = topic_names("uploads")
    ensure_topics(kafka_bootstrap, [TopicSpec(topic, 1)])
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    # Only a warm interpreter takes the short cut on which the client's fault ends the process.
    for number in range(100):
        producer.produce(topic, key=b"k", value=b"%d" % number, headers=[("name", b"text")], partition=0)
    assert producer.flush(10) == 0
    produce_with_header(kafka_bootstrap, topic, key=b"k", value=b"spoilt", header=b"\xff\xfe")
    records = list(read(kafka_bootstrap, {(topic, 0): (0, 101)}, seconds=20))
    assert [record.notes for record in records[:100]] == [{"name": "text"}] * 100
    assert (records[100].value, records[100].headers, records[100].event) == (b"spoilt", (), None)
