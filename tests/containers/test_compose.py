"""deploy/compose.yaml and deploy/Dockerfile as they are, in real containers on one machine."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from darkroom.cli.client import TERMINAL, Uploader
from darkroom.runtime.tokens import mint
from support.containers import Compose
from support.eventually import eventually
from support.pictures import jpeg, photo_jpeg

pytestmark = pytest.mark.timeout(1800)

SERVICES = ("asset_api", "s3_bridge", "processor", "outbox_relay", "sweeper", "reconciler")

# Run inside a container, which shows its health port to nobody outside: /readyz, then /metrics.
HEALTH = """
import urllib.request
for page in ("readyz", "metrics"):
    print(urllib.request.urlopen(f"http://127.0.0.1:8081/{page}", timeout=5).read().decode())
"""

# Run inside a container, where Kafka's address is known: how often each asset's AssetReady is on the topic.
COUNT_READY = """
import collections, json
from confluent_kafka import Consumer, TopicPartition
consumer = Consumer({"bootstrap.servers": "kafka:9092", "group.id": "count", "enable.partition.eof": True})
topic = consumer.list_topics("assets.events", 10).topics["assets.events"]
partitions = [TopicPartition("assets.events", number, 0) for number in topic.partitions]
consumer.assign(partitions)
seen, left = collections.defaultdict(set), len(partitions)
while left:
    record = consumer.poll(20)
    if record is None: raise SystemExit("Kafka did not answer")
    if record.error(): left -= 1; continue
    headers = dict(record.headers())
    if headers["ce_type"] == b"AssetReady": seen[record.key().decode()].add(headers["ce_id"].decode())
print(json.dumps({key: len(ids) for key, ids in seen.items()}))
"""

# Run inside a container: takes webhooks, and tells which there were.
RECEIVER = """
import http.server, json
took = []
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        told = self.headers["webhook-id"], self.headers["webhook-signature"][:3], body["type"], body["data"]["asset_id"]
        took.append(told)
        self.send_response(204); self.end_headers()
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(took).encode())
http.server.HTTPServer(("0.0.0.0", 9000), Receiver).serve_forever()
"""
TOOK = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:9000/', timeout=5).read().decode())"


@pytest.fixture(scope="module")
def uploader(compose: Compose) -> Iterator[Uploader]:
    """The API as the host reaches it, once it serves."""
    token = mint(compose.variables["JWT_SECRET"], owner="containers", seconds=3600)
    url = f"http://127.0.0.1:{compose.variables['API_PORT']}"
    made = Uploader(url, token)
    try:
        eventually(lambda: httpx.get(f"{url}/readyz").is_success, deadline=300, what="the API in its container")
        yield made
    except AssertionError as error:
        error.add_note(compose.logs())
        raise
    finally:
        made.close()


def send(uploader: Uploader, number: int, data: bytes) -> str:
    return uploader.send(filename=f"{number}.jpg", content_type="image/jpeg", data=data).asset_id


def statuses(uploader: Uploader, assets: list[str]) -> dict[str, str]:
    with ThreadPoolExecutor(4) as pool:
        return {asset["asset_id"]: asset["status"] for asset in pool.map(uploader.get, assets)}


def all_ready(compose: Compose, uploader: Uploader, assets: list[str], *, deadline: float) -> None:
    try:
        eventually(
            lambda: all(status in TERMINAL for status in statuses(uploader, assets).values()),
            deadline=deadline,
            what="an end for every photo",
        )
    except AssertionError as error:
        error.add_note(compose.logs())
        raise
    assert set(statuses(uploader, assets).values()) == {"READY"}


def ready_on_kafka(compose: Compose, container: str) -> dict[str, int]:
    """How many different AssetReady events each asset has on the topic."""
    counted: dict[str, int] = json.loads(compose.podman.run("exec", container, "python", "-c", COUNT_READY).stdout)
    return counted


def test_photos_become_ready_while_processors_are_scaled_and_one_is_killed(
    compose: Compose, uploader: Uploader
) -> None:
    first = send(uploader, 0, photo_jpeg())
    all_ready(compose, uploader, [first], deadline=240)

    compose.run("up", "--detach", "--no-build", "--no-recreate", "--scale", "processor=3", "processor")
    eventually(lambda: len(compose.containers("processor")) == 3, deadline=120, what="three processors")
    processors = compose.containers("processor")
    photo = photo_jpeg(1600, 1200)
    assets = [send(uploader, number, photo) for number in range(1, 13)]
    compose.podman.run("kill", "--signal", "KILL", processors[0])
    assets += [send(uploader, number, jpeg(640, 400)) for number in range(13, 25)]
    all_ready(compose, uploader, assets, deadline=400)

    relay = compose.containers("outbox_relay")[0]
    eventually(lambda: len(ready_on_kafka(compose, relay)) == 25, deadline=240, what="AssetReady of all on Kafka")
    assert ready_on_kafka(compose, relay) == dict.fromkeys([first, *assets], 1)


@pytest.mark.parametrize(
    ("service", "told"),
    [
        ("sweeper", ["darkroom_sweeper_last_sweep_timestamp_seconds"]),
        (
            "reconciler",
            [f'darkroom_reconciler_last_pass_timestamp_seconds{{pass="{name}"}}' for name in ("unfinished", "objects")],
        ),
    ],
)
def test_what_tidies_up_is_ready_and_has_done_its_round(
    compose: Compose, uploader: Uploader, service: str, told: list[str]
) -> None:
    def has_done_its_round() -> bool:
        (name,) = compose.containers(service)
        shown = compose.podman.run("exec", name, "python", "-c", HEALTH, check=False).stdout
        values = {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in shown.splitlines() if " " in line}
        return '"status": "ok"' in shown and all(float(values.get(metric, 0)) > 0 for metric in told)

    try:
        eventually(has_done_its_round, deadline=120, what=f"a round of the {service}")
    except AssertionError as error:
        error.add_note(compose.logs())
        raise


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_no_root_no_writable_root_file_system_and_no_compiler(
    compose: Compose, uploader: Uploader, service: str
) -> None:
    name = compose.containers(service)[-1]
    script = "id -u; touch /opt/darkroom/x 2>&1; touch /x 2>&1; command -v gcc cc pip; ls /opt/darkroom/bin; true"
    told = compose.podman.run("exec", name, "sh", "-c", script).stdout.splitlines()
    assert told[0] == "10001"
    assert [line.rsplit(": ", 1)[-1] for line in told[1:3]] == ["Read-only file system"] * 2
    assert not [line for line in told[3:] if line.rsplit("/", 1)[-1] in ("gcc", "cc", "pip", "pip3")]
    (facts,) = json.loads(compose.podman.run("inspect", name).stdout)
    assert facts["EffectiveCaps"] in (None, [])


def test_the_notifier_of_the_profile_tells_of_each_asset_once(compose: Compose, uploader: Uploader) -> None:
    receiver = compose.containers("outbox_relay")[0]
    compose.podman.run("exec", "--detach", receiver, "python", "-c", RECEIVER)

    def took() -> list[list[str]]:
        told: list[list[str]] = json.loads(compose.podman.run("exec", receiver, "python", "-c", TOOK).stdout)
        return told

    eventually(lambda: took() == [], deadline=30, what="the receiver")
    notified = replace(compose, variables={**compose.variables, "WEBHOOK_URL": "http://outbox_relay:9000/hook"})
    notified.run("--profile", "notifier", "build", "notifier", seconds=600)
    notified.run("--profile", "notifier", "up", "--detach", "--no-build", "--no-recreate", "notifier")
    (notifier,) = eventually(lambda: compose.containers("notifier"), deadline=60, what="the notifier")
    asset = send(uploader, 100, jpeg(320, 200))
    all_ready(compose, uploader, [asset], deadline=120)
    try:
        mine = eventually(lambda: [one for one in took() if one[3] == asset], deadline=120, what="the webhook")
    except AssertionError as error:
        error.add_note(compose.logs())
        raise
    ((event_id, signature, event_type, _),) = mine
    assert (signature, event_type) == ("v1,", "asset.ready")
    told = took()
    assert len({one[0] for one in told}) == len(told)
    assert event_id in {one[0] for one in told}
    assert compose.podman.run("exec", notifier, "id", "-u").stdout.strip() == "10001"


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_ends_in_order_when_it_is_asked_to(compose: Compose, uploader: Uploader, service: str) -> None:
    name = compose.containers(service)[-1]
    compose.podman.run("stop", "--time", "30", name, seconds=60)
    (facts,) = json.loads(compose.podman.run("inspect", name).stdout)
    assert facts["State"]["ExitCode"] == 0
