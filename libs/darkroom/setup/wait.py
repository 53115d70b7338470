"""``python -m darkroom.setup.wait MODULE``: wait for the servers that the environment names, then become ``-m MODULE``.

The entry point of the containers: an orchestrator starts everything at once, and not every one knows what comes first.
A server is waited for only when its variable is set, so each service waits for what it was given and nothing else.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SECONDS_VARIABLE = "DARKROOM_WAIT_SECONDS"
DEFAULT_SECONDS = 120.0
MOST_SECONDS = 3600.0
_ANSWER_SECONDS = 3.0
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class Need:
    """Something to wait for. ``missing`` says what is not there yet, or None when it is; it may raise as well."""

    name: str
    missing: Callable[[], str | None]


def needs(environment: Mapping[str, str]) -> list[Need]:
    """What the environment names: a replica set with a primary, Kafka with the topics, the bucket."""
    found = []
    if url := environment.get("DARKROOM_MONGO_URL"):
        found.append(Need("MongoDB (DARKROOM_MONGO_URL)", lambda: _mongo(url)))
    if bootstrap := environment.get("DARKROOM_KAFKA_BOOTSTRAP"):
        found.append(Need("Kafka (DARKROOM_KAFKA_BOOTSTRAP)", lambda: _kafka(bootstrap, environment)))
    if bucket := environment.get("DARKROOM_BUCKET"):
        found.append(Need("the bucket (DARKROOM_BUCKET)", lambda: _bucket(bucket)))
    return found


def await_all(wanted: list[Need], *, seconds: float, pause: float = _PAUSE_SECONDS) -> None:
    """Return once everything is there.

    Raises:
        SystemExit: after ``seconds``; naming what is missing and why.

    """
    ends = time.monotonic() + seconds
    for need in wanted:
        told = ""
        while (reason := _missing(need)) is not None:
            if time.monotonic() > ends:
                raise SystemExit(
                    f"{need.name} was not there after {seconds:g} s: {reason}. Start it, correct the address, or make "
                    f"it ready with `python -m darkroom.setup.prepare`."
                )
            if reason != told:
                told = reason
                print(f"waiting for {need.name}: {reason}", file=sys.stderr, flush=True)  # noqa: T201 -- before any logger
            time.sleep(pause)


def main() -> None:
    """Wait, then replace this process by the module."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m darkroom.setup.wait MODULE [ARGUMENT ...]")
    # The first process of a container ignores SIGTERM unless it asks for it.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        seconds = float(os.environ.get(SECONDS_VARIABLE, DEFAULT_SECONDS))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_SECONDS:
        raise SystemExit(f"{SECONDS_VARIABLE}: must be a number of seconds, 0 to {MOST_SECONDS:.0f}")
    await_all(needs(os.environ), seconds=seconds)
    # Not run in here: the service gets a fresh process with the same id, and its signals.
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])  # noqa: S606 -- no shell is wanted


def _missing(need: Need) -> str | None:
    try:
        return need.missing()
    except Exception as error:  # noqa: BLE001 -- whatever a client raises is the reason to go on waiting
        return f"{type(error).__name__}: {str(error)[:300]}"


# Each driver is imported only where its server is named: no image carries them all.


def _mongo(url: str) -> str | None:
    from pymongo import MongoClient

    with MongoClient[dict[str, Any]](url, serverSelectionTimeoutMS=int(_ANSWER_SECONDS * 1000)) as client:
        hello = client.admin.command("hello")
    return None if hello.get("isWritablePrimary") else "it has no primary yet"


def _kafka(bootstrap: str, environment: Mapping[str, str]) -> str | None:
    import json

    from confluent_kafka.admin import AdminClient

    from darkroom.contracts.topics import Topics

    extra = json.loads(environment.get("DARKROOM_KAFKA_CONFIG") or "{}")
    client = AdminClient({**extra, "bootstrap.servers": bootstrap, "log_level": 0})
    there = client.list_topics(timeout=_ANSWER_SECONDS).topics
    topics = Topics(environment.get("DARKROOM_TOPIC_PREFIX", ""))
    absent = [name for name in (topics.uploaded, topics.uploaded_dlq, topics.events) if name not in there]
    return f"no topic {', '.join(absent)}" if absent else None


def _bucket(name: str) -> str | None:
    try:
        from botocore.exceptions import ClientError
    except ImportError:
        return None  # a service without an S3 client only names the bucket

    from darkroom.runtime.s3 import s3_client

    client = s3_client(connect_timeout=_ANSWER_SECONDS, read_timeout=_ANSWER_SECONDS, attempts=1)
    try:
        client.head_bucket(Bucket=name)
    except ClientError as error:
        # 403: it is there, and this role may not list it.
        if error.response["Error"]["Code"] not in ("403", "AccessDenied"):
            return str(error)
    finally:
        client.close()
    return None


if __name__ == "__main__":
    main()
