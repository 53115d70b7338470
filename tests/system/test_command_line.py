"""The two commands of the README, and what stands in the way of a start."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from darkroom.local.mongod import find_mongod
from darkroom.local.ports import free_ports
from darkroom.local.processes import Supervisor
from support.eventually import eventually
from support.pictures import jpeg
from support.servers import aws_client

DARKROOM = [sys.executable, "-m", "darkroom.cli"]
RUNNING = 11
"""The command itself, two watchdogs, mongod, Kafka, the AWS endpoint, API, processor, relay, sweeper and
reconciler."""
LOCAL_ONLY = ("DARKROOM_MONGO_URL", "DARKROOM_KAFKA_BOOTSTRAP", "AWS_ENDPOINT_URL")


def environment(**added: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in LOCAL_ONLY} | added


def processes_of(folder: Path) -> list[int]:
    """Every process whose command line, environment, working folder or log is in ``folder``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            told += os.fsencode((entry / "cwd").readlink()) + os.fsencode((entry / "fd" / "1").readlink())
        except OSError:
            continue  # it ended while we looked
        if os.fsencode(folder) in told and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def named(folder: Path, module: bytes) -> list[int]:
    """Those of them that run this module."""
    return [pid for pid in processes_of(folder) if module in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]


@pytest.mark.timeout(240)
def test_the_demo_takes_every_picture_to_its_end_and_leaves_nothing_behind(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "good.jpg").write_bytes(jpeg(400, 300))
    (images / "bad.jpg").write_bytes(jpeg(400, 300)[:-300])
    (images / "empty.jpg").write_bytes(b"")
    (images / "notes.txt").write_text("no picture")
    out, data = tmp_path / "out.json", tmp_path / "data"
    done = subprocess.run(
        [*DARKROOM, "demo", "--once", "--images", str(images), "--json", str(out), "--data", str(data)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    by_file = {one["file"]: one for one in json.loads(out.read_text())}
    good = by_file["good.jpg"]
    assert (good["status"], good["width"], good["height"]) == ("READY", 400, 300)
    assert [r["name"] for r in good["renditions"]] == ["thumb", "preview"]
    assert good["events"] == ["AssetRegistered", "AssetUploaded", "AssetProcessing", "AssetReady"]
    assert (by_file["bad.jpg"]["status"], by_file["bad.jpg"]["failure_code"]) == ("FAILED", "corrupt_or_truncated")
    assert by_file["empty.jpg"]["status"] == by_file["notes.txt"]["status"] == "REFUSED"
    assert processes_of(data) == []


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], Path]]]:
    """Starts ``darkroom up`` on a folder of its own, and gives it and the folder once everything is ready."""
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], Path]:
        data = tmp_path / f"data-{len(started)}"
        process = subprocess.Popen(
            [*DARKROOM, "up", "--data", str(data)],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
            # As a shell starts a background job.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Starting")
        for line in process.stdout:
            if "Ctrl-C ends everything" in line:
                return process, data
        raise AssertionError(f"darkroom up ended with {process.wait(30)}")

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_nothing_is_left(
    up: Callable[[], tuple[subprocess.Popen[str], Path]], ending: signal.Signals
) -> None:
    process, data = up()
    assert len(processes_of(data)) >= RUNNING
    process.send_signal(ending)
    process.wait(60)
    eventually(lambda: processes_of(data) == [], what="everything ended", deadline=30)


@pytest.mark.timeout(240)
def test_it_says_when_a_part_of_it_has_ended_and_goes_on(
    up: Callable[[], tuple[subprocess.Popen[str], Path]],
) -> None:
    process, data = up()
    (relay,) = named(data, b"outbox_relay")
    os.kill(relay, signal.SIGKILL)
    assert process.stdout is not None
    said = process.stdout.readline()
    assert "outbox_relay has ended with exit code -9" in said
    assert str(data / "logs" / "services" / "outbox_relay.log") in said
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


@pytest.mark.timeout(240)
def test_a_folder_whose_aws_endpoint_was_killed_is_refused_with_what_to_do(
    up: Callable[[], tuple[subprocess.Popen[str], Path]],
) -> None:
    process, data = up()
    told = dict(re.findall(r"export (\w+)=(\S+)", (data / "environment").read_text()))
    # It writes to its disk what is put into a bucket, and with it that there is one.
    aws_client("s3", told["AWS_ENDPOINT_URL"]).put_object(Bucket=told["DARKROOM_BUCKET"], Key="a", Body=b"a")
    (endpoint,) = named(data, b"ministack")
    os.kill(endpoint, signal.SIGKILL)
    assert process.stdout is not None
    assert "aws has ended" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    again = subprocess.run(
        [*DARKROOM, "up", "--data", str(data)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert again.returncode == 2
    assert f"If that is what happened in {data}, delete that folder" in " ".join(again.stderr.split())
    assert processes_of(data) == []


@pytest.mark.timeout(300)
def test_two_run_side_by_side_and_none_over_another(
    up: Callable[[], tuple[subprocess.Popen[str], Path]], tmp_path: Path
) -> None:
    (first, one), (second, two) = up(), up()
    told = dict(re.findall(r"export (\w+)=(\S+)", (one / "environment").read_text()))
    over = subprocess.run(
        [*DARKROOM, "up", "--data", str(tmp_path / "third")],
        env=environment(**told),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert over.returncode == 2
    assert f"This shell has the environment of the stack in {one}:" in " ".join(over.stderr.split())
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 0
    assert processes_of(two) == []
    assert first.poll() is None
    assert len(processes_of(one)) >= RUNNING


@pytest.fixture(scope="module")
def standalone_mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("standalone")
    (folder / "db").mkdir()
    (port,) = free_ports(1)
    with Supervisor(folder / "logs") as supervisor:
        argv = [str(find_mongod()), "--dbpath", str(folder / "db"), "--port", str(port), "--bind_ip", "127.0.0.1"]
        mongod = supervisor.prepare("mongod", argv, ready=lambda: "Waiting for connections" in mongod.log())
        mongod.start()
        yield f"mongodb://127.0.0.1:{port}/"


@pytest.mark.parametrize("service", ["asset_api", "processor", "outbox_relay"])
def test_a_service_refuses_a_standalone_mongod_and_says_why(service: str, standalone_mongod: str) -> None:
    settings = {
        "DARKROOM_MONGO_URL": standalone_mongod,
        "DARKROOM_KAFKA_BOOTSTRAP": "127.0.0.1:9",
        "DARKROOM_BUCKET": "bucket",
        "DARKROOM_JWT_SECRET": "0" * 32,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    done = _run(service, settings)
    assert done.returncode != 0
    assert "replSet" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("service", ["asset_api", "processor", "outbox_relay", "s3_bridge"])
def test_a_service_names_the_settings_that_are_missing(service: str) -> None:
    done = _run(service, {})
    assert done.returncode != 0
    assert "DARKROOM_" in done.stderr
    assert "not set" in done.stderr
    assert "Traceback" not in done.stderr


NOBODY = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        (["up", "--data", "/proc/nowhere"], {}, "--data"),
        (["up", "--data", "/dev/null"], {}, "--data"),
        (["setup"], {"DARKROOM_KAFKA_BOOTSTRAP": NOBODY, "DARKROOM_KAFKA_CONFIG": '{"nope": 1}'}, "nope"),
        (["setup"], {"DARKROOM_KAFKA_BOOTSTRAP": ""}, "DARKROOM_KAFKA_BOOTSTRAP"),
        (["token", "bob"], {"DARKROOM_JWT_SECRET": "short"}, "DARKROOM_JWT_SECRET"),
        (["token", " "], {"DARKROOM_JWT_SECRET": "0" * 32}, "must be 1 to 255 printable characters"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_command_that_cannot_work_says_why_without_a_traceback(
    arguments: list[str], settings: dict[str, str], said: str
) -> None:
    done = subprocess.run(
        [*DARKROOM, *arguments],
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["status", "sweep"])
def test_an_outage_is_told_without_the_picture_of_all_servers(command: str) -> None:
    settings = {
        "DARKROOM_MONGO_URL": f"mongodb://{NOBODY}/?replicaSet=rs0&serverSelectionTimeoutMS=200",
        "DARKROOM_KAFKA_BOOTSTRAP": NOBODY,
        "DARKROOM_BUCKET": "bucket",
        "AWS_REGION": "us-east-1",
    }
    done = subprocess.run(
        [*DARKROOM, command], env=environment(**settings), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "Connection refused" in done.stderr
    assert "Topology" not in done.stderr


def _run(service: str, settings: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    bare = {name: value for name, value in environment().items() if not name.startswith(("DARKROOM_", "AWS_"))}
    return subprocess.run(
        [sys.executable, "-m", service], env=bare | settings, capture_output=True, text=True, timeout=60, check=False
    )
