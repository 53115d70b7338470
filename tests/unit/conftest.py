"""Unit tests are pure: a test here that opens a socket fails."""

from collections.abc import Iterator

import pytest
from pytest_socket import disable_socket, enable_socket


@pytest.fixture(autouse=True)
def no_sockets() -> Iterator[None]:
    """Disable sockets around each test; Unix sockets stay, as asyncio's event loop needs a pair of them."""
    disable_socket(allow_unix_socket=True)
    yield
    enable_socket()
