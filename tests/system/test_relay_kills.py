"""Three relays, one that works killed every second: order per asset and completeness hold, and repeats are counted."""

import json
import subprocess
import sys
from pathlib import Path

from darkroom.runtime.mongo import Db

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "kills.py"


def test_relays_that_are_killed_lose_nothing_and_keep_order(
    mongo_url: str, mongo_db: Db, kafka_bootstrap: str, tmp_path: Path
) -> None:
    told = tmp_path / "told.json"
    sizes = ["--events", "2000", "--assets", "100", "--every", "1", "--seconds", "5", "--seed", "1"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--mongo", mongo_url, "--kafka", kafka_bootstrap, "--json", str(told), *sizes],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(told.read_text())
    assert found["kills"] >= 2
    assert found["events"] == 2000
    assert found["records"] == 2000 + found["duplicates"]
