"""Ports are chosen free, kept with their data, and named when they are taken."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from darkroom.local.errors import LocalServerError, PortTakenError, ServerDiedError
from darkroom.local.ports import HOST, free_ports, start_on_ports


@pytest.fixture
def taken() -> Iterator[int]:
    (port,) = free_ports(1)
    with socket.create_server((HOST, port)):
        yield port


def test_free_ports_are_distinct_and_below_the_ranges_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(20_000 <= port < 32_768 for port in ports)


def test_the_data_keeps_its_ports(tmp_path: Path) -> None:
    first = start_on_ports(list, count=2, folder=tmp_path, server="mongod")
    assert start_on_ports(list, count=2, folder=tmp_path, server="mongod") == first


def test_a_wanted_port_that_is_taken_is_named(tmp_path: Path, taken: int) -> None:
    with pytest.raises(PortTakenError, match=rf"mongod: port {taken} .* is taken"):
        start_on_ports(list, count=1, folder=tmp_path, server="mongod", wanted=[taken])


def test_another_number_of_members_on_the_same_data_is_refused(tmp_path: Path) -> None:
    start_on_ports(list, count=1, folder=tmp_path, server="mongod")
    with pytest.raises(LocalServerError, match="same number of members"):
        start_on_ports(list, count=3, folder=tmp_path, server="mongod")


def _died(log_tail: str) -> ServerDiedError:
    return ServerDiedError("it died", log_tail=log_tail, log_path=Path("it.log"))


def test_a_free_port_that_another_process_takes_first_is_replaced(tmp_path: Path) -> None:
    tried: list[list[int]] = []

    def start(ports: list[int]) -> list[int]:
        tried.append(ports)
        if len(tried) == 1:
            raise _died("java.net.BindException: Address already in use")
        return ports

    assert start_on_ports(start, count=1, folder=tmp_path, server="Kafka") == tried[1]
    assert len(tried) == 2


def test_any_other_death_is_not_tried_again(tmp_path: Path) -> None:
    tried: list[list[int]] = []

    def start(ports: list[int]) -> list[int]:
        tried.append(ports)
        raise _died("out of memory")

    with pytest.raises(ServerDiedError):
        start_on_ports(start, count=1, folder=tmp_path, server="Kafka")
    assert len(tried) == 1


def test_killed_in_the_middle_of_its_first_start_the_data_keeps_its_ports_all_the_same(tmp_path: Path) -> None:
    tried: list[list[int]] = []

    def start(ports: list[int]) -> list[int]:
        tried.append(ports)
        if len(tried) == 1:
            raise KeyboardInterrupt  # stands for any end: nothing that would be done after it is done
        return ports

    with pytest.raises(KeyboardInterrupt):
        start_on_ports(start, count=2, folder=tmp_path / "mongo", server="mongod")
    assert start_on_ports(start, count=2, folder=tmp_path / "mongo", server="mongod") == tried[0]
