"""The very template of deploy/aws, deployed: from a PUT to the record on Kafka, through S3, SQS and Lambda."""

import json
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from darkroom.contracts.envelope import BRIDGE_SOURCE
from darkroom.contracts.ids import upload_event_id
from darkroom.contracts.topics import Topics
from darkroom.local.deployment import DeploymentError, Outputs, delete
from support.eventually import eventually
from support.queues import headers_of, messages_in, move_messages, read_topic
from support.s3_messages import ETAG, body, original, s3_record
from support.servers import aws_client

Deploy = Callable[..., Outputs]
Item = TypeVar("Item")


def put(s3: Any, bucket: str, key: str) -> Any:
    return s3.put_object(Bucket=bucket, Key=key, Body=b"picture", ContentType="image/jpeg")


def one(found: list[Item]) -> Item:
    (item,) = found
    return item


def hurry(sqs: Any, outputs: Outputs) -> None:
    """Once the function is warm (S3's test messages are gone), let messages come back after four seconds."""
    eventually(lambda: messages_in(sqs, outputs.queue_url) == 0, deadline=60, what="the test messages handled")
    sqs.set_queue_attributes(QueueUrl=outputs.queue_url, Attributes={"VisibilityTimeout": "4"})


def java_partition(key: bytes, partitions: int) -> int:
    """Where Java's default partitioner puts a key: murmur2, which a Java consumer's join or compaction counts on."""
    mask, m, length = 0xFFFFFFFF, 0x5BD1E995, len(key)
    h = (0x9747B28C ^ length) & mask
    for start in range(0, length - length % 4, 4):
        k = int.from_bytes(key[start : start + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    tail = key[length - length % 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


def test_a_put_of_an_original_becomes_a_record(stack: Deploy, topics: Topics, kafka_bootstrap: str, s3: Any) -> None:
    outputs = stack(topic_prefix=topics.prefix)
    asset_id = str(uuid.uuid4())
    # A rendition first: had it been announced, it would be on the topic before the original is.
    put(s3, outputs.bucket, f"assets/{asset_id}/thumb.jpg")
    answer = put(s3, outputs.bucket, original(asset_id))
    record = one(read_topic(kafka_bootstrap, topics.uploaded, count=1))
    headers = headers_of(record)
    assert record.key() == asset_id.encode()
    assert record.partition() == java_partition(asset_id.encode(), 6)
    assert headers["ce_type"] == "AssetUploaded"
    assert headers["ce_source"] == BRIDGE_SOURCE
    assert headers["ce_subject"] == asset_id
    assert headers["content-type"] == "application/json"
    etag = answer["ETag"].strip('"')
    assert headers["ce_id"] == upload_event_id(outputs.bucket, original(asset_id), answer["VersionId"], etag)
    data = json.loads(record.value() or b"")
    assert data["bucket"] == outputs.bucket
    assert data["object_key"] == original(asset_id)
    assert data["version_id"] == answer["VersionId"]
    assert data["size"] == len(b"picture")
    assert len(read_topic(kafka_bootstrap, topics.uploaded, count=2, deadline=3)) == 1


def test_a_duplicated_notification_has_the_same_event_id_and_a_malformed_one_is_set_aside(
    stack: Deploy, topics: Topics, kafka_bootstrap: str, sqs: Any
) -> None:
    outputs = stack(topic_prefix=topics.prefix)
    hurry(sqs, outputs)
    notification = body(s3_record(bucket=outputs.bucket, versionId="v1"))
    for text in (notification, "this is not json", notification):
        sqs.send_message(QueueUrl=outputs.queue_url, MessageBody=text)
    eventually(lambda: messages_in(sqs, outputs.dlq_url) == 1, deadline=60, what="the malformed body in the DLQ")
    eventually(lambda: messages_in(sqs, outputs.queue_url) == 0, what="an empty queue")
    records = read_topic(kafka_bootstrap, topics.uploaded, count=3, deadline=2)
    # How often it is published is SQS's business; that it is always the same event is ours.
    assert {headers_of(record)["ce_id"] for record in records} == {
        upload_event_id(outputs.bucket, original(), "v1", ETAG)
    }
    dead = one(sqs.receive_message(QueueUrl=outputs.dlq_url, WaitTimeSeconds=0)["Messages"])
    assert dead["Body"] == "this is not json"


def test_broker_down_then_back(stack: Deploy, mortal: Any, s3: Any, sqs: Any) -> None:
    outputs = stack(kafka_bootstrap=mortal.bootstrap, topic_prefix=mortal.topics.prefix, function_timeout=5)
    topic = mortal.topics.uploaded
    first, asset_id = str(uuid.uuid4()), str(uuid.uuid4())
    put(s3, outputs.bucket, original(first))
    assert one(read_topic(mortal.bootstrap, topic, count=1)).key() == first.encode()
    hurry(sqs, outputs)
    mortal.broker.kill()
    answer = put(s3, outputs.bucket, original(asset_id))
    eventually(lambda: messages_in(sqs, outputs.dlq_url) == 1, deadline=60, what="the message in the DLQ")
    assert messages_in(sqs, outputs.queue_url) == 0
    mortal.broker.start()
    assert move_messages(sqs, source=outputs.dlq_url, target=outputs.queue_url) == 1

    def published() -> bool:
        if messages_in(sqs, outputs.dlq_url):
            # A broker that has only just started may need more than this function's four seconds.
            move_messages(sqs, source=outputs.dlq_url, target=outputs.queue_url)
        return len(read_topic(mortal.bootstrap, topic, count=2, deadline=1)) == 2

    eventually(published, deadline=60, what="the redriven upload on Kafka")
    records = {record.key(): headers_of(record) for record in read_topic(mortal.bootstrap, topic, count=2)}
    etag = answer["ETag"].strip('"')
    expected = upload_event_id(outputs.bucket, original(asset_id), answer["VersionId"], etag)
    assert records[asset_id.encode()]["ce_id"] == expected


def test_settings_of_kafka_may_be_kept_in_a_secret(
    stack: Deploy, topics: Topics, kafka_bootstrap: str, aws_endpoint: str, s3: Any
) -> None:
    secrets = aws_client("secretsmanager", aws_endpoint)
    secret = json.dumps({"security.protocol": "PLAINTEXT"})
    arn = secrets.create_secret(Name=f"test-{uuid.uuid4().hex[:8]}", SecretString=secret)["ARN"]
    outputs = stack(
        topic_prefix=topics.prefix,
        # Alone it would reach no broker here.
        kafka_config={"security.protocol": "SSL"},
        parameters={"KafkaConfigSecretArn": arn},
    )
    asset_id = str(uuid.uuid4())
    put(s3, outputs.bucket, original(asset_id))
    assert one(read_topic(kafka_bootstrap, topics.uploaded, count=1)).key() == asset_id.encode()
    secrets.delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True)
    secrets.close()


def test_deploying_again_updates_the_stack(stack: Deploy, topics: Topics, kafka_bootstrap: str, s3: Any) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    outputs = stack(stack_name=name, topic_prefix="somewhere-else.")
    assert stack(stack_name=name, topic_prefix="somewhere-else.") == outputs
    assert stack(stack_name=name, topic_prefix=topics.prefix) == outputs
    asset_id = str(uuid.uuid4())
    put(s3, outputs.bucket, original(asset_id))
    assert one(read_topic(kafka_bootstrap, topics.uploaded, count=1)).key() == asset_id.encode()


def test_a_failed_deployment_names_the_resource_and_the_reason(stack: Deploy, s3: Any, bucket: str) -> None:
    prefix = f"taken-{uuid.uuid4().hex[:8]}"
    first = stack(parameters={"BucketPrefix": prefix})
    try:
        with pytest.raises(DeploymentError, match=r"(?s)Bucket.*exists"):
            stack(parameters={"BucketPrefix": prefix})
    finally:
        s3.delete_bucket(Bucket=first.bucket)


def test_deleting_a_stack_keeps_the_pictures(stack: Deploy, s3: Any, aws_endpoint: str, session: Any) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    outputs = stack(stack_name=name)
    put(s3, outputs.bucket, original())
    delete(aws_endpoint, stack_name=name, session=session)
    delete(aws_endpoint, stack_name=name, session=session)
    assert s3.get_object(Bucket=outputs.bucket, Key=original())["Body"].read() == b"picture"
