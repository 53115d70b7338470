"""The tests' own servers as containers: testcontainers over podman's socket, in Docker's place."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.container_servers import IMAGES
from support.containers import REPOSITORY, Podman
from support.eventually import eventually

pytestmark = pytest.mark.timeout(900)

# One of each kind of server: transactions; headers and partitions; queues.
TESTS = (
    "tests/integration/exactly_once/test_registration.py",
    "tests/integration/outbox_relay/test_publishing.py",
    "tests/integration/s3_bridge/test_poller.py",
)


@pytest.fixture
def socket(podman: Podman, tmp_path: Path) -> Iterator[Path]:
    """Where podman answers Docker's API."""
    path = tmp_path / "podman.sock"
    command = ["podman", "system", "service", "--time=0", f"unix://{path}"]
    service = subprocess.Popen(command, env=podman.environment(), stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        eventually(path.exists, deadline=30, what="podman's socket")
        yield path
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(30)


def test_the_same_tests_pass_on_servers_in_containers(podman: Podman, standins: dict[str, str], socket: Path) -> None:
    def running() -> set[str]:
        return set(podman.run("ps", "--all", "--quiet").stdout.split())

    before = running()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DARKROOM_"))} | {
        "DOCKER_HOST": f"unix://{socket}",
        "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
        "TESTCONTAINERS_RYUK_DISABLED": "true",
        "DARKROOM_TEST_SERVERS": "containers",
        **{IMAGES[name][0]: image for name, image in standins.items()},
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "container, started on first use" in done.stdout
    assert " passed" in done.stdout
    assert running() == before
