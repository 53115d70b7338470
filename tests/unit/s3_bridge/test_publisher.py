"""What a batch leaves behind in the producer: nothing, and after a fatal error no producer either."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from darkroom.contracts.envelope import Record
from s3_bridge.publisher import NO_REPORT, NO_TIME, KafkaPublisher

Report = Callable[[KafkaError | None, Any], None]
RECORD = Record(b"key", b"value", [])


class ScriptedProducer:
    """Answers each record as the test says: with an error, None for an acknowledgement, or ... for no report."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self._waiting: list[tuple[Report, Any]] = []
        self.purged = 0

    def produce(self, _topic: str, *, on_delivery: Report, **_record: Any) -> None:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self._waiting.append((on_delivery, answer))

    def poll(self, timeout: float) -> None:
        self.flush(timeout)

    def flush(self, _timeout: float) -> int:
        for report, answer in [entry for entry in self._waiting if entry[1] is not ...]:
            report(answer, None)
        self._waiting = [entry for entry in self._waiting if entry[1] is ...]
        return len(self._waiting)

    def purge(self) -> None:
        self.purged += 1
        self._waiting = [(report, KafkaError(KafkaError._PURGE_INFLIGHT)) for report, _ in self._waiting]


def publisher(*producers: ScriptedProducer) -> KafkaPublisher:
    left = list(producers)

    def connect(config: dict[str, Any], **options: Any) -> Any:
        return left.pop(0)

    return KafkaPublisher(bootstrap="127.0.0.1:1", topic="t", connect=connect)


def test_a_producer_is_made_once_and_kept() -> None:
    target = publisher(ScriptedProducer(None, None))
    assert target.publish([RECORD], timeout=1) == [None]
    assert target.publish([RECORD], timeout=1) == [None]


def test_a_failed_record_does_not_fail_the_others() -> None:
    target = publisher(ScriptedProducer(None, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None))
    errors = target.publish([RECORD] * 3, timeout=1)
    assert [error is None for error in errors] == [True, False, True]


def test_a_refused_record_does_not_fail_the_others() -> None:
    refusal = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    errors = publisher(ScriptedProducer(None, refusal, None)).publish([RECORD] * 3, timeout=1)
    assert [error is None for error in errors] == [True, False, True]


def test_sqs_12_a_missing_report_fails_its_record_which_is_purged() -> None:
    first, second = ScriptedProducer(None, ...), ScriptedProducer(None)
    target = publisher(first, second)
    acknowledged, missing = target.publish([RECORD] * 2, timeout=0.1)
    assert acknowledged is None
    assert missing is not None
    assert "purge" in missing.lower()
    assert first.purged == 1
    assert target.publish([RECORD], timeout=1) == [None]


def test_a_report_that_never_comes_is_a_failure() -> None:
    class Silent(ScriptedProducer):
        def purge(self) -> None:
            """Keep silent."""

    assert publisher(Silent(...)).publish([RECORD], timeout=0.1) == [NO_REPORT]


@pytest.mark.parametrize("raised", [True, False])
def test_after_a_fatal_error_the_producer_is_made_anew(raised: bool) -> None:
    fatal = KafkaError(KafkaError._FATAL, "sequence desynchronized", fatal=True)
    target = publisher(ScriptedProducer(KafkaException(fatal) if raised else fatal), ScriptedProducer(None))
    assert target.publish([RECORD], timeout=1) != [None]
    assert target.publish([RECORD], timeout=1) == [None]


def test_a_full_queue_is_waited_for() -> None:
    assert publisher(ScriptedProducer(BufferError(), BufferError(), None)).publish([RECORD], timeout=1) == [None]


def test_a_queue_that_stays_full_fails_the_record_in_time() -> None:
    class Full(ScriptedProducer):
        def produce(self, _topic: str, **_record: Any) -> None:
            raise BufferError

    assert publisher(Full()).publish([RECORD], timeout=0.05) == ["the producer's queue stayed full"]


@pytest.mark.parametrize("timeout", [0.0, -3.0])
def test_without_time_nothing_is_sent(timeout: float) -> None:
    assert publisher().publish([RECORD], timeout=timeout) == [NO_TIME]


def test_a_batch_without_events_needs_no_kafka() -> None:
    assert publisher().publish([], timeout=1) == []


def test_the_guarantees_cannot_be_configured_away() -> None:
    seen: list[dict[str, Any]] = []

    def connect(config: dict[str, Any], **options: Any) -> Any:
        seen.append(config)
        return ScriptedProducer(None)

    extra = {"acks": "0", "message.timeout.ms": 1_000_000, "client.id": "mine"}
    KafkaPublisher(bootstrap="b:1", topic="t", config=extra, connect=connect).publish([RECORD], timeout=10)
    (config,) = seen
    assert config["acks"] == "all"
    assert config["enable.idempotence"] is True
    assert config["partitioner"] == "murmur2_random"
    assert config["client.id"] == "mine"
    assert config["message.timeout.ms"] < 10_000
    assert Producer(config)
