"""The fixtures that every other test relies on."""

from collections.abc import Callable
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pymongo.database import Database

from support.servers import aws_client


def test_a_fresh_database_has_transactions(mongo_db: Database[dict[str, Any]]) -> None:
    with mongo_db.client.start_session() as session:
        session.with_transaction(lambda s: mongo_db.things.insert_one({"_id": 1}, session=s))
    assert mongo_db.things.count_documents({}) == 1


def test_topics_can_be_made(kafka_bootstrap: str, topic_names: Callable[[str], str]) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    name = topic_names("assets.events")
    admin.create_topics([NewTopic(name, num_partitions=2)])[name].result(timeout=10)
    assert len(admin.list_topics(timeout=10).topics[name].partitions) == 2


def test_a_fresh_bucket_is_empty(aws_endpoint: str, bucket: str) -> None:
    s3 = aws_client("s3", aws_endpoint)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    s3.close()
