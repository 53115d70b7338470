"""What stands in the way of a start is said in a line that names the setting, by every service, without a traceback."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from darkroom.local.aws import without_aws
from darkroom.runtime.health import health_server
from darkroom.runtime.start import StartRefused
from support.eventually import eventually

SERVICES = ("asset_api", "processor", "outbox_relay", "s3_bridge")
NOBODY = "127.0.0.1:9"
# Nothing that listens: all that is tried here is found out before anything is asked.
SOUND = {
    "DARKROOM_MONGO_URL": f"mongodb://{NOBODY}/?replicaSet=rs0",
    "DARKROOM_KAFKA_BOOTSTRAP": NOBODY,
    "DARKROOM_BUCKET": "some-bucket",
    "DARKROOM_QUEUE_URL": f"http://{NOBODY}/000000000000/uploads",
    "DARKROOM_JWT_SECRET": "s" * 32,
    "DARKROOM_EMAIL_FROM": "darkroom@example.org",
    "DARKROOM_PROCESSOR_DECODERS": "1",
    "AWS_ENDPOINT_URL": f"http://{NOBODY}",
    "AWS_REGION": "eu-north-1",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}

WRONG = [
    *((service, {"DARKROOM_LOG_LEVEL": "loud"}, "DARKROOM_LOG_LEVEL") for service in SERVICES),
    *((service, {"DARKROOM_MONGO_DATABASE": "a b"}, "DARKROOM_MONGO_DATABASE") for service in SERVICES[:3]),
    *((service, {"DARKROOM_KAFKA_BOOTSTRAP": ""}, "DARKROOM_KAFKA_BOOTSTRAP") for service in SERVICES[1:]),
    *((service, {"DARKROOM_TOPIC_PREFIX": "a/"}, "DARKROOM_TOPIC_PREFIX") for service in SERVICES[1:]),
    *(
        (service, {"DARKROOM_MONGO_URL": "mongodb://127.0.0.1:99999"}, "DARKROOM_MONGO_URL: no connection string")
        for service in SERVICES[:3]
    ),
    *(
        (service, {"DARKROOM_MONGO_URL": f"mongodb://{NOBODY}/"}, "DARKROOM_MONGO_URL: this MongoDB cannot be used")
        for service in ("asset_api", "processor", "notifier")
    ),
    ("asset_api", {"AWS_ENDPOINT_URL": "nonsense"}, "AWS_ENDPOINT_URL"),
    ("asset_api", {"DARKROOM_S3_PUBLIC_ENDPOINT_URL": "nonsense"}, "DARKROOM_S3_PUBLIC_ENDPOINT_URL"),
    ("asset_api", {"DARKROOM_JWT_SECRET": "", "DARKROOM_JWKS_URL": "https://a:x/"}, "DARKROOM_JWKS_URL"),
    *((service, {"AWS_ENDPOINT_URL": "http://a:99999"}, "AWS_ENDPOINT_URL") for service in ("asset_api", "s3_bridge")),
    ("asset_api", {"DARKROOM_HTTP_HOST": "256.0.0.1", "AWS_REGION": "no region"}, "AWS_REGION"),
    ("s3_bridge", {"DARKROOM_KAFKA_CONFIG": '{"nope": 1}'}, "DARKROOM_KAFKA_CONFIG: No such configuration property"),
    ("s3_bridge", {"AWS_REGION": ""}, "AWS_REGION"),
    ("s3_bridge", {"AWS_ENDPOINT_URL": "nonsense"}, "AWS_ENDPOINT_URL"),
]


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """A sound environment, but for these settings."""
    own = {name: value for name, value in without_aws(os.environ).items() if not name.startswith("DARKROOM_")}
    return {**own, **SOUND, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, **settings}


@pytest.mark.parametrize(("service", "settings", "said"), WRONG, ids=lambda value: str(value)[:60])
def test_a_wrong_setting_ends_a_service_with_a_line_that_names_it(
    service: str, settings: dict[str, str], said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", service],
        env=environment(settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_poller_takes_its_region_from_where_aws_puts_it(tmp_path: Path) -> None:
    # On ECS and Lambda there is AWS_REGION, which boto3 does not read by itself.
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "s3_bridge"], env=environment({}), stderr=file)
    try:
        eventually(lambda: "poller_started" in log.read_text(), deadline=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_a_log_level_may_be_written_small() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "s3_bridge"],
        env=environment({"DARKROOM_LOG_LEVEL": "debug", "AWS_REGION": ""}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "AWS_REGION" in done.stderr.splitlines()[-1]


def test_a_port_of_health_that_is_taken_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with (
            pytest.raises(StartRefused, match=f"port {port} .*DARKROOM_HEALTH_PORT"),
            health_server(host="127.0.0.1", port=port, live=dict, ready=dict),
        ):
            pass
