"""The running API keeps to its OpenAPI document, as schemathesis finds out by requests that it makes from it.

Good data must be accepted and bad data refused; nothing is answered without a token; every answer has a status, a
content type, headers and a body that the document names; nothing is a 5xx.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pymongo.database import Database

from darkroom.assets import to_document
from darkroom.contracts.events import AssetExpired
from darkroom.outbox import to_row
from support.events import failed, processing, ready, registered, step

Api = Any
Db = Database[dict[str, Any]]

TESTS = Path(__file__).parents[2]
HOOKS = "support.described_requests"
EXAMPLES = os.environ.get("DARKROOM_DESCRIPTION_EXAMPLES", "8")
OWNER = "described"


def stored(db: Db, *datas: Any) -> str:
    changes = [registered(owner_id=OWNER)]
    for data in datas:
        asset = changes[-1].after
        changes.append(step(asset, data(asset) if callable(data) else data))
    db.assets.insert_one(to_document(changes[-1].after))
    db.outbox_events.insert_many([to_row(change.event) for change in changes])
    return changes[-1].after.id


def test_the_description_is_kept(start_api: Callable[..., Api], api_db: Db, tmp_path: Path) -> None:
    api = start_api(DARKROOM_REGISTRATIONS_PER_MINUTE="100000", DARKROOM_UPLOADING_LIMIT="100000")
    stored(api_db, processing(), failed())
    stored(api_db, processing())
    stored(api_db, AssetExpired())
    token = api.headers(owner=OWNER)["Authorization"].removeprefix("Bearer ")
    (tmp_path / "schemathesis.toml").write_text(f"""
        [auth.openapi.bearer]
        bearer = "{token}"
        [parameters]
        # It can be seen, thrown away and restored; ids that nobody has are tried as well.
        "path.asset_id" = "{stored(api_db, processing(), ready)}"
    """)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{api.url}/openapi.json", "--no-color"),
            # A stream is answered for as long as one listens; its own tests read it.
            *("--exclude-path-regex", "/stream$"),
            # What was deleted is in the trash, where it can be seen on purpose.
            *("--exclude-checks", "use_after_free"),
            *("--generation-deterministic", "--max-examples", EXAMPLES),
        ],
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
