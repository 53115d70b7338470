"""The cloud side, deployed as it is on AWS: deploy/aws/template.yaml through CloudFormation, the bridge as a Lambda.

What `sam package` and `sam deploy` do, for one template and one function, so that nobody needs to install SAM's tools.
"""

import hashlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from darkroom.local.errors import LocalServerError

BRIDGE_SERVICE = "s3_bridge"
VISIBILITY_TIMES_TIMEOUT = 6
"""AWS's advice for a queue that feeds a function; a shorter visibility lets one message run twice at one time."""

_HERE = Path(__file__).resolve().parent
_CODE_URI = re.compile(r"^(\s*CodeUri:).*$", re.MULTILINE)
# What the handler imports; the poller's modules need packages that a function does not carry.
_LIBRARY = (
    "__init__.py",
    "contracts/*.py",
    "runtime/__init__.py",
    "runtime/addresses.py",
    "runtime/kafka.py",
    "runtime/settings.py",
    "runtime/redaction.py",
    "runtime/sampling.py",
    "runtime/start.py",
    "runtime/tracing.py",
    "tracing/*.py",
)
_ONLY_POLLER = ("app.py", "metrics.py", "poller.py", "__main__.py")
_CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
_NOTHING_TO_UPDATE = "No updates are to be performed"
_LAMBDA_PYTHON = "3.13"
_LAMBDA_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64")
_POLL_SECONDS = 0.2


class DeploymentError(LocalServerError):
    """The stack could not be deployed or deleted; the message names the resources that failed and why."""


@contextmanager
def _told() -> Iterator[None]:
    """Around calls to AWS: whatever else it refuses is a DeploymentError, too."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise DeploymentError(
            f"AWS, or what AWS_ENDPOINT_URL names, did not take the deployment: {error}. It needs credentials, a "
            f"region and an endpoint with S3, STS, SQS, Lambda and CloudFormation."
        ) from error


@dataclass(frozen=True)
class Outputs:
    """What the stack made, as the services need it. Without a function its name and its role are empty."""

    bucket: str
    queue_url: str
    queue_arn: str
    dlq_url: str
    dlq_arn: str
    function_name: str
    asset_api_role_arn: str
    processor_role_arn: str
    outbox_relay_role_arn: str
    sweeper_role_arn: str
    reconciler_role_arn: str
    notifier_role_arn: str
    bridge_role_arn: str
    bridge_poller_role_arn: str


@_told()
def deploy(
    endpoint_url: str | None,
    *,
    stack_name: str,
    kafka_bootstrap: str,
    topic_prefix: str = "",
    kafka_config: Mapping[str, Any] | None = None,
    allowed_origins: Sequence[str] = (),
    function_timeout: int = 30,
    queue_visibility: int | None = None,
    max_concurrency: int | None = None,
    log_level: str = "INFO",
    parameters: Mapping[str, str] | None = None,
    dependencies: Path | None = None,
    session: Any = None,
    deadline: float = 120.0,
) -> Outputs:
    """Create the stack or bring it up to date, and wait until it is; times are seconds.

    ``endpoint_url`` is None for AWS itself. ``queue_visibility`` defaults to six times ``function_timeout``.
    ``max_concurrency`` limits the function's invocations at one time (0: no limit); by default the template says how
    many, except that the local endpoint, which cannot read a limit, has its own of five. ``parameters`` are further
    ones of the template, by their names. ``dependencies`` is a folder of packages that go into the function's zip
    (``fetch_dependencies``); the local endpoint runs functions with the packages of this environment and needs none.
    ``session`` is a boto3 session; by default it comes from the environment.

    Raises:
        DeploymentError: a resource failed, or the stack was not ready before the deadline.

    """
    if stack_name != stack_name.lower():
        raise DeploymentError(f"stack_name: {stack_name!r} must be lower-case, since the bucket is named after it")
    if endpoint_url is None and dependencies is None:
        raise DeploymentError("dependencies: on AWS the function needs its packages in the zip; see fetch_dependencies")
    if endpoint_url is not None and max_concurrency is None:
        max_concurrency = 0
    aws = _Aws(session or boto3.session.Session(), endpoint_url, ends=time.monotonic() + deadline)
    code_uri = aws.upload(f"{stack_name}-artifacts", package_bridge(dependencies=dependencies))
    values = {
        "KafkaBootstrap": kafka_bootstrap,
        "TopicPrefix": topic_prefix,
        "KafkaConfig": json.dumps(dict(kafka_config or {})),
        "FunctionTimeout": str(function_timeout),
        "QueueVisibilityTimeout": str(queue_visibility or function_timeout * VISIBILITY_TIMES_TIMEOUT),
        "LogLevel": log_level,
        **({"AllowedOrigins": ",".join(allowed_origins)} if allowed_origins else {}),
        **({} if max_concurrency is None else {"MaxConcurrency": str(max_concurrency)}),
        **(parameters or {}),
    }
    aws.bring_up(stack_name, packaged_template(code_uri), values)
    found = aws.outputs(stack_name)
    return Outputs(
        bucket=found["BucketName"],
        queue_url=found["QueueUrl"],
        queue_arn=found["QueueArn"],
        dlq_url=found["DlqUrl"],
        dlq_arn=found["DlqArn"],
        function_name=found.get("FunctionName", ""),
        asset_api_role_arn=found["AssetApiRoleArn"],
        processor_role_arn=found["ProcessorRoleArn"],
        outbox_relay_role_arn=found["OutboxRelayRoleArn"],
        sweeper_role_arn=found["SweeperRoleArn"],
        reconciler_role_arn=found["ReconcilerRoleArn"],
        notifier_role_arn=found["NotifierRoleArn"],
        bridge_role_arn=found.get("BridgeRoleArn", ""),
        bridge_poller_role_arn=found["BridgePollerRoleArn"],
    )


@_told()
def delete(endpoint_url: str | None, *, stack_name: str, session: Any = None, deadline: float = 120.0) -> None:
    """Delete the stack. The bucket and all that is in it stay, as the template says. No stack: nothing happens.

    Raises:
        DeploymentError: a resource could not be deleted before the deadline.

    """
    aws = _Aws(session or boto3.session.Session(), endpoint_url, ends=time.monotonic() + deadline)
    if aws.status(stack_name) is not None:
        aws.tear_down(stack_name)


def template_path() -> Path:
    """Where deploy/aws/template.yaml is, in an installed wheel as in the repository."""
    installed = _HERE / "deploy" / "aws"
    return (installed if installed.is_dir() else _HERE.parents[2] / "deploy" / "aws") / "template.yaml"


def packaged_template(code_uri: str) -> str:
    """The template with the function's code taken from ``code_uri`` (s3://bucket/key)."""
    text, count = _CODE_URI.subn(lambda line: f"{line[1]} {code_uri}", template_path().read_text(encoding="utf-8"))
    if count != 1:
        raise DeploymentError(f"{template_path()}: CodeUri is there {count} times; it must be there once")
    return text


def package_bridge(*, dependencies: Path | None = None) -> bytes:
    """A zip of the bridge and what it needs of ``darkroom``; the same source always gives the same bytes."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_bridge_files(dependencies)):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return target.getvalue()


def fetch_dependencies(lock: Path, target: Path) -> None:
    """Install what ``lock`` pins into ``target``, in the builds that Lambda runs.

    That is requirements/s3-bridge.lock, or s3-bridge-telemetry.lock for a function that sends traces.

    Raises:
        DeploymentError: with pip's last words.

    """
    platforms = [argument for platform in _LAMBDA_PLATFORMS for argument in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    command += ["--no-deps", "--only-binary=:all:", *platforms, "--python-version", _LAMBDA_PYTHON]
    done = subprocess.run(
        [*command, "--target", str(target), "-r", str(lock)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DeploymentError(f"pip could not install {lock}: {done.stderr.strip()[-2000:]}")


def _bridge_files(dependencies: Path | None) -> Iterator[tuple[str, Path]]:
    service = _package_folder(BRIDGE_SERVICE)
    for path in service.glob("*.py"):
        if path.name not in _ONLY_POLLER:
            yield f"{BRIDGE_SERVICE}/{path.name}", path
    library = _HERE.parent
    for pattern in _LIBRARY:
        for path in library.glob(pattern):
            yield f"darkroom/{path.relative_to(library).as_posix()}", path
    if dependencies is not None:
        for path in dependencies.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(dependencies).as_posix(), path


def _package_folder(name: str) -> Path:
    # Found, not imported: the service's packages need not be loaded here.
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise DeploymentError(f"the package {name} is not installed beside darkroom; install darkroom[local] again")
    return Path(spec.origin).parent


class _Aws:
    """The calls that a deployment makes, all within one deadline."""

    def __init__(self, session: Any, endpoint_url: str | None, *, ends: float) -> None:
        config = Config(s3={"addressing_style": "path"} if endpoint_url else None)
        self._s3 = session.client("s3", endpoint_url=endpoint_url, config=config)
        self._cloudformation = session.client("cloudformation", endpoint_url=endpoint_url)
        self._account = session.client("sts", endpoint_url=endpoint_url).get_caller_identity()["Account"]
        self._region = self._cloudformation.meta.region_name
        self._ends = ends

    def upload(self, name: str, content: bytes) -> str:
        """Put ``content`` into a bucket made for it, under the name of its hash; gives the s3:// address."""
        bucket = f"{name}-{self._account}-{self._region}"
        try:
            self._s3.head_bucket(Bucket=bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
                raise DeploymentError(f"bucket {bucket} for the function's code: {error}") from error
            # us-east-1 is the one region that must not be named.
            where = {} if self._region == "us-east-1" else {"LocationConstraint": self._region}
            self._s3.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": where} if where else {}))
        key = f"{BRIDGE_SERVICE}/{hashlib.sha256(content).hexdigest()}.zip"
        self._s3.put_object(Bucket=bucket, Key=key, Body=content)
        return f"s3://{bucket}/{key}"

    def bring_up(self, stack_name: str, template: str, values: Mapping[str, str]) -> None:
        """Create or update the stack and wait."""
        status = self.status(stack_name)
        if status in ("ROLLBACK_COMPLETE", "CREATE_FAILED", "ROLLBACK_FAILED"):
            # A first deployment that failed leaves a stack that can only be deleted.
            self.tear_down(stack_name)
            status = None
        request = {
            "StackName": stack_name,
            "TemplateBody": template,
            "Parameters": [{"ParameterKey": name, "ParameterValue": value} for name, value in values.items()],
            "Capabilities": _CAPABILITIES,
        }
        try:
            if status is None:
                self._cloudformation.create_stack(**request)
            else:
                self._cloudformation.update_stack(**request)
        except ClientError as error:
            if _NOTHING_TO_UPDATE in str(error):
                return
            raise DeploymentError(f"stack {stack_name} was refused: {error}") from error
        self._wait(stack_name, done=("CREATE_COMPLETE", "UPDATE_COMPLETE"))

    def tear_down(self, stack_name: str) -> None:
        """Delete the stack and wait."""
        stack_id = self._stack(stack_name)["StackId"]
        self._cloudformation.delete_stack(StackName=stack_name)
        # By its id a stack can still be asked for after its deletion.
        self._wait(stack_id, done=("DELETE_COMPLETE", None))

    def status(self, stack_name: str) -> str | None:
        """The stack's status; None if there is no such stack."""
        status: str | None = self._stack(stack_name).get("StackStatus")
        return None if status == "DELETE_COMPLETE" else status

    def outputs(self, stack_name: str) -> dict[str, str]:
        """The stack's outputs by name."""
        return {entry["OutputKey"]: entry["OutputValue"] for entry in self._stack(stack_name).get("Outputs", [])}

    def _wait(self, stack: str, *, done: Iterable[str | None]) -> None:
        while True:
            status = self._stack(stack).get("StackStatus")
            if status in done:
                return
            # While it rolls back the reasons are known already, yet only its end frees the names.
            if status is None or (not status.endswith("IN_PROGRESS") and not status.endswith("CLEANUP_IN_PROGRESS")):
                raise DeploymentError(f"stack {stack} ended as {status}.\n{self._failures(stack)}")
            if time.monotonic() > self._ends:
                raise DeploymentError(f"stack {stack} is still {status} at the deadline.\n{self._failures(stack)}")
            time.sleep(_POLL_SECONDS)

    def _failures(self, stack: str) -> str:
        # Of DescribeEvents, since it alone tells what CloudFormation's validation before the first resource found.
        events = self._cloudformation.describe_events(StackName=stack, Filters={"FailedEvents": True})
        failed = [
            f"{event.get('LogicalResourceId', stack)} ({event.get('ResourceType', 'no type')}): "
            f"{event.get('ValidationStatusReason') or event.get('ResourceStatusReason') or 'no reason'}"
            for event in reversed(events["OperationEvents"])
        ]
        return "\n".join(failed) or "CloudFormation reports no failed resource."

    def _stack(self, stack: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._cloudformation.describe_stacks(StackName=stack)["Stacks"][0]
        except ClientError as error:
            if "does not exist" in str(error):
                return {}
            raise DeploymentError(f"stack {stack}: {error}") from error
        return found
