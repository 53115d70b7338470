"""Both templates deploy at the local endpoint, the second (without its scaling) with what the first puts out."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import WaiterError
from samtranslator.yaml_helper import yaml_parse

from darkroom.local.deployment import Outputs, delete, deploy, template_path
from support.servers import aws_client, aws_session


@pytest.fixture(scope="module")
def data(aws_endpoint: str) -> Iterator[Outputs]:
    """A data stack with a distribution in front and the bridge as a container."""
    name = f"ship{uuid.uuid4().hex[:8]}"
    yield deploy(
        aws_endpoint,
        stack_name=name,
        kafka_bootstrap="kafka:9092",
        session=aws_session(),
        parameters={"BridgeRunsAs": "container", "CdnKeyGroupId": "a-key-group", "EmailIdentity": "example.com"},
    )
    delete(aws_endpoint, stack_name=name, session=aws_session())


def stack_of(aws: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = aws.describe_stacks(StackName=name)["Stacks"][0]
    return found


def test_without_a_function_the_rest_is_there(aws_endpoint: str, data: Outputs) -> None:
    assert data.function_name == ""
    assert data.bridge_role_arn == ""
    assert aws_client("s3", aws_endpoint).head_bucket(Bucket=data.bucket)
    assert data.bridge_poller_role_arn


def for_the_endpoint() -> dict[str, Any]:
    """services.yaml, but for what the endpoint cannot do: it has no types for scaling, and counts must be numbers."""
    template: dict[str, Any] = yaml_parse(template_path().with_name("services.yaml").read_text(encoding="utf-8"))
    unknown = "AWS::ApplicationAutoScaling::"
    kept = {name: one for name, one in template["Resources"].items() if not one["Type"].startswith(unknown)}
    for one in kept.values():
        if one["Type"] == "AWS::ECS::Service":
            one["Properties"]["DesiredCount"] = 1
    return {**template, "Resources": kept}


def test_the_services_deploy_beside_it(aws_endpoint: str, data: Outputs) -> None:
    cloudformation, name = aws_client("cloudformation", aws_endpoint), f"svc{uuid.uuid4().hex[:8]}"
    ec2, secrets = aws_client("ec2", aws_endpoint), aws_client("secretsmanager", aws_endpoint)
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnets = ",".join(subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"][:2])
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    secret = secrets.create_secret(Name=name, SecretString="mongodb://m/?replicaSet=rs0")["ARN"]
    values = {
        "BucketName": data.bucket,
        "QueueUrl": data.queue_url,
        "AssetApiRoleArn": data.asset_api_role_arn,
        "ProcessorRoleArn": data.processor_role_arn,
        "OutboxRelayRoleArn": data.outbox_relay_role_arn,
        "BridgePollerRoleArn": data.bridge_poller_role_arn,
        "SweeperRoleArn": data.sweeper_role_arn,
        "ReconcilerRoleArn": data.reconciler_role_arn,
        "NotifierRoleArn": data.notifier_role_arn,
        "ImagePrefix": "registry.example.com/darkroom/",
        "ImageTag": "1",
        "VpcId": vpc,
        "SubnetIds": subnets,
        "SecurityGroupIds": group,
        "LoadBalancerSubnetIds": subnets,
        "CertificateArn": "arn:aws:acm:us-east-1:000000000000:certificate/1",
        "MongoUrlSecretArn": secret,
        "JwtSecretArn": secret,
        "KafkaBootstrap": "kafka:9092",
        "MskClusterName": "kafka",
        "BridgePollers": "1",
        "Notifiers": "1",
        "EmailFrom": "pictures@example.com",
        "WebhookUrl": "https://example.com/hook",
        "WebhookSecretArn": secret,
    }
    cloudformation.create_stack(
        StackName=name,
        TemplateBody=json.dumps(for_the_endpoint()),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()],
        Capabilities=["CAPABILITY_IAM"],
    )
    try:
        cloudformation.get_waiter("stack_create_complete").wait(
            StackName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )
        resources = cloudformation.describe_stack_resources(StackName=name)["StackResources"]
        services = [r for r in resources if r["ResourceType"] == "AWS::ECS::Service"]
        assert len(services) == 7
        assert stack_of(cloudformation, name)["Outputs"]
    except WaiterError as error:
        events = cloudformation.describe_stack_events(StackName=name)["StackEvents"]
        error.add_note(
            "\n".join(
                f"{e['LogicalResourceId']}: {e.get('ResourceStatusReason')}"
                for e in events
                if "FAILED" in e["ResourceStatus"]
            )
        )
        raise
    finally:
        cloudformation.delete_stack(StackName=name)
        secrets.delete_secret(SecretId=secret, ForceDeleteWithoutRecovery=True)
