"""The AWS endpoint on this machine: S3, SQS, Lambda, CloudFormation and more at one address (ministack)."""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from darkroom.local.declared import fill
from darkroom.local.disk import require_space
from darkroom.local.errors import ServerUnreachableError
from darkroom.local.ports import HOST, start_on_ports
from darkroom.local.processes import SupervisedProcess, Supervisor
from darkroom.runtime.addresses import check_url

DEFAULT_REGION = "us-east-1"
ENDPOINT_BYTES = 200_000_000
_READY = "Ready — "
_READY_SECONDS = 2.0
# It saves queues, functions and stacks when it is stopped: that takes longer than ending does.
_GRACE_SECONDS = 15.0


@dataclass(frozen=True)
class AwsEndpoint:
    """A running endpoint. Stopped with SIGTERM it has everything again at the next start; killed, only the objects."""

    url: str
    region: str
    process: SupervisedProcess


def start_aws(
    supervisor: Supervisor,
    folder: Path,
    *,
    port: int | None = None,
    region: str = DEFAULT_REGION,
    deadline: float = 30.0,
) -> AwsEndpoint:
    """Start the endpoint and return once it serves. It takes any credentials; its Lambda functions get none of ours.

    Data is kept in `<folder>/aws`. `port` fixes the port. `deadline` is in seconds. Raises LocalServerError.
    """
    home = folder / "aws"
    require_space(home, ENDPOINT_BYTES, purpose="The AWS endpoint")
    for name in ("state", "objects", "tmp"):
        (home / name).mkdir(parents=True, exist_ok=True)

    def start(chosen: list[int]) -> AwsEndpoint:
        (chosen_port,) = chosen
        url = f"http://{HOST}:{chosen_port}"
        process = supervisor.prepare(
            "aws",
            [sys.executable, "-m", "ministack"],
            env=without_aws(os.environ) | _settings(home, chosen_port, region),
            cwd=home,
            # Its own log line first: on a port that another stack took, somebody else would answer.
            ready=lambda: _READY in process.log() and _answers(f"{url}/_ministack/ready"),
            deadline=deadline,
            grace=_GRACE_SECONDS,
        )
        process.start()
        return AwsEndpoint(url=url, region=region, process=process)

    return start_on_ports(
        start, count=1, folder=home, server="The AWS endpoint", wanted=None if port is None else [port]
    )


def require_endpoint(url: str, *, timeout: float = 5.0) -> None:
    """Check that something speaks HTTP at an address the user gave; raises ServerUnreachableError otherwise."""
    try:
        check_url(url, base=True)
    except ValueError as error:
        raise ServerUnreachableError(
            f"AWS_ENDPOINT_URL: this is no address of an endpoint: {error}. Correct it, or leave the variable unset to "
            f"have one started here."
        ) from None
    try:
        _answers(url, timeout)
    except urllib.error.HTTPError:
        return  # an answer, if only to say that an unsigned request is refused
    except (OSError, ValueError, HTTPException) as error:
        raise ServerUnreachableError(
            f"AWS_ENDPOINT_URL: nothing answered at {url} within {timeout:g} s ({error}). Start that endpoint, correct "
            f"the address, or leave the variable unset to have one started here."
        ) from error


def without_aws(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the user's AWS settings: accounts, profiles and endpoints must not reach a local run."""
    return {
        name: value for name, value in environment.items() if not name.startswith("AWS_") or name == "AWS_CA_BUNDLE"
    }


def _settings(home: Path, port: int, region: str) -> dict[str, str]:
    lines = fill("aws.env", folder=home, port=port, region=region).splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _answers(url: str, timeout: float = _READY_SECONDS) -> bool:
    # An own opener without proxies: the address is on this machine or the user's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout) as response:
        return bool(response.status == 200)
