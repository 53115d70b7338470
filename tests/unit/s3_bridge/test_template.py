"""The template says what the bridge counts on."""

from typing import Any

import pytest
from samtranslator.yaml_helper import yaml_parse

from darkroom.life.objects import REJECTED
from darkroom.local.deployment import VISIBILITY_TIMES_TIMEOUT, template_path
from s3_bridge.notification import EXTENSIONS

TEMPLATE: dict[str, Any] = yaml_parse(template_path().read_text(encoding="utf-8"))
RESOURCES: dict[str, Any] = {name: resource.get("Properties", {}) for name, resource in TEMPLATE["Resources"].items()}


def default(parameter: str) -> Any:
    return TEMPLATE["Parameters"][parameter]["Default"]


def statements(role: str) -> list[dict[str, Any]]:
    return [
        statement
        for policy in RESOURCES[role].get("Policies", [])
        for statement in policy["PolicyDocument"]["Statement"]
        if "Fn::If" not in statement
    ]


def test_notifications_are_for_originals_only_one_for_each_extension() -> None:
    suffixes = []
    for notification in RESOURCES["Bucket"]["NotificationConfiguration"]["QueueConfigurations"]:
        assert notification["Event"] == "s3:ObjectCreated:*"
        rules = {rule["Name"]: rule["Value"] for rule in notification["Filter"]["S3Key"]["Rules"]}
        assert rules["prefix"] == "assets/"
        suffixes.append(rules["suffix"])
    assert sorted(suffixes) == sorted(f"/original.{extension}" for extension in EXTENSIONS)


def test_sqs_04_failures_are_reported_and_end_in_the_dead_letter_queue() -> None:
    source = RESOURCES["BridgeFunction"]["Events"]["Uploads"]["Properties"]
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert source["BatchSize"] == 10
    assert RESOURCES["UploadsQueue"]["RedrivePolicy"]["maxReceiveCount"] == 3
    assert RESOURCES["UploadsDlq"]["MessageRetentionPeriod"] == 14 * 24 * 3600


def test_sqs_08_the_visibility_is_six_times_the_function_time() -> None:
    source = RESOURCES["BridgeFunction"]["Events"]["Uploads"]["Properties"]
    assert "MaximumBatchingWindowInSeconds" not in source
    assert default("QueueVisibilityTimeout") >= VISIBILITY_TIMES_TIMEOUT * default("FunctionTimeout")


def test_sqs_14_no_notification_is_too_large_for_the_queue() -> None:
    assert "MaximumMessageSize" not in RESOURCES["UploadsQueue"]


def test_the_bucket_is_versioned_encrypted_private_and_outlives_the_stack() -> None:
    bucket = RESOURCES["Bucket"]
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert all(bucket["PublicAccessBlockConfiguration"].values())
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    assert TEMPLATE["Resources"]["Bucket"]["DeletionPolicy"] == "RetainExceptOnCreate"
    (cors,) = bucket["CorsConfiguration"]["CorsRules"]
    assert {"ETag", "x-amz-version-id"} <= set(cors["ExposedHeaders"])
    assert {"content-type", "if-none-match", "x-amz-checksum-sha256"} <= set(cors["AllowedHeaders"])


@pytest.mark.parametrize(
    ("role", "actions"),
    [
        ("AssetApiRole", {"s3:PutObject", "s3:GetObject", "s3:GetObjectVersion"}),
        (
            "ProcessorRole",
            {
                "s3:PutObject",
                "s3:GetObject",
                "s3:GetObjectVersion",
                "s3:ListBucket",
                "s3:PutObjectTagging",
                "s3:PutObjectVersionTagging",
                "s3:DeleteObject",
                "s3:DeleteObjectVersion",
            },
        ),
        ("OutboxRelayRole", set()),
        (
            "SweeperRole",
            {
                "s3:GetObject",
                "s3:ListBucket",
                "s3:ListBucketVersions",
                "s3:DeleteObject",
                "s3:DeleteObjectVersion",
                "s3:PutObjectTagging",
                "s3:PutObjectVersionTagging",
            },
        ),
        (
            "ReconcilerRole",
            {
                "s3:GetObject",
                "s3:ListBucket",
                "s3:ListBucketVersions",
                "s3:GetObjectTagging",
                "s3:PutObjectTagging",
                "s3:DeleteObject",
            },
        ),
        ("NotifierRole", {"s3:GetObject"}),
        ("BridgePollerRole", {"sqs:ReceiveMessage", "sqs:DeleteMessage"}),
        (
            "BridgeRole",
            {
                "sqs:ReceiveMessage",
                "sqs:DeleteMessage",
                "sqs:GetQueueAttributes",
                "logs:CreateLogStream",
                "logs:PutLogEvents",
            },
        ),
    ],
)
def test_each_role_may_do_what_its_service_does_and_no_more(role: str, actions: set[str]) -> None:
    allowed: set[str] = set()
    for statement in statements(role):
        assert statement["Resource"] != "*"
        if statement["Effect"] == "Allow":
            allowed |= {statement["Action"]} if isinstance(statement["Action"], str) else set(statement["Action"])
    assert allowed == actions


def test_a_notifier_may_send_from_one_identity_and_only_where_one_is_named() -> None:
    (policy,) = RESOURCES["NotifierRole"]["Policies"]
    optional = [s["Fn::If"] for s in policy["PolicyDocument"]["Statement"] if "Fn::If" in s]
    assert {condition for condition, _, _ in optional} == {"SendsEmail"}
    rights = {statement["Action"]: statement["Resource"] for _, statement, _ in optional}
    assert rights.keys() == {"ses:SendEmail", "ses:GetAccount"}
    assert rights["ses:SendEmail"]["Fn::Sub"].endswith(":identity/${EmailIdentity}")
    assert default("EmailIdentity") == ""


def test_what_processors_tag_as_rejected_is_what_the_life_cycle_removes() -> None:
    rules = RESOURCES["Bucket"]["LifecycleConfiguration"]["Rules"]
    (rule,) = (rule for rule in rules if rule["Id"] == "expire-rejected-originals")
    assert rule["TagFilters"] == [REJECTED]
    assert rule["Status"] == "Enabled"
