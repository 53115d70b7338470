"""How long is an upload on its way? From the end of the PUT to AssetReady read back from Kafka, one at a time.

    python benchmarks/journey.py [--uploads 50] [--json FILE]

Everything runs on this machine, idle but for this. Each upload is a 12-megapixel JPEG; the first five are not counted.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from darkroom.cli.client import Uploader
from darkroom.cli.photo import dusk
from darkroom.cli.tail import Tail
from darkroom.local.stack import start_stack

WARM_UP = 5


def measure(uploads: int) -> dict[str, Any]:
    """Upload one photo after the other; milliseconds of each hop."""
    photo = dusk(4000, 3000, grain=0.3)
    hops: dict[str, list[float]] = {"put_to_ready_ms": [], "post_ms": [], "put_ms": [], "processing_ms": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, start_stack(Path(folder)) as stack:
        uploader = Uploader(stack.api_url, stack.token("bench"))
        with Tail(stack.servers.kafka_bootstrap, stack.topics) as tail:
            for number in range(WARM_UP + uploads):
                sent = uploader.send(filename="dusk.jpg", content_type="image/jpeg", data=photo)
                seen = tail.wait_for_end(sent.asset_id, deadline=60)
                assert seen[-1].event.type == "AssetReady", seen
                if number < WARM_UP:
                    continue
                times = {str(one.event.type): one for one in seen}
                began, ended = (times[t].event.occurred_at.timestamp() for t in ("AssetProcessing", "AssetReady"))
                hops["put_to_ready_ms"].append((times["AssetReady"].read - sent.uploaded) * 1e3)
                hops["post_ms"].append((sent.registered - sent.began) * 1e3)
                hops["put_ms"].append((sent.uploaded - sent.registered) * 1e3)
                hops["processing_ms"].append((ended - began) * 1e3)
        uploader.close()
    found: dict[str, Any] = {
        name: {"p50": round(statistics.median(ms), 1), "max": round(max(ms), 1), "min": round(min(ms), 1)}
        for name, ms in hops.items()
    }
    return {"bytes": len(photo), "uploads": uploads, **found}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uploads", type=int, default=50)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.uploads)
    print(json.dumps(result, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
