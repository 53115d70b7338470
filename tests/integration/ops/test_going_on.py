"""``darkroom reconcile --every`` as a process: it mends what is lost later, tells how it is, and ends when told to."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from darkroom.local.ports import free_ports
from integration.ops.conftest import Place
from support.eventually import eventually
from support.queues import read_topic


def environment(place: Place, mongo_url: str, aws_endpoint: str, port: int) -> Mapping[str, str]:
    found = place.installation
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        **os.environ,
        "AWS_REGION": found.s3.meta.region_name,
        "AWS_ENDPOINT_URL": aws_endpoint,
        "DARKROOM_MONGO_URL": mongo_url,
        "DARKROOM_MONGO_DATABASE": found.db.name,
        "DARKROOM_KAFKA_BOOTSTRAP": found.bootstrap,
        "DARKROOM_TOPIC_PREFIX": found.topics.prefix,
        "DARKROOM_PROCESSOR_GROUP": found.group,
        "DARKROOM_BUCKET": found.bucket,
        "DARKROOM_HEALTH_PORT": str(port),
    }


def test_it_goes_on_until_sigterm_and_ends_well_whatever_is_left(
    whole: Place, mongo_url: str, aws_endpoint: str
) -> None:
    # What can only be told is left after every pass, and is no failure of the process.
    gone = whole.ready()
    whole.delete(gone.object_key)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "darkroom.cli", "reconcile", "--every", "1", "--objects-every", "3600"]
    command += ["--unfinished-after", "0"]
    given = environment(whole, mongo_url, aws_endpoint, port)

    def passed(name: str) -> bool:
        job = whole.db.jobs.find_one({"_id": f"reconcile.{name}"})
        return job is not None and "last" in job

    def shown() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [one for family in families for one in family.samples]
        name = "darkroom_reconciler_last_pass_timestamp_seconds"
        return {one.labels["pass"]: one.value for one in samples if one.name == name}

    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            eventually(lambda: passed("objects") and passed("unfinished"), deadline=120, what="both passes")
            assert urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10).status == 200
            eventually(lambda: set(shown()) == {"objects", "unfinished"} and all(shown().values()), deadline=30)
            lost = whole.upload()
            (record,) = read_topic(
                whole.installation.bootstrap, whole.installation.topics.uploaded, count=1, deadline=60
            )
            assert record.key() == lost.id.encode()
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=60) == 0
            assert running.stdout is not None
            assert running.stdout.read() == ""  # the log tells it
        finally:
            running.kill()
    assert whole.db.jobs.find_one({"_id": "reconcile.objects"})["last"]["found"] == {"original_gone": 1}
    assert whole.db.jobs.find_one({"_id": "reconcile.objects"})["fence"] == 1
