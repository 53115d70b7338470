"""All of Darkroom on this machine: the servers, the cloud side deployed from its template, and the services."""

import contextlib
import json
import os
import re
import secrets
import shlex
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from darkroom.contracts.topics import Topics
from darkroom.local.deployment import DeploymentError, Outputs, deploy
from darkroom.local.errors import AnotherStackError, ServerNotReadyError
from darkroom.local.ports import HOST, require_free, start_on_free_ports
from darkroom.local.processes import SupervisedProcess, Supervisor, in_parallel
from darkroom.local.servers import Servers, named_servers, start_servers
from darkroom.runtime.kafka import ensure_topics
from darkroom.runtime.tokens import mint

DAY = 24 * 3600
STACK_VARIABLE = "DARKROOM_LOCAL_STACK"
"""In the environment file alone: the folder of the stack whose environment it is."""
TIDYING = {
    "sweeper": ("darkroom.cli", "sweep", "--every", "300"),
    "reconciler": ("darkroom.cli", "reconcile", "--every", "300", "--objects-every", "86400"),
}
"""What is started beside the services if it is asked for, and as what."""
_SHARED = (
    "DARKROOM_MONGO_DATABASE",
    "DARKROOM_TOPIC_PREFIX",
    "DARKROOM_JWT_SECRET",
    "DARKROOM_BUCKET",
    "DARKROOM_PROCESSOR_GROUP",
)
"""What services and operations must be told alike."""
_PORT = re.compile(r'"(?:health_)?port": (\d+)')


@dataclass(frozen=True)
class Stack:
    """What runs. ``services`` holds each service's processes by its name."""

    servers: Servers
    outputs: Outputs
    topics: Topics
    api_urls: tuple[str, ...]
    jwt_secret: str
    services: Mapping[str, tuple[SupervisedProcess, ...]]
    settings: Mapping[str, str]
    """What services and operations are told alike."""
    environment_file: Path
    """``operations_environment``, as it was when everything was ready, for a shell to source."""

    @property
    def processes(self) -> tuple[SupervisedProcess, ...]:
        """Every server and service process that was started here."""
        return (*self.servers.processes, *(process for each in self.services.values() for process in each))

    @property
    def api_url(self) -> str:
        """The first API's address."""
        return self.api_urls[0]

    def operations_environment(self) -> dict[str, str]:
        """What the ``darkroom`` command must find in its environment to operate this stack as it is now."""
        return _operations(self.settings, self.services)

    def token(self, owner: str, *, seconds: int = DAY) -> str:
        """A bearer token for ``owner`` that this stack's API accepts."""
        return mint(self.jwt_secret, owner=owner, seconds=seconds)

    def page_url(self, owner: str) -> str:
        """The page's address with a token; a fragment stays in the browser and in nobody's log."""
        return f"{self.api_url}/#token={self.token(owner)}"


@contextlib.contextmanager
def start_stack(
    data_dir: Path,
    *,
    api_port: int | None = None,
    topic_prefix: str = "",
    database: str = "darkroom",
    stack_name: str = "darkroom",
    apis: int = 1,
    processors: int = 1,
    relays: int = 1,
    tidying: bool = False,
    settings: Mapping[str, str] | None = None,
    service_settings: Mapping[str, Mapping[str, str]] | None = None,
    function_timeout: int = 30,
    queue_visibility: int | None = None,
    environment: Mapping[str, str] | None = None,
    session: Any = None,
) -> Iterator[Stack]:
    """Start everything, yield it once every service is ready, and end what was started.

    Servers named by ``environment`` (None: os.environ) are used instead of local ones, see ``start_servers``.
    ``settings`` are further environment variables for the services, ``service_settings`` for those of one name alone.
    ``api_port`` is the first API's. ``tidying``: with a sweeper and a reconciler.
    ``function_timeout`` and ``queue_visibility`` are the bridge's, see ``deploy``.
    ``session`` is the boto3 session that deploys; by default AWS's own variables decide, and for a local endpoint
    credentials that mean nothing. Raises LocalServerError.
    """
    _refuse_another_stack(os.environ if environment is None else environment)
    topics = Topics(topic_prefix)
    with (
        start_servers(data_dir, environment=environment) as servers,
        Supervisor(servers.log_dir / "services") as supervisor,
    ):
        ensure_topics(servers.kafka_bootstrap, topics.specs())
        secret = _secret(data_dir)
        given = {
            **servers.process_environment(),
            "DARKROOM_MONGO_DATABASE": database,
            "DARKROOM_TOPIC_PREFIX": topic_prefix,
            "DARKROOM_JWT_SECRET": secret,
            **(settings or {}),
        }

        def prepare(name: str, number: int, **own: str) -> SupervisedProcess:
            return _prepare(supervisor, name, number, given | dict((service_settings or {}).get(name, {})) | own)

        def start_apis(ports: list[int]) -> tuple[Outputs, tuple[SupervisedProcess, ...]]:
            # The pages' origins are part of what is deployed: the bucket lets no other page upload.
            with _naming_the_folder(data_dir, servers):
                outputs = deploy(
                    servers.aws_endpoint_url,
                    session=session or _session(servers),
                    stack_name=stack_name,
                    kafka_bootstrap=servers.kafka_bootstrap,
                    topic_prefix=topic_prefix,
                    allowed_origins=[_url(port) for port in ports],
                    function_timeout=function_timeout,
                    queue_visibility=queue_visibility,
                    log_level=given.get("DARKROOM_LOG_LEVEL", "INFO").upper(),
                    parameters=_function_parameters(given),
                )
            given["DARKROOM_BUCKET"] = outputs.bucket
            started = tuple(
                prepare("asset_api", number, DARKROOM_HTTP_PORT=str(port)) for number, port in enumerate(ports)
            )
            in_parallel([process.start for process in started])
            return outputs, started

        fixed = [] if api_port is None else [require_free(api_port, server="The API")]
        free, (outputs, api) = start_on_free_ports(lambda free: start_apis(fixed + free), count=apis - len(fixed))
        wanted = (("processor", processors), ("outbox_relay", relays), *((name, int(tidying)) for name in TIDYING))
        services = {name: tuple(prepare(name, number) for number in range(count)) for name, count in wanted if count}
        in_parallel([process.start for processes in services.values() for process in processes])
        if processors:
            _await_assignment(services["processor"])
        services = {"asset_api": api, **services}
        shared = {name: given[name] for name in _SHARED if name in given}
        shared |= {**servers.environment(), "DARKROOM_QUEUE_URL": outputs.queue_url}
        yield Stack(
            servers=servers,
            outputs=outputs,
            topics=topics,
            api_urls=tuple(_url(port) for port in fixed + free),
            jwt_secret=secret,
            services=services,
            settings=shared,
            environment_file=_write_environment(
                data_dir / "environment", {STACK_VARIABLE: str(data_dir.absolute()), **_operations(shared, services)}
            ),
        )


def _refuse_another_stack(environment: Mapping[str, str]) -> None:
    """Whoever sourced a stack's environment file to operate it does not mean to deploy over it from somewhere else."""
    folder, named = environment.get(STACK_VARIABLE), named_servers(environment)
    if folder and named:
        variables = " ".join(named.values())
        raise AnotherStackError(
            f"This shell has the environment of the stack in {folder}: {variables} would have its servers used instead "
            f"of new ones, and its deployment replaced. Use another shell, or: unset {variables}. If you mean that "
            f"stack's servers: unset {STACK_VARIABLE}."
        )


@contextlib.contextmanager
def _naming_the_folder(data_dir: Path, servers: Servers) -> Iterator[None]:
    """Around a deployment: what can be done when it fails at an endpoint of ours."""
    try:
        yield
    except DeploymentError as error:
        if servers.aws is None:
            raise
        raise DeploymentError(
            f"{error}\nAn AWS endpoint that was killed has kept its buckets and forgotten its stacks. If that is what "
            f"happened in {data_dir}, delete that folder, or name another one by --data."
        ) from error


def _function_parameters(given: Mapping[str, str]) -> dict[str, str]:
    """What the function, whose environment the template makes, must be told like the other services."""
    names = {
        "OtlpEndpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
        "TracesSampler": "OTEL_TRACES_SAMPLER",
        "TracesSamplerArg": "OTEL_TRACES_SAMPLER_ARG",
        "LogLibraries": "DARKROOM_LOG_LIBRARIES",
    }
    return {parameter: given[name] for parameter, name in names.items() if given.get(name)}


def _operations(settings: Mapping[str, str], services: Mapping[str, Sequence[SupervisedProcess]]) -> dict[str, str]:
    # A service that was started again listens on another port.
    urls = [_health_url(process) for processes in services.values() for process in processes]
    return {**settings, "DARKROOM_HEALTH_URLS": ",".join(urls)}


def _prepare(supervisor: Supervisor, name: str, number: int, environment: Mapping[str, str]) -> SupervisedProcess:
    process = supervisor.prepare(
        name if number == 0 else f"{name}-{number + 1}",
        [sys.executable, "-m", *TIDYING.get(name, (name,))],
        env=environment,
        ready=lambda: _facts(process.log()) is not None,
        deadline=60.0,
        grace=30.0,
    )
    return process


def _health_url(process: SupervisedProcess) -> str:
    return f"{_url(int(_PORT.findall(process.log())[-1]))}/readyz"


def _write_environment(file: Path, settings: Mapping[str, str]) -> Path:
    """Lines that a shell sources; they hold the key that signs tokens, so nobody else may read them."""
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
    file.write_text("".join(lines), encoding="utf-8")
    return file


def _facts(log: str) -> dict[str, Any] | None:
    """What the service says of itself on the port that it logs at its start; None before it is ready."""
    if not (found := _PORT.findall(log)):
        return None
    try:
        with urllib.request.urlopen(f"{_url(int(found[-1]))}/readyz", timeout=2) as answer:  # noqa: S310 -- http, see _url
            facts: dict[str, Any] = json.load(answer)
    except OSError:
        return None
    return facts


def _await_assignment(processors: Sequence[SupervisedProcess], *, seconds: float = 60.0) -> None:
    """Wait until the group has met, or the first picture would wait for it."""
    ends = time.monotonic() + seconds
    while not any((_facts(process.log()) or {}).get("assigned") for process in processors):
        if time.monotonic() > ends:
            raise ServerNotReadyError(
                f"no processor was given a partition in {seconds:g} s; see {processors[0].log_path}"
            )
        time.sleep(0.05)


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


def _session(servers: Servers) -> Any:
    """AWS's own variables, except for the local endpoint: it must not see anybody's real credentials."""
    own = servers.environment()
    return boto3.session.Session(
        aws_access_key_id=own.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=own.get("AWS_SECRET_ACCESS_KEY"),
        region_name=servers.aws_region,
    )


def _secret(data_dir: Path) -> str:
    """The key that signs this folder's tokens; kept, so that a token outlives a restart."""
    file = data_dir / "jwt-secret"
    if not file.exists():
        # Killed in between, an empty one would be found for ever after.
        beside = data_dir / "jwt-secret.new"
        beside.touch(mode=0o600)
        beside.write_text(secrets.token_urlsafe(48), encoding="utf-8")
        beside.replace(file)
    return file.read_text(encoding="utf-8")
