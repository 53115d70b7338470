"""What the relays are scaled on: a count that must not grow with history."""

import json
from pathlib import Path
from typing import Any

import yaml
from pymongo import IndexModel
from pymongo.database import Database

from darkroom.outbox.rows import COLLECTION, INDEXES

MANIFEST = Path(__file__).parents[3] / "deploy" / "kubernetes" / "outbox-relay.yaml"


def test_the_relays_follow_the_unpublished_rows_by_an_index_that_holds_nothing_else(
    mongo_db: Database[dict[str, Any]],
) -> None:
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    (scaler,) = [document for document in documents if document["kind"] == "ScaledObject"]
    trigger = scaler["spec"]["triggers"][0]["metadata"]
    assert trigger["collection"] == COLLECTION
    query = json.loads(trigger["query"])
    rows = mongo_db[COLLECTION]
    rows.create_indexes([IndexModel(keys, **options) for keys, options in INDEXES])
    rows.insert_many(
        {"_id": f"e{n}", "asset_id": f"a{n}", "sequence": 1, "shard": n % 64, "published": n >= 7} for n in range(300)
    )
    assert rows.count_documents(query) == 7
    explained = mongo_db.command(
        "explain", {"aggregate": COLLECTION, "pipeline": [{"$match": query}], "cursor": {}}, verbosity="executionStats"
    )
    assert explained["executionStats"]["totalDocsExamined"] == 7
