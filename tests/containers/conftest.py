"""Fixtures of the container tests. They take minutes and root, so only `make test-containers` runs them."""

import os
import uuid
from collections.abc import Iterator

import pytest

from darkroom.local.ports import free_ports
from support.containers import CannotMakeImages, Compose, Podman, reason_to_skip


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    """podman, if it is asked for and can run here."""
    if not os.environ.get("DARKROOM_TEST_CONTAINERS"):
        pytest.skip("takes minutes and needs podman: make test-containers")
    if reason := reason_to_skip():
        pytest.skip(reason)
    return Podman(tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="session")
def standins(podman: Podman) -> dict[str, str]:
    """The images that stand in for the servers'."""
    try:
        return podman.make_standins()
    except CannotMakeImages as error:
        pytest.skip(f"the stand-ins of the servers' images cannot be made here: {error}")


@pytest.fixture(scope="session")
def compose(podman: Podman, standins: dict[str, str]) -> Iterator[Compose]:
    """deploy/compose.yaml, built and up on stand-ins of the servers' images; everything is gone afterwards."""
    api_port, aws_port = free_ports(2)
    project = Compose(
        podman,
        project=f"darkroom-test-{uuid.uuid4().hex[:8]}",
        variables={
            **{f"{name.upper()}_IMAGE": image for name, image in standins.items()},
            "BASE_IMAGE": podman.make_base(),
            "API_PORT": str(api_port),
            "AWS_PORT": str(aws_port),
            "JWT_SECRET": uuid.uuid4().hex,
        },
    )
    try:
        project.run("build", seconds=600)
        project.run("up", "--detach", "--no-build", seconds=300)
        yield project
    finally:
        project.remove()
