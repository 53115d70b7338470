"""What the processor and its decoding processes tell, through the text that Prometheus reads."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from darkroom.contracts.topics import TopicSpec
from darkroom.inbox.consumer import Delivery
from darkroom.metrics.registry import new_registry
from darkroom.runtime.kafka import ensure_topics
from processor.dead_letters import DeadLetters
from processor.imaging.failure import Cancelled
from processor.imaging.pool import DecoderPool
from processor.imaging.rendition import Limits
from processor.metrics import ProcessorMetrics
from support.scrape import scraped

from .conftest import PICTURE, SPECS, World


def test_ends_are_counted_by_kind_and_failures_by_code(
    world: World, producer: Producer, kafka_bootstrap: str, topic_names: Callable[[str], str]
) -> None:
    registry, topic = new_registry(), topic_names("letters")
    ensure_topics(kafka_bootstrap, [TopicSpec(topic, 1, {})])
    letters = DeadLetters(producer, topic=topic)
    work = replace(world.processor, dead_letters=letters, observer=ProcessorMetrics(registry))
    work(world.delivery(world.upload()))
    again = world.delivery(world.upload(b"no picture at all"))
    work(again)
    work(Delivery("uploads", 0, 99, b"nobody", b"no event", [], owner="one"))
    absent = world.upload()
    world.s3.delete_object(Bucket=world.bucket, Key=absent.object_key)
    for _ in range(work.max_attempts):
        work(world.delivery(absent))
        world.run_out()
    samples = scraped(registry)
    ends = {
        end: samples.value("darkroom_processor_uploads_total", outcome=end) for end in ("ready", "failed", "given_up")
    }
    assert ends == {"ready": 1, "failed": 1, "given_up": 1}
    assert samples.value("darkroom_processor_uploads_total", outcome="dead_letter") == 1
    assert samples.value("darkroom_processor_retries_total") == work.max_attempts - 1
    assert samples.value("darkroom_processor_failures_total", code="object_missing") == 1
    assert sum(samples.of("darkroom_processor_failures_total").values()) == 2


def test_decoding_is_timed_and_the_pool_shows_how_it_is_used() -> None:
    registry = new_registry()
    metrics = ProcessorMetrics(registry)
    with DecoderPool(size=1, decoded=metrics.decoded) as pool:
        metrics.watch(pool)
        pool.render(PICTURE, SPECS, Limits())
        samples = scraped(registry)
        assert samples.value("darkroom_processor_decoders") == 1
        assert samples.value("darkroom_processor_decoders_busy") == 0
        assert samples.value("darkroom_processor_decode_seconds_count") == 1
        assert samples.value("darkroom_processor_decode_seconds_sum") > 0
        assert samples.value("darkroom_processor_decoder_deaths_total") == 0
        called_off = threading.Event()
        called_off.set()
        with pytest.raises(Cancelled):
            pool.render(PICTURE, SPECS, Limits(), cancelled=called_off)
