"""Every program works with the rights that deploy/mongodb/roles.json gives it on a MongoDB that asks who is there."""

import json
import os
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from darkroom.cli.client import Uploader
from darkroom.cli.photo import dusk
from darkroom.local.mongod import find_mongod
from darkroom.local.ports import free_ports
from darkroom.local.processes import Supervisor
from darkroom.local.servers import AWS_VARIABLE, KAFKA_VARIABLE, MONGO_VARIABLE
from darkroom.local.stack import Stack, start_stack
from support.eventually import eventually
from support.servers import aws_client, aws_environment, aws_session

ROLES: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parents[2] / "deploy" / "mongodb" / "roles.json").read_text(encoding="utf-8")
)
DATABASE = "roles"
ADMIN = "admin:admin"
SERVICES = ("asset_api", "processor", "outbox_relay")

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Guarded:
    """A mongod with users."""

    port: int

    def url(self, user: str, *, source: str = DATABASE) -> str:
        """The connection string of a user, whose password is the name."""
        return f"mongodb://{user}:{user}@127.0.0.1:{self.port}/?replicaSet=rs0&authSource={source}"

    def client(self, user: str, *, source: str = DATABASE) -> MongoClient[dict[str, Any]]:
        """A client of that user's."""
        return MongoClient(self.url(user, source=source), tz_aware=True, w="majority")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    (port,) = free_ports(1)
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text("bm90LWEtc2VjcmV0LW9mLWFueWJvZHk=")
    (folder / "data").mkdir()
    command = [str(find_mongod()), "--dbpath", str(folder / "data"), "--port", str(port), "--bind_ip", "127.0.0.1"]
    command += [
        "--replSet",
        "rs0",
        "--auth",
        "--keyFile",
        str(key),
        "--wiredTigerCacheSizeGB",
        "0.25",
        "--nounixsocket",
    ]
    with Supervisor(folder / "logs") as supervisor:
        supervisor.start("mongod", command, ready=lambda: _answers(port))
        server = Guarded(port)
        with MongoClient[dict[str, Any]]("127.0.0.1", port, directConnection=True) as first:
            members = [{"_id": 0, "host": f"127.0.0.1:{port}"}]
            first.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
            eventually(lambda: first.admin.command("hello")["isWritablePrimary"], deadline=30)
            # Whoever is on the machine may make the first user, and only that.
            first.admin.command("createUser", "admin", pwd="admin", roles=["root"])
        with server.client("admin", source="admin") as admin:
            for name, collections in ROLES.items():
                privileges = [
                    {"resource": {"db": DATABASE, "collection": collection}, "actions": actions}
                    for collection, actions in collections.items()
                ]
                admin[DATABASE].command("createRole", f"darkroom_{name}", privileges=privileges, roles=[])
                admin[DATABASE].command("createUser", name, pwd=name, roles=[f"darkroom_{name}"])
        yield server


@pytest.fixture(scope="module")
def stack(
    guarded: Guarded, tmp_path_factory: pytest.TempPathFactory, kafka_bootstrap: str, aws_endpoint: str
) -> Iterator[Stack]:
    given = {
        MONGO_VARIABLE: guarded.url("admin", source="admin"),
        KAFKA_VARIABLE: kafka_bootstrap,
        AWS_VARIABLE: aws_endpoint,
    }
    with start_stack(
        tmp_path_factory.mktemp("roles"),
        topic_prefix="roles.",
        database=DATABASE,
        stack_name="roles",
        settings={"DARKROOM_PROCESSOR_GROUP": "roles.processor", **aws_environment()},
        service_settings={name: {MONGO_VARIABLE: guarded.url(name)} for name in SERVICES},
        session=aws_session(),
        environment=given,
    ) as started:
        yield started


def run(stack: Stack, guarded: Guarded, user: str, *command: str) -> "subprocess.CompletedProcess[str]":
    """A program with that user's rights."""
    environment = os.environ | aws_environment() | stack.operations_environment() | {MONGO_VARIABLE: guarded.url(user)}
    return subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_picture_goes_all_the_way_and_is_put_away(stack: Stack, guarded: Guarded) -> None:
    with (
        closing(Uploader(stack.api_url, stack.token("somebody"))) as uploader,
        guarded.client("admin", source="admin") as admin,
    ):
        rows = admin[DATABASE].outbox_events
        asset_id = uploader.send(filename="photo.jpg", content_type="image/jpeg", data=dusk(600, 400)).asset_id
        eventually(lambda: uploader.get(asset_id)["status"] == "READY", deadline=60)
        eventually(lambda: rows.count_documents({"asset_id": asset_id, "published": True}) == 3, deadline=30)
        swept = run(stack, guarded, "sweeper", "darkroom.life")
        assert swept.returncode == 0, swept.stderr
        status = run(stack, guarded, "operator", "darkroom.cli", "status", "--json")
        assert status.returncode == 0, status.stdout + status.stderr
        for command in (
            ("why", asset_id),
            ("verify",),
            ("rebuild",),
            ("dlq", "list"),
            ("reconcile", "--pass", "unfinished"),
            ("reconcile", "--pass", "objects"),
        ):
            done = run(stack, guarded, "operator", "darkroom.cli", *command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_a_reconciler_mends_with_its_own_role(stack: Stack, guarded: Guarded, aws_endpoint: str) -> None:
    with (
        closing(Uploader(stack.api_url, stack.token("somebody"))) as uploader,
        closing(aws_client("s3", aws_endpoint)) as s3,
        guarded.client("admin", source="admin") as admin,
    ):
        rows = admin[DATABASE].outbox_events
        asset_id = uploader.send(filename="lost.jpg", content_type="image/jpeg", data=dusk(600, 400)).asset_id
        eventually(lambda: uploader.get(asset_id)["status"] == "READY", deadline=60)
        bucket = stack.outputs.bucket
        kept = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket, Prefix=f"assets/{asset_id}/")["Contents"]]
        s3.delete_object(Bucket=bucket, Key=next(key for key in kept if "/original." not in key))
        for name in ("unfinished", "objects"):
            done = run(stack, guarded, "reconciler", "darkroom.cli", "reconcile", "--pass", name)
            assert done.returncode == 0, (name, done.stdout, done.stderr)
        redriven = {"asset_id": asset_id, "type": "AssetRedriven"}
        eventually(lambda: rows.count_documents(redriven) == 1, deadline=30)
        eventually(lambda: uploader.get(asset_id)["status"] == "READY", deadline=60)


def test_a_notifier_tells_with_its_own_role(stack: Stack, guarded: Guarded, receiver: str) -> None:
    settings = {
        MONGO_VARIABLE: guarded.url("notifier"),
        "DARKROOM_NOTIFIER_GROUP": "roles.notifier",
        "DARKROOM_WEBHOOK_URL": receiver,
        "DARKROOM_WEBHOOK_SECRET": "whsec_" + b64encode(b"s" * 32).decode(),
    }
    environment = os.environ | aws_environment() | stack.operations_environment() | settings
    with (
        closing(Uploader(stack.api_url, stack.token("somebody"))) as uploader,
        guarded.client("admin", source="admin") as admin,
        subprocess.Popen([sys.executable, "-m", "notifier"], env=environment) as process,
    ):
        try:
            asset_id = uploader.send(filename="p.jpg", content_type="image/jpeg", data=dusk(600, 400)).asset_id
            told = {"asset_id": asset_id, "state": "SENT"}
            eventually(lambda: admin[DATABASE].notifications.count_documents(told) == 1, deadline=90)
            done = {"consumer": "roles.notifier", "state": "COMPLETED"}
            eventually(lambda: admin[DATABASE].consumer_inbox.count_documents(done) >= 1, deadline=30)
        finally:
            process.terminate()


@pytest.fixture
def receiver() -> Iterator[str]:
    """The address of one who takes every webhook."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("user", ROLES)
def test_nobody_removes_events_or_assets_and_nobody_drops(guarded: Guarded, user: str) -> None:
    with guarded.client(user) as client:
        for collection in ("assets", "outbox_events", "consumer_inbox"):
            with pytest.raises(OperationFailure, match="not authorized"):
                client[DATABASE][collection].delete_many({})
            with pytest.raises(OperationFailure, match="not authorized"):
                client[DATABASE].drop_collection(collection)


@pytest.mark.parametrize(
    ("user", "collection"),
    [
        ("asset_api", "consumer_inbox"),
        ("processor", "relay_shards"),
        ("outbox_relay", "assets"),
        ("notifier", "assets"),
        ("notifier", "outbox_events"),
        ("sweeper", "consumer_inbox"),
        ("reconciler", "relay_shards"),
    ],
)
def test_what_is_not_ones_own_is_not_even_read(guarded: Guarded, user: str, collection: str) -> None:
    assert collection not in ROLES[user]
    with guarded.client(user) as client, pytest.raises(OperationFailure, match="not authorized"):
        client[DATABASE][collection].find_one({})


@pytest.mark.parametrize("user", ["processor", "sweeper", "reconciler"])
def test_events_are_only_added_by_those_who_write_them(guarded: Guarded, user: str) -> None:
    with guarded.client(user) as client, pytest.raises(OperationFailure, match="not authorized"):
        client[DATABASE].outbox_events.update_many({}, {"$set": {"published": True}})


def _answers(port: int) -> bool:
    with MongoClient[dict[str, Any]]("127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=1000) as client:
        return bool(client.admin.command("ping")["ok"])
