"""The Lambda function's contract: the partial batch response, the time budget, metrics, and the collected inputs."""

import csv
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.batch.exceptions import BatchProcessingError

from s3_bridge.handler import MARGIN_SECONDS, SERVICE, compose
from support.s3_messages import ASSET, BUCKET, OTHER, RecordingPublisher, body, original, s3_record, sqs_event

CORPUS = Path(os.environ.get("DARKROOM_CORPUS") or Path(__file__).parents[4] / "shared" / "corpus")


class Context:
    """What Lambda tells of an invocation."""

    function_name = "bridge"
    memory_limit_in_mb = 256
    invoked_function_arn = "arn:aws:lambda:eu-west-1:123456789012:function:bridge"
    aws_request_id = "request-1"

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """Powertools sets up a logger once in a process, with the standard output of that moment."""
    yield
    logger = logging.getLogger(SERVICE)
    logger.handlers.clear()
    logger.init = False  # type: ignore[attr-defined]  # where Powertools remembers it
    del logger.powertools_handler  # type: ignore[attr-defined]  # and its handler


def invoke(event: dict[str, Any], publisher: RecordingPublisher | None = None) -> list[Any]:
    entry = compose(bucket=BUCKET, publisher=publisher or RecordingPublisher())
    answer: Any = entry(event, Context())  # type: ignore[arg-type]  # the few members that are used
    assert list(answer) == ["batchItemFailures"]
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def test_only_the_failed_messages_are_named_by_their_ids() -> None:
    publisher = RecordingPublisher()
    event = sqs_event(body(s3_record()), "this is not json", "{}", body(s3_record(original(OTHER))))
    assert invoke(event, publisher) == ["m1"]
    assert [published.asset_id for published in publisher.events] == [ASSET, OTHER]


def test_the_budget_is_what_is_left_of_the_invocation_less_a_margin() -> None:
    publisher = RecordingPublisher()
    invoke(sqs_event(body(s3_record())), publisher)
    assert publisher.timeouts == [30.0 - MARGIN_SECONDS]


def test_sqs_02_kafka_down_for_the_whole_batch_names_every_message() -> None:
    event = sqs_event(body(s3_record()), body(s3_record(original(OTHER))))
    assert invoke(event, RecordingPublisher(lambda _: True)) == ["m0", "m1"]


def test_sqs_06_a_batch_that_fails_as_a_whole_is_reported_and_does_not_raise() -> None:
    assert invoke(sqs_event("this is not json")) == ["m0"]

    # Why the response is not Powertools' own: its processor raises here.
    def refuse(record: Any) -> None:
        raise ValueError(record.body)

    with pytest.raises(BatchProcessingError):
        process_partial_response(
            event=sqs_event("this is not json"),
            record_handler=refuse,
            processor=BatchProcessor(event_type=EventType.SQS),
        )


@pytest.mark.parametrize("absent", [True, False])
def test_sqs_07_a_message_without_id_hides_no_other_result(absent: bool) -> None:
    event = sqs_event(body(s3_record()), "this is not json", "nor is this")
    for place in (0, 1):
        if absent:
            del event["Records"][place]["messageId"]
        else:
            event["Records"][place]["messageId"] = None
    publisher = RecordingPublisher()
    # The empty id makes Lambda keep the whole batch, since it cannot be told which message to keep.
    assert invoke(event, publisher) == ["", "m2"]
    assert len(publisher.events) == 1


def test_a_message_without_body_or_attributes_fails_alone() -> None:
    event = sqs_event(None, body(s3_record()))
    del event["Records"][0]["body"]
    del event["Records"][0]["attributes"]
    assert invoke(event) == ["m0"]


def test_metrics_count_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    invoke(
        sqs_event(
            body(s3_record(), s3_record(bucket="another")), "this is not json", body(s3_record("assets/x/original.jpg"))
        )
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (metrics,) = (line for line in lines if "_aws" in line)
    assert {name: metrics[name] for name in metrics if name.startswith(("E", "M", "A"))} == {
        "EventsPublished": [1.0],
        "MessagesFailed": [1.0],
        "MessagesMalformed": [1.0],
        "AnnouncementsIgnored": [2.0],
        "AnnouncementsSuspect": [1.0],
    }


def test_logs_are_json_lines_with_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    invoke(sqs_event("this is not json"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (entry,) = (line for line in lines if line.get("event") == "notification_malformed")
    assert entry["message_id"] == "m0"
    assert entry["function_request_id"] == "request-1"
    assert entry["level"] == "ERROR"


def expectations() -> list[dict[str, str]]:
    table = CORPUS / "events" / "EXPECT.tsv"
    return list(csv.DictReader(table.read_text("utf-8").splitlines(), delimiter="\t")) if table.exists() else []


@pytest.mark.skipif(not expectations(), reason="no corpus beside the checkout and none in DARKROOM_CORPUS")
@pytest.mark.parametrize("expected", expectations(), ids=lambda expected: expected["file"])
def test_every_collected_input_comes_out_as_listed(expected: dict[str, str]) -> None:
    text = (CORPUS / "events" / expected["file"]).read_text(encoding="utf-8")
    event = json.loads(text) if expected["kind"] == "sqs-lambda-event" else sqs_event(text)
    publisher = RecordingPublisher()
    failed = invoke(event, publisher)
    # Ids are UUIDs here, SNS and other stores are supported, and duplicates in a batch are published once.
    (count,) = re.findall(r"^\d+", expected["publishes"])
    asset_ids = re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", expected["asset_ids (after decode)"])
    assert [published.asset_id for published in publisher.events] == asset_ids
    assert len(asset_ids) == int(count)
    listed = re.findall(r"\[([0-9a-f]{8})", expected["batchItemFailures"])
    assert [identifier[:8] for identifier in failed] == listed


def test_lines_have_the_keys_of_the_other_services_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing(RecordingPublisher):
        def publish(self, records: Any, *, timeout: float) -> list[str | None]:  # noqa: ARG002 -- the protocol's
            return ["refused for sasl.password=hunter22hunter22 and Bearer abc.def.ghi" for _ in records]

    invoke(sqs_event(body(s3_record())), Refusing())
    out = capsys.readouterr().out
    (line,) = (one for one in map(json.loads, out.splitlines()) if one.get("event") == "upload_not_published")
    assert {"event", "level", "timestamp", "service", "asset_id", "event_id", "trace_id"} <= line.keys()
    assert line["asset_id"] == ASSET
    assert line["trace_id"] == ASSET.replace("-", "")
    assert "hunter22" not in out
    assert "abc.def.ghi" not in out
