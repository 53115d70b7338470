"""deploy/aws: what CloudFormation itself would refuse, and that services.yaml fits the services and the data stack."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings
from samtranslator.yaml_helper import yaml_parse

import asset_api.settings
import notifier.settings
import outbox_relay.settings
import processor.settings
import s3_bridge.settings
from darkroom.contracts.topics import Topics
from darkroom.life import app as life
from darkroom.runtime.settings import PREFIX
from unit.deploy.operations import ReconcilerSettings, refused_options

FOLDER = Path(__file__).parents[3] / "deploy" / "aws"
SERVICES: dict[str, Any] = yaml_parse((FOLDER / "services.yaml").read_text(encoding="utf-8"))
DATA: dict[str, Any] = yaml_parse((FOLDER / "template.yaml").read_text(encoding="utf-8"))
TASKS = {name: r["Properties"] for name, r in SERVICES["Resources"].items() if r["Type"] == "AWS::ECS::TaskDefinition"}
SETTINGS: dict[str, tuple[type[BaseSettings], str]] = {
    "ApiTask": (asset_api.settings.Settings, "AssetApiRoleArn"),
    "ProcessorTask": (processor.settings.Settings, "ProcessorRoleArn"),
    "RelayTask": (outbox_relay.settings.Settings, "OutboxRelayRoleArn"),
    "BridgeTask": (s3_bridge.settings.PollerSettings, "BridgePollerRoleArn"),
    "SweeperTask": (life.Settings, "SweeperRoleArn"),
    "ReconcilerTask": (ReconcilerSettings, "ReconcilerRoleArn"),
    "NotifierTask": (notifier.settings.Settings, "NotifierRoleArn"),
}


def container(task: str) -> dict[str, Any]:
    (only,) = TASKS[task]["ContainerDefinitions"]
    assert isinstance(only, dict)
    return only


def secrets(task: str) -> list[dict[str, Any]]:
    return [unconditional(entry) for entry in container(task)["Secrets"]]


def unconditional(entry: dict[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = entry["Fn::If"][1] if "Fn::If" in entry else entry
    return chosen


@pytest.mark.parametrize("name", ["template.yaml", "services.yaml"])
def test_no_template_has_aliases_which_cloudformation_refuses(name: str) -> None:
    events = yaml.parse((FOLDER / name).read_text(encoding="utf-8"))
    assert not [event for event in events if isinstance(event, yaml.AliasEvent)]


@pytest.mark.parametrize("name", ["template.yaml", "services.yaml"])
def test_a_template_is_within_what_a_request_may_carry(name: str) -> None:
    assert len((FOLDER / name).read_bytes()) < 51_200


OF_OTHERS = {"AWS_REGION", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"}
"""Read by AWS's and OpenTelemetry's libraries."""
UNTRACED = {"SweeperTask", "ReconcilerTask"}


def test_there_is_a_task_for_every_service() -> None:
    assert TASKS.keys() == SETTINGS.keys()


@pytest.mark.parametrize("task", SETTINGS)
def test_a_task_is_told_settings_that_its_service_has_and_all_that_it_must_have(task: str) -> None:
    fields = SETTINGS[task][0].model_fields
    named = {unconditional(entry)["Name"] for entry in [*container(task)["Environment"], *secrets(task)]}
    assert named >= ({"AWS_REGION"} if task in UNTRACED else OF_OTHERS)
    given = named - OF_OTHERS
    assert given <= {PREFIX + name.upper() for name in fields}
    assert given >= {PREFIX + name.upper() for name, field in fields.items() if field.is_required()}


@pytest.mark.parametrize("task", SETTINGS)
def test_secrets_come_from_the_secrets_manager_and_only_those_that_a_service_needs(task: str) -> None:
    fields = SETTINGS[task][0].model_fields
    secret = {"DARKROOM_MONGO_URL", "DARKROOM_JWT_SECRET", "DARKROOM_KAFKA_CONFIG", "DARKROOM_WEBHOOK_SECRET"}
    known = {PREFIX + name.upper() for name in fields}
    assert {entry["Name"] for entry in secrets(task)} == secret & known


@pytest.mark.parametrize("task", SETTINGS)
def test_a_task_has_its_own_role_no_root_and_nothing_to_write_to(task: str) -> None:
    assert TASKS[task]["TaskRoleArn"] == {"Ref": SETTINGS[task][1]}
    only = container(task)
    assert only["ReadonlyRootFilesystem"] is True
    assert only["User"] == "10001:10001"
    assert only["LinuxParameters"]["Capabilities"] == {"Drop": ["ALL"]}
    grace = SETTINGS[task][0].model_fields.get("grace_seconds")
    assert grace is None or only["StopTimeout"] > grace.default


@pytest.mark.parametrize("task", ["SweeperTask", "ReconcilerTask"])
def test_what_tidies_up_runs_once_and_for_ever(task: str) -> None:
    only = container(task)
    assert refused_options(only["Command"]) == set()
    assert "--every" in only["Command"]
    assert SERVICES["Resources"][task.replace("Task", "Service")]["Properties"]["DesiredCount"] == 1


def test_notifiers_are_there_only_where_they_are_wanted() -> None:
    optional = {name for name, one in SERVICES["Resources"].items() if one.get("Condition") == "RunsNotifier"}
    assert optional == {"NotifierTask", "NotifierService", "NotifierTasksAlarm"}
    assert SERVICES["Parameters"]["Notifiers"]["Default"] == 0


@pytest.mark.parametrize("task", SETTINGS)
def test_a_task_has_an_image_and_an_alarm_for_when_none_runs(task: str) -> None:
    image = re.fullmatch(r"\$\{ImagePrefix\}(\w+):\$\{ImageTag\}", container(task)["Image"]["Fn::Sub"])
    assert image is not None
    assert f"AS {image[1]}\n" in (FOLDER.parent / "Dockerfile").read_text(encoding="utf-8")
    if task != "BridgeTask":
        alarm = SERVICES["Resources"][f"{task}sAlarm"]["Properties"]
        service = {"Name": "ServiceName", "Value": {"Fn::GetAtt": [task.replace("Task", "Service"), "Name"]}}
        assert service in alarm["Dimensions"]


def test_the_roles_and_names_are_outputs_of_the_data_stack() -> None:
    taken = {"BucketName", "QueueUrl", *(role for _, role in SETTINGS.values())}
    assert taken <= SERVICES["Parameters"].keys()
    assert taken <= DATA["Outputs"].keys()


def test_processors_follow_the_lag_of_their_group_on_their_topic() -> None:
    policy = SERVICES["Resources"]["ProcessorByLag"]["Properties"]["TargetTrackingScalingPolicyConfiguration"]
    (lag,) = [m for m in policy["CustomizedMetricSpecification"]["Metrics"] if m["Id"] == "lag"]
    dimensions = {d["Name"]: d["Value"] for d in lag["MetricStat"]["Metric"]["Dimensions"]}
    assert dimensions["Consumer Group"] == processor.settings.Settings.model_fields["processor_group"].default
    assert dimensions["Topic"] == {"Fn::Sub": "${TopicPrefix}" + Topics().uploaded}
    assert SERVICES["Parameters"]["MaxProcessors"]["Default"] == Topics().specs()[0].partitions


def test_what_starts_tasks_may_read_the_named_secrets_and_write_the_one_log() -> None:
    (policy,) = SERVICES["Resources"]["ExecutionRole"]["Properties"]["Policies"]
    wide = [s["Sid"] for s in policy["PolicyDocument"]["Statement"] if s["Resource"] == "*"]
    assert wide == ["LogInToTheRegistry"]


def test_the_distribution_reads_renditions_by_signed_url_and_never_originals() -> None:
    cdn = DATA["Resources"]["Cdn"]["Properties"]["DistributionConfig"]
    assert cdn["DefaultCacheBehavior"]["TrustedKeyGroups"] == [{"Ref": "CdnKeyGroupId"}]
    assert cdn["Origins"][0]["OriginAccessControlId"] == {"Ref": "CdnAccess"}
    optional = [
        statement["Fn::If"][1]
        for statement in DATA["Resources"]["BucketPolicy"]["Properties"]["PolicyDocument"]["Statement"]
        if "Fn::If" in statement
    ]
    rights = {statement["Effect"]: statement for statement in optional}
    assert rights["Deny"]["Resource"] == {"Fn::Sub": "${Bucket.Arn}/assets/*/original.*"}
    assert "aws:SourceArn" in rights["Allow"]["Condition"]["StringEquals"]


@pytest.mark.parametrize("task", sorted(SETTINGS.keys() - {"ApiTask"}))
def test_a_task_that_no_load_balancer_asks_is_asked_on_the_images_own_health_port(task: str) -> None:
    dockerfile = (FOLDER.parent / "Dockerfile").read_text(encoding="utf-8")
    (port,) = set(re.findall(r"DARKROOM_HEALTH_PORT=(\d+)", dockerfile))
    assert f"http://127.0.0.1:{port}/healthz" in container(task)["HealthCheck"]["Command"][-1]
