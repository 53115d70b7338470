"""A real Prometheus scrapes every service of a running installation, and calls when it is broken.

What takes long or a defect of ours to bring about (a stall, lost leases, dying decoders, slow answers, a lag of a
thousand, a silent sweeper, …) is provoked in deploy/monitoring/alerts_test.yaml alone.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.assets import to_document
from darkroom.contracts.envelope import to_record
from darkroom.local.ports import free_ports
from darkroom.outbox import to_row
from support import events, pictures
from support.eventually import eventually
from support.failpoints import PROCESSOR
from support.servers import aws_client, aws_environment
from system.conftest import OWNER, World, start_world

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus on PATH (Debian: prometheus)"),
    pytest.mark.timeout(600),
]
MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
NOBODY = "127.0.0.1:9"
PORT = re.compile(r'"health_port": (\d+)')


class Watch:
    """The installation, Prometheus beside it, and further services as processes."""

    def __init__(self, world: World, folder: Path, stack: ExitStack) -> None:
        self.world = world
        self._folder = folder
        self._stack = stack
        self._targets: dict[str, int] = {}
        self._url = ""

    def start(self) -> None:
        """Prometheus, with the rules made impatient: no ``for``, and a second where they wait longer."""
        rules = (MONITORING / "alerts.yaml").read_text(encoding="utf-8")
        rules = re.sub(r"\n +for: \w+", "", rules)
        rules = re.sub(r"(_seconds\)?) > \d+", r"\1 > 1", rules)
        (self._folder / "alerts.yaml").write_text(rules, encoding="utf-8")
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [
                {"job_name": "darkroom", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}
            ],
        }
        (self._folder / "prometheus.yaml").write_text(json.dumps(config), encoding="utf-8")
        for name, processes in self.world.stack.services.items():
            for process in processes:
                self.add(name, int(PORT.findall(process.log())[-1]))
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._run(
            "prometheus",
            [
                "prometheus",
                f"--config.file={self._folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            dict(os.environ),
        )
        eventually(lambda: self._ask("/-/ready") or True, deadline=60, what="Prometheus")
        self.scraped(*self._targets)

    def add(self, name: str, port: int) -> None:
        """Have it scraped."""
        self._targets[name] = port
        told = [{"targets": [f"127.0.0.1:{port}"], "labels": {"service": name}} for name, port in self._targets.items()]
        (self._folder / "targets.new").write_text(json.dumps(told), encoding="utf-8")
        (self._folder / "targets.new").replace(self._folder / "targets.json")

    def service(self, name: str, *arguments: str, **settings: str) -> "subprocess.Popen[bytes]":
        """One more service, ``python -m`` its module, scraped as ``name``."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("DARKROOM_")}
        environment = own | aws_environment() | self.world.stack.operations_environment() | settings
        process = self._run(name, [sys.executable, "-m", *arguments], environment)
        log = self._folder / f"{name}.log"
        self.add(name, int(eventually(lambda: PORT.findall(log.read_text())[-1], deadline=60, what=name)))
        self.scraped(name)
        return process

    def scraped(self, *names: str) -> None:
        """Wait until these were scraped: what a counter already holds at its first scrape is no increase."""
        eventually(lambda: set(names) <= self.up(), deadline=60, what=f"a scrape of {names}")

    def firing(self) -> set[str]:
        """The alerts that call now."""
        return {
            one["labels"]["alertname"] for one in self._data("/api/v1/alerts")["alerts"] if one["state"] == "firing"
        }

    def calls(self, *alerts: str, deadline: float = 120.0) -> None:
        """Wait until it calls with these, all at once."""
        try:
            eventually(lambda: set(alerts) <= self.firing(), deadline=deadline, what=str(alerts))
        except AssertionError as error:
            error.add_note(f"missing: {set(alerts) - self.firing()}; up: {self.up()}")
            raise

    def quiet(self, *alerts: str) -> None:
        """Wait until it does not call with any of these."""
        eventually(lambda: not set(alerts) & self.firing(), deadline=60, what=f"the end of {alerts}")

    def up(self) -> set[str]:
        """The services that answer its scrapes."""
        found = self._data("/api/v1/targets")["activeTargets"]
        return {one["labels"]["service"] for one in found if one["health"] == "up"}

    def query(self, expression: str) -> list[Any]:
        """What it answers now."""
        asked = httpx.get(f"{self._url}/api/v1/query", params={"query": expression}, timeout=10).json()
        result: list[Any] = asked["data"]["result"]
        return result

    def _data(self, path: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self._ask(path))["data"]
        return data

    def _ask(self, path: str) -> bytes:
        return httpx.get(self._url + path, timeout=10).raise_for_status().content

    def _run(self, name: str, argv: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(argv, env=environment, stderr=log, stdout=log)
        self._stack.callback(_end, process)
        return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(30)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def watch(
    tmp_path_factory: pytest.TempPathFactory, mongo_url: str, kafka_bootstrap: str, aws_endpoint: str
) -> Iterator[Watch]:
    with ExitStack() as stack:
        world = stack.enter_context(
            start_world(
                tmp_path_factory.mktemp("watched"),
                "watched",
                mongo_url=mongo_url,
                kafka_bootstrap=kafka_bootstrap,
                aws_endpoint=aws_endpoint,
            )
        )
        watch = Watch(world, tmp_path_factory.mktemp("prometheus"), stack)
        watch.start()
        yield watch


@pytest.fixture
def queue_url(aws_endpoint: str) -> Iterator[str]:
    sqs = aws_client("sqs", aws_endpoint)
    url = sqs.create_queue(QueueName=f"watched-{uuid.uuid4().hex[:8]}")["QueueUrl"]
    yield url
    sqs.delete_queue(QueueUrl=url)
    sqs.close()


def test_every_service_is_scraped_and_tells_of_an_upload(watch: Watch, queue_url: str) -> None:
    watch.service("s3_bridge", "s3_bridge", DARKROOM_QUEUE_URL=queue_url, DARKROOM_POLL_SECONDS="1")
    watch.service("sweeper", "darkroom.cli", "sweep", "--every", "1")
    watch.service("reconciler", "darkroom.cli", "reconcile", "--every", "1")
    watch.service(
        "notifier",
        "notifier",
        DARKROOM_WEBHOOK_URL=f"http://{NOBODY}/hook",
        DARKROOM_WEBHOOK_SECRET="whsec_" + "QUJD" * 10,
        DARKROOM_NOTIFIER_GROUP=f"watched-{uuid.uuid4().hex[:8]}",
        DARKROOM_NOTIFIER_MAX_ATTEMPTS="1",
    )
    wanted = {"asset_api", "processor", "outbox_relay", "s3_bridge", "sweeper", "reconciler", "notifier"}
    eventually(lambda: watch.up() == wanted, deadline=60, what="every target up")
    sent = watch.world.uploader.send(filename="photo.jpg", content_type="image/jpeg", data=pictures.jpeg(300, 200))
    eventually(lambda: watch.world.status(sent.asset_id) == "READY", deadline=60, what="READY")
    watch.world.sqs().send_message(QueueUrl=queue_url, MessageBody="this is no notification")
    # One question for each service; more than nothing is the answer.
    for expression in (
        'darkroom_api_registrations_total{outcome="new"} > 0',
        'darkroom_api_requests_total{route="/assets",method="POST",status="2xx"} > 0',
        'darkroom_api_requests_total{route="/assets/{asset_id}"} > 0',
        'darkroom_processor_uploads_total{outcome="ready"} > 0',
        "darkroom_processor_decode_seconds_count > 0",
        'darkroom_inbox_claims_total{service="processor",answer="claimed"} > 0',
        'darkroom_consumer_handovers_total{service="processor",outcome="finished"} > 0',
        "darkroom_relay_published_total >= 3",
        "darkroom_relay_publish_latency_seconds_count > 0",
        "darkroom_relay_shards_owned == 64",
        "darkroom_bridge_messages_malformed_total > 0",
        "darkroom_sweeper_last_sweep_timestamp_seconds > 0",
        'darkroom_reconciler_last_pass_timestamp_seconds{pass="unfinished"} > 0',
        'darkroom_notifier_attempts_total{channel="webhook",outcome="not_sent"} > 0',
        'sum(darkroom_consumer_lag_records{service="processor"}) == 0',
    ):
        eventually(partial(watch.query, expression), deadline=60, what=expression)
    # Nobody takes the webhook, and what is no notification will come back until it is a dead letter.
    watch.calls("DarkroomNotificationsGivenUp", "DarkroomBridgeMalformed")


def test_every_question_of_the_dashboard_can_be_asked(watch: Watch) -> None:
    panels = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    questions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(questions) > 30
    for question in questions:
        watch.query(question.replace("$__rate_interval", "30s"))


def test_it_calls_for_what_cannot_be_processed_or_published(watch: Watch) -> None:
    world = watch.world
    # Of now, or else the sweeper of another test makes it EXPIRED before the processor comes to it.
    absent = events.registered(owner_id=OWNER).after.model_copy(update={"updated_at": datetime.now(UTC)})
    world.db.assets.insert_one(to_document(absent))
    record = to_record(events.uploaded(absent, bucket=world.stack.outputs.bucket), source="urn:tests")
    world.produce(key=record.key, value=record.value, headers=list(record.headers))
    world.produce(key=b"nobody", value=b"no event")
    parked = events.registered(owner_id=OWNER)
    behind = events.step(parked.after, events.processing())
    row = to_row(parked.event) | {"parked_at": parked.event.occurred_at, "last_error": "too large"}
    world.db.outbox_events.insert_many([row, to_row(behind.event)])
    watch.calls("DarkroomDeadLetters", "DarkroomUploadsGivenUp", "DarkroomRowsParked", "DarkroomOutboxOld")
    world.db.outbox_events.delete_many({"asset_id": parked.after.id})
    watch.quiet("DarkroomOutboxOld")


def test_it_calls_while_mongodb_does_not_answer_the_processor(watch: Watch) -> None:
    world = watch.world
    world.failpoints.fail("find", "findAndModify", app=PROCESSOR)
    try:
        asset = events.registered(owner_id=OWNER).after
        record = to_record(events.uploaded(asset, bucket=world.stack.outputs.bucket), source="urn:tests")
        world.produce(key=record.key, value=record.value, headers=list(record.headers))
        watch.calls("DarkroomConsumerWaits")
        port = PORT.findall(world.processor.log())[-1]
        # By decision: alive, for starting it anew would not help; not ready, for nothing is done.
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        unfit = httpx.get(f"http://127.0.0.1:{port}/readyz")
        assert unfit.status_code == 503
        assert "waiting for MongoDB" in unfit.json()["reason"]
    finally:
        world.failpoints.off()
    watch.quiet("DarkroomConsumerWaits")


def test_it_calls_while_the_api_answers_with_errors(watch: Watch) -> None:
    world = watch.world
    world.failpoints.fail("find", app="darkroom-asset-api")
    headers = {"Authorization": f"Bearer {world.stack.token(OWNER)}"}

    def asked_and_called() -> bool:
        answer = httpx.get(f"{world.stack.api_url}/assets/{events.new_id()}", headers=headers, timeout=30)
        return answer.status_code == 503 and "DarkroomApiErrors" in watch.firing()

    try:
        eventually(asked_and_called, deadline=60, what="DarkroomApiErrors")
    finally:
        world.failpoints.off()


def test_it_calls_when_a_relay_or_a_bridge_reaches_nobody_and_when_a_relay_is_gone(watch: Watch) -> None:
    world = watch.world
    world.relay.kill()
    watch.calls("DarkroomTargetDown", "DarkroomShardsUnowned")
    world.db.outbox_events.insert_one(to_row(events.registered(owner_id=OWNER).event))
    relay = watch.service(
        "deaf_relay", "outbox_relay", DARKROOM_KAFKA_BOOTSTRAP=NOBODY, DARKROOM_RELAY_LEASE_SECONDS="3"
    )
    bridge = watch.service("deaf_bridge", "s3_bridge", AWS_ENDPOINT_URL=f"http://{NOBODY}", DARKROOM_POLL_SECONDS="1")
    watch.calls("DarkroomRelayHearsNoKafka", "DarkroomBridgeFails", "DarkroomOutboxOld")
    for process in (relay, bridge):
        process.terminate()
        assert process.wait(40) == 0
    world.relay.start()
    watch.add("outbox_relay", int(PORT.findall(world.relay.log())[-1]))
    watch.quiet("DarkroomShardsUnowned", "DarkroomOutboxOld")
