"""The shard keys of docs/scaling.md are such as MongoDB takes with our indexes, and spread what they should.

There is no mongos here, so nothing is read or written through one. But what decides on a shard key are the config
servers and the shards themselves, and these are real: the commands are those that mongos would send them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bson.json_util import loads
from pymongo import IndexModel, MongoClient
from pymongo.errors import OperationFailure

from darkroom.assets import documents
from darkroom.inbox import Inbox
from darkroom.local.mongod import find_mongod
from darkroom.local.ports import free_ports
from darkroom.local.processes import Supervisor
from darkroom.outbox import rows
from support.eventually import eventually
from support.markdown import ROOT, Page

DATABASE = "darkroom"
DURABLY = {"w": "majority", "wtimeout": 30_000}
INDEXES = {
    documents.COLLECTION: [IndexModel(keys, **options) for keys, options in documents.INDEXES],
    rows.COLLECTION: [IndexModel(keys, **options) for keys, options in rows.INDEXES],
    **Inbox.indexes(),
}
LINE = re.compile(r'^sh\.shardCollection\("darkroom\.(\w+)", (\{.*?\})(, true)?\)$', re.MULTILINE)


def told() -> dict[str, tuple[dict[str, Any], bool]]:
    """From a collection to its key, and whether that is unique, as the page says."""
    found = LINE.findall(Page(ROOT / "docs" / "scaling.md").text)
    return {name: (loads(re.sub(r"(\w+):", r'"\1":', key)), bool(unique)) for name, key, unique in found}


@dataclass
class Cluster:
    """Config servers and two shards, each of one member."""

    config: MongoClient[dict[str, Any]]
    shards: dict[str, MongoClient[dict[str, Any]]]

    def shard(self, collection: str, key: dict[str, Any], *, unique: bool) -> None:
        """Make the indexes, as services do when they start, and shard the collection."""
        first = self.shards["s1"][DATABASE]
        first[collection].create_indexes(INDEXES[collection])
        version = (self.config["config"].databases.find_one({"_id": DATABASE}) or {})["version"]
        chunks: dict[str, Any] = {"numInitialChunks": 4} if "hashed" in key.values() else {}
        first.command(
            "_shardsvrCreateCollection",
            collection,
            shardKey=key,
            unique=unique,
            databaseVersion=version,
            writeConcern=DURABLY,
            **chunks,
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("sharded")
    roles = {"config": "--configsvr", "s1": "--shardsvr", "s2": "--shardsvr"}
    ports = dict(zip(roles, free_ports(len(roles)), strict=True))
    with Supervisor(folder / "logs") as supervisor:
        clients = {name: _member(supervisor, folder / name, name, roles[name], ports[name]) for name in roles}
        config = clients.pop("config")
        for name in clients:
            address = f"{name}/127.0.0.1:{ports[name]}"
            config.admin.command("_configsvrAddShard", address, name=name, writeConcern=DURABLY)
        config.admin.command("_configsvrCreateDatabase", DATABASE, primaryShardId="s1", writeConcern=DURABLY)
        yield Cluster(config, clients)
        for client in (config, *clients.values()):
            client.close()


def test_the_page_names_the_three_that_grow() -> None:
    assert told().keys() == INDEXES.keys()


def test_each_key_is_taken_with_all_indexes(cluster: Cluster) -> None:
    for collection, (key, unique) in told().items():
        cluster.shard(collection, key, unique=unique)
        kept = cluster.config["config"].collections.find_one({"_id": f"{DATABASE}.{collection}"})
        assert kept is not None
        assert (kept["key"], kept["unique"]) == (key, unique)
    # What is hashed is spread from the first row on, and its indexes with it.
    ours = cluster.shards["s1"][DATABASE][rows.COLLECTION].index_information()
    theirs = cluster.shards["s2"][DATABASE][rows.COLLECTION].index_information()
    assert ours.keys() == theirs.keys()
    assert {"asset_id_1_sequence_1", "unpublished", "asset_id_hashed"} <= theirs.keys()


def test_a_key_that_cannot_keep_our_promises_is_refused(cluster: Cluster) -> None:
    INDEXES["by_id"] = INDEXES[documents.COLLECTION]
    try:
        with pytest.raises(OperationFailure, match="Uniqueness can't be maintained"):
            cluster.shard("by_id", {"_id": 1}, unique=False)
    finally:
        del INDEXES["by_id"]


def _member(supervisor: Supervisor, folder: Path, name: str, role: str, port: int) -> MongoClient[dict[str, Any]]:
    folder.mkdir()
    client: MongoClient[dict[str, Any]] = MongoClient(
        "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=5000
    )
    command = [str(find_mongod()), role, "--dbpath", str(folder), "--port", str(port), "--bind_ip", "127.0.0.1"]
    command += ["--replSet", name, "--wiredTigerCacheSizeGB", "0.25", "--nounixsocket"]
    supervisor.start(name, command, ready=lambda: bool(client.admin.command("ping")["ok"]))
    members: dict[str, Any] = {"_id": name, "members": [{"_id": 0, "host": f"127.0.0.1:{port}"}]}
    client.admin.command("replSetInitiate", members | ({"configsvr": True} if role == "--configsvr" else {}))
    eventually(lambda: client.admin.command("hello")["isWritablePrimary"], deadline=30)
    return client
