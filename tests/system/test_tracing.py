"""One trace from the POST to the notifier, and a log without secrets, of the real services on real servers."""

import json
import os
import re
import secrets
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import pytest
from pymongo import MongoClient

from darkroom.local.processes import SupervisedProcess, Supervisor
from darkroom.ops.announcing import Announcer
from darkroom.ops.installation import OpsSettings, connected
from darkroom.ops.redriving import redrive
from darkroom.runtime.settings import load
from support import pictures
from support.collector import Collector, Told, collector
from support.eventually import eventually
from support.failpoints import PROCESSOR
from support.servers import aws_client, aws_environment
from system.conftest import OWNER, World, start_world

CLIENT_TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
WEBHOOK_SECRET = "whsec_" + "c2VjcmV0LW9mLXRoZS13ZWJob29rLXRlc3Q="
MONGO_PASSWORD = "pa55/word+of&the=test"  # every letter of it is written otherwise in a URL
KAFKA_PASSWORD = "kafka-Pa55word-of-the-test"


@dataclass
class Traced:
    """A stack that tells a collector of its spans, and everything there is at DEBUG to its log."""

    world: World
    collector: Collector
    notifier: SupervisedProcess
    mongo_url: str

    def register(self, data: bytes, *, key: str | None = None, **headers: str) -> tuple[dict[str, Any], str]:
        """Register and upload; gives the answer and the idempotency key."""
        key = key or secrets.token_urlsafe(24)
        answer = httpx.post(
            f"{self.world.stack.api_url}/assets",
            headers={"Authorization": f"Bearer {self.token}", "Idempotency-Key": key, **headers},
            json={"filename": "photo.jpg", "content_type": "image/jpeg", "size": len(data)},
        )
        answer.raise_for_status()
        registered: dict[str, Any] = answer.json()
        if registered.get("upload"):
            upload = registered["upload"]
            httpx.request(upload["method"], upload["url"], headers=upload["headers"], content=data).raise_for_status()
        return registered, key

    @property
    def token(self) -> str:
        return self.world.stack.token(OWNER)

    def trace(self, trace_id: str, *, last: str = "process AssetReady", whole: bool = True) -> list[Told]:
        """The trace, once the span that ends it is there and, if it is ``whole``, all that it names as parents."""
        eventually(
            lambda: last in [span.name for span in self.collector.of_trace(trace_id)],
            what=f"the span {last!r} of {trace_id}",
            deadline=40,
        )
        if whole:
            eventually(lambda: not _orphans(self.collector.of_trace(trace_id)), what="all parents", deadline=20)
        return self.collector.of_trace(trace_id)


def _orphans(spans: list[Told]) -> set[str]:
    return {span.parent_id for span in spans} - {span.span_id for span in spans} - {"", CLIENT_SPAN}


@pytest.fixture(scope="module")
def traced(
    tmp_path_factory: pytest.TempPathFactory, mongo_url: str, kafka_bootstrap: str, aws_endpoint: str
) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("tracing")
    with collector() as collecting, MongoClient[dict[str, Any]](mongo_url) as admin:
        # A server that lets everybody in checks the password of whoever names one all the same.
        user = f"traced{uuid.uuid4().hex[:8]}"
        admin.admin.command("createUser", user, pwd=MONGO_PASSWORD, roles=["root"])
        with_password = mongo_url.replace("mongodb://", f"mongodb://{user}:{quote(MONGO_PASSWORD, safe='')}@")
        with_password += ("&" if "?" in with_password else "/?") + "authSource=admin"
        settings = {
            "DARKROOM_MONGO_URL": with_password,
            "DARKROOM_KAFKA_CONFIG": json.dumps({"sasl.password": KAFKA_PASSWORD}),
            "DARKROOM_LOG_LEVEL": "DEBUG",
            "DARKROOM_LOG_LIBRARIES": "DEBUG",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collecting.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        with (
            start_world(
                folder,
                "tracing",
                mongo_url=mongo_url,
                kafka_bootstrap=kafka_bootstrap,
                aws_endpoint=aws_endpoint,
                settings=settings,
            ) as world,
            Supervisor(folder / "notifier") as supervisor,
        ):
            own = {
                "DARKROOM_MONGO_DATABASE": "tracing",
                "DARKROOM_TOPIC_PREFIX": "tracing.",
                "DARKROOM_NOTIFIER_GROUP": "tracing.notifier",
                "DARKROOM_BUCKET": world.stack.outputs.bucket,
                "DARKROOM_WEBHOOK_URL": f"{collecting.url}/hook?key=of-the-webhook-url",
                "DARKROOM_WEBHOOK_SECRET": WEBHOOK_SECRET,
            }
            notifier = supervisor.prepare(
                "notifier",
                [sys.executable, "-m", "notifier"],
                env=world.stack.servers.process_environment() | aws_environment() | settings | own,
                ready=lambda: "partitions_assigned" in notifier.log(),
                deadline=60,
            )
            notifier.start()
            yield Traced(world, collecting, notifier, with_password)
        admin.admin.command("dropUser", user)


def only(spans: list[Told], name: str, **attributes: object) -> Told:
    found = [span for span in spans if span.name == name and attributes.items() <= span.attributes.items()]
    assert len(found) == 1, (name, [span.name for span in spans])
    return found[0]


def assert_chain(*chain: Told) -> None:
    """Each is the parent of the next and began before it, by the one clock of this machine."""
    for parent, child in pairwise(chain):
        assert child.parent_id == parent.span_id, f"{child.name} is not caused by {parent.name}"
        assert parent.begun <= child.begun


def test_one_trace_shows_every_hop_under_the_assets_own_id(traced: Traced) -> None:
    registered, _ = traced.register(pictures.jpeg(900, 700))
    asset_id = registered["asset_id"]
    spans = traced.trace(asset_id.replace("-", ""))
    post = only(spans, "POST /assets")
    assert (post.parent_id, post.span_id) == ("", asset_id.replace("-", "")[16:])
    received = only(spans, "receive S3 notification")
    uploaded = only(spans, "publish AssetUploaded")
    attempt = only(spans, "process AssetUploaded")
    finish = only(spans, "finish")
    ready = only(spans, "publish AssetReady")
    # SQS knows the moment in milliseconds, cut off; so this hop's beginning is not compared.
    assert received.parent_id == post.span_id
    assert_chain(received, uploaded, attempt, finish, ready)
    notified = only(spans, "process AssetReady")
    assert_chain(ready, notified, only(spans, "send"))
    assert_chain(post, only(spans, "publish AssetRegistered"))
    claim = only([span for span in spans if span.parent_id == attempt.span_id], "claim")
    assert_chain(attempt, claim, only(spans, "publish AssetProcessing"))
    steps = [span.name for span in spans if span.parent_id == attempt.span_id]
    assert steps == ["claim", "download", "decode", "upload", "upload", "finish"]
    assert {span.service: span.failed for span in spans} == {
        "darkroom-asset-api": False,
        "darkroom-s3-bridge": False,
        "darkroom-processor": False,
        "darkroom-outbox-relay": False,
        "darkroom-notifier": False,
    }
    assert {span.attributes["darkroom.asset_id"] for span in (uploaded, attempt, ready, notified)} == {asset_id}


def test_the_published_events_name_the_span_that_published_them(traced: Traced) -> None:
    registered, _ = traced.register(pictures.jpeg(300, 200))
    spans = traced.trace(registered["asset_id"].replace("-", ""))
    for event in traced.world.published(registered["asset_id"]):
        published = only(spans, f"publish {event.type}")
        assert event.traceparent == f"00-{published.trace_id}-{published.span_id}-03"


def test_a_clients_trace_is_continued_and_linked_to_the_assets_own(traced: Traced) -> None:
    trace_id = uuid.uuid4().hex
    registered, _ = traced.register(pictures.jpeg(300, 200), traceparent=f"00-{trace_id}-{CLIENT_SPAN}-01")
    spans = traced.trace(trace_id)
    post = only(spans, "POST /assets")
    assert post.parent_id == CLIENT_SPAN
    assert_chain(post, only(spans, "publish AssetRegistered"))
    attempt = only(spans, "process AssetUploaded")
    assert_chain(post, attempt, only(spans, "finish"), only(spans, "publish AssetReady"))
    assert_chain(only(spans, "publish AssetReady"), only(spans, "process AssetReady"), only(spans, "send"))
    # What the bridge saw is in the trace that the id gives, and each leads to the other.
    own = traced.trace(registered["asset_id"].replace("-", ""), last="publish AssetUploaded")
    first, received = only(own, "asset"), only(own, "receive S3 notification")
    uploaded = only(own, "publish AssetUploaded")
    assert received.parent_id == first.span_id
    assert_chain(received, uploaded)
    assert len(own) == 3
    assert (uploaded.trace_id, uploaded.span_id) in attempt.links
    assert (first.trace_id, first.span_id) in post.links
    assert (post.trace_id, post.span_id) in first.links
    told = why(traced.world, registered["asset_id"])
    assert f"Trace: {trace_id}" in told
    assert registered["asset_id"].replace("-", "") in told


def why(world: World, asset_id: str) -> str:
    """What ``darkroom why`` prints."""
    environment = {**os.environ, **aws_environment(), **world.stack.operations_environment()}
    command = [sys.executable, "-c", "from darkroom.cli.main import main; main()", "why", asset_id]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def test_what_a_client_does_not_record_is_recorded_nowhere(traced: Traced) -> None:
    trace_id = uuid.uuid4().hex
    registered, _ = traced.register(pictures.jpeg(300, 200), traceparent=f"00-{trace_id}-{CLIENT_SPAN}-00")
    traced.world.wait_published(registered["asset_id"], "AssetReady")
    later, _ = traced.register(pictures.jpeg(300, 200))
    traced.trace(later["asset_id"].replace("-", ""))
    assert traced.collector.of_trace(trace_id) == []
    ready = traced.world.published(registered["asset_id"])[-1]
    assert (ready.traceparent or "").split("-")[1] == trace_id


def test_an_attempt_after_a_kill_is_in_the_same_trace(traced: Traced) -> None:
    world = traced.world
    world.failpoints.stall("commitTransaction", app=PROCESSOR, seconds=6, times=1)
    registered, _ = traced.register(pictures.jpeg(300, 200))
    eventually(lambda: _stalled(world), what="the processor began", deadline=30)
    world.processor.kill()
    world.failpoints.off()
    world.processor.start()
    # What the killed process did not live to tell is missing; the attempt is told last, after all that it caused here.
    spans = traced.trace(registered["asset_id"].replace("-", ""), last="process AssetUploaded", whole=False)
    attempt = only(spans, "process AssetUploaded")
    assert_chain(only(spans, "publish AssetUploaded"), attempt, only(spans, "finish"))
    assert attempt.service == "darkroom-processor"


def test_a_repeated_notification_and_a_retried_request_are_in_the_same_trace(traced: Traced) -> None:
    world = traced.world
    data = pictures.jpeg(300, 200)
    registered, key = traced.register(data)
    asset_id = registered["asset_id"]
    spans = traced.trace(asset_id.replace("-", ""))
    document = world.db.assets.find_one({"_id": asset_id})
    assert document is not None
    head = world.s3().head_object(Bucket=world.stack.outputs.bucket, Key=document["object_key"])
    record = {
        "eventName": "ObjectCreated:Put",
        "s3": {
            "bucket": {"name": world.stack.outputs.bucket},
            "object": {
                "key": document["object_key"],
                "size": len(data),
                "eTag": head["ETag"].strip('"'),
                "versionId": head["VersionId"],
            },
        },
    }
    world.sqs().send_message(QueueUrl=world.stack.outputs.queue_url, MessageBody=json.dumps({"Records": [record]}))

    def again() -> list[Told]:
        found = traced.collector.of_trace(asset_id.replace("-", ""))
        return [span for span in found if span.name == "process AssetUploaded"][1:]

    (second,) = eventually(again, what="the second attempt", deadline=30)
    assert second.attributes["darkroom.outcome"] == "done before"
    published = [span for span in traced.trace(asset_id.replace("-", "")) if span.name == "publish AssetUploaded"]
    assert second.parent_id == published[1].span_id
    assert [span.name for span in spans].count("publish AssetReady") == 1
    # The retry is a request of its own, which leads to the asset.
    traced.register(data, key=key)
    post = only(spans, "POST /assets")
    eventually(
        lambda: [span for span in list(traced.collector.spans) if (post.trace_id, post.span_id) in span.links],
        what="the retry's link",
        deadline=20,
    )


def test_an_upload_that_is_redriven_is_in_the_same_trace(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    registered, _ = traced.register(pictures.jpeg(300, 200))
    asset_id = registered["asset_id"]
    spans = traced.trace(asset_id.replace("-", ""))
    for name, value in {**aws_environment(), **traced.world.stack.operations_environment()}.items():
        monkeypatch.setenv(name, value)
    with connected(load(OpsSettings)) as installation, Announcer(installation) as announcer:
        redrive(installation, asset_id, reason="a test", announcer=announcer)

    def again() -> list[Told]:
        found = traced.collector.of_trace(asset_id.replace("-", ""))
        return [span for span in found if span.name == "publish AssetReady"][1:]

    eventually(again, what="AssetReady once more", deadline=40)
    later = traced.trace(asset_id.replace("-", ""))
    post = only(spans, "POST /assets")
    assert_chain(post, only(later, "publish AssetRedriven"))
    first, second = (span for span in later if span.name == "process AssetUploaded")
    assert_chain(post, second)
    assert first.ended < second.begun


def test_lines_of_the_log_name_the_asset_the_event_and_the_trace(traced: Traced) -> None:
    registered, _ = traced.register(pictures.jpeg(300, 200))
    asset_id = registered["asset_id"]
    traced.trace(asset_id.replace("-", ""))
    for process, event in (
        (traced.world.stack.services["asset_api"][0], "request"),
        (traced.world.processor, "asset_ready"),
        (traced.notifier, "notification_ended"),
    ):
        lines = [line for line in _lines(process.log()) if line.get("asset_id") == asset_id and line["event"] == event]
        assert lines, event
        assert all(line["trace_id"] == asset_id.replace("-", "") and line["event_id"] for line in lines)
    (access,) = (
        line
        for line in _lines(traced.world.stack.services["asset_api"][0].log())
        if line["event"] == "request" and line.get("asset_id") == asset_id
    )
    assert (access["route"], access["status"], access["method"]) == ("/assets", 201, "POST")
    assert access["ms"] > 0
    assert access["request_id"]


def _stalled(world: World) -> bool:
    running = world.db.client.admin.aggregate([{"$currentOp": {"allUsers": True, "idleSessions": False}}])
    return any("commitTransaction" in one.get("command", {}) for one in running if one.get("appName") == PROCESSOR)


def _lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def test_ten_thousand_lines_at_debug_hold_no_secret(traced: Traced) -> None:
    api, known = traced.world.stack.api_url, {MONGO_PASSWORD, KAFKA_PASSWORD, WEBHOOK_SECRET, "of-the-webhook-url"}
    known.add(traced.world.stack.jwt_secret)

    def lines() -> list[str]:
        logs = [process.log_path for processes in traced.world.stack.services.values() for process in processes]
        texts = [path.read_text(errors="replace") for path in [*logs, traced.notifier.log_path]]
        return [line for text in texts for line in text.splitlines()] + _function_lines(traced)

    while len(lines()) < 10_000:
        token = traced.token
        known |= {token, token.split(".")[2]}
        registered, key = traced.register(pictures.jpeg(300, 200))
        known |= {key, *_signatures(registered)}
        eventually(lambda: traced.world.status(registered["asset_id"]) == "READY", what="READY", deadline=40)  # noqa: B023
        headers = {"Authorization": f"Bearer {token}"}
        asset = httpx.get(f"{api}/assets/{registered['asset_id']}", headers=headers).json()
        known |= _signatures(asset)
        # Tokens, keys and signatures where they do not belong.
        signed = asset["original"]["url"]
        for method, path, wrong in (
            ("GET", f"/assets/{token}", headers),
            ("GET", f"/{token}", {}),
            ("GET", f"/assets?token={token}&access_token={token}", {"Authorization": token}),
            ("GET", f"/assets/{quote(token)}/events", {"Authorization": f"Basic {token}"}),
            ("GET", f"/assets?after={quote_plus(signed)}", headers),
            ("POST", "/assets", {**headers, "Idempotency-Key": key, "X-Request-ID": f"Bearer {token}"}),
            ("POST", f"/assets?key={key}", {**headers, "Idempotency-Key": f"{key}\tx", "traceparent": token}),
            ("DELETE", f"/assets/{key}", {"Authorization": f"Bearer {token[:-3]}"}),
        ):
            body = json.dumps({"token": token, "url": signed, "filename": key}) if method == "POST" else None
            wrong = {**wrong, "content-type": "application/json"}
            assert httpx.request(method, f"{api}{path}", headers=wrong, content=body).status_code < 500
    text = "\n".join(lines())
    assert len(text.splitlines()) >= 10_000
    # Of every service, and drivers at their most talkative.
    told = {"asset_ready", "upload_published", "request", "notification_ended", "StringToSign", "Command"}
    assert told <= set(re.findall(r"\w+", text))
    assert not re.search(r"signature(=|%3D|: ?\\n|\"?: \"?)[0-9a-f]{64}", text, re.IGNORECASE)
    leaked = {form for secret in known for form in _forms(secret) if form in text}
    assert not leaked, [line[:400] for line in text.splitlines() if any(form in line for form in leaked)][:5]


def _signatures(shown: object) -> set[str]:
    found = re.findall(r"X-Amz-Signature=([0-9a-f]{64})", json.dumps(shown))
    assert found
    return set(found)


def _forms(secret: str) -> set[str]:
    return {secret, secret.removeprefix("whsec_"), quote(secret, safe=""), quote_plus(secret), quote(quote(secret))}


def _function_lines(traced: Traced) -> list[str]:
    logs = aws_client("logs", traced.world.aws_endpoint)
    group = f"/aws/lambda/{traced.world.stack.outputs.function_name}"
    names = [one["logGroupName"] for one in logs.describe_log_groups()["logGroups"]]
    wanted = [name for name in names if name == group or "BridgeLogGroup" in name]
    return [
        event["message"]
        for name in wanted
        for page in logs.get_paginator("filter_log_events").paginate(logGroupName=name)
        for event in page["events"]
    ]
