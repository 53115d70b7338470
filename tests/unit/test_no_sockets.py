"""Unit tests cannot reach a server."""

import socket

import pytest
from pytest_socket import SocketBlockedError


def test_a_socket_is_refused() -> None:
    with pytest.warns(UserWarning, match="tried to use socket"), pytest.raises(SocketBlockedError):
        socket.create_connection(("127.0.0.1", 9))
