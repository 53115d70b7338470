"""What an answer is written in: one piece for head and body, and nothing is lost or kept back."""

import asyncio

from asset_api.connection import LARGEST, GatheringTransport


class Wire(asyncio.Transport):
    """Notes each write, each of which is a packet on a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "written to what is closed"
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 7


def test_what_is_written_in_one_turn_of_the_loop_is_one_write() -> None:
    async def play() -> None:
        wire = Wire()
        transport = GatheringTransport(wire)
        transport.write(b"head ")
        transport.write(b"body")
        assert wire.writes == []
        await asyncio.sleep(0)
        assert wire.writes == [b"head body"]
        transport.write(b"next")
        await asyncio.sleep(0)
        assert wire.writes == [b"head body", b"next"]

    asyncio.run(play())


def test_what_is_written_before_the_end_is_sent_before_it() -> None:
    async def play() -> None:
        wire = Wire()
        transport = GatheringTransport(wire)
        transport.write(b"last words")
        transport.close()
        assert (wire.writes, wire.closed) == ([b"last words"], True)
        await asyncio.sleep(0)
        assert wire.writes == [b"last words"]

    asyncio.run(play())


def test_a_client_that_goes_away_meanwhile_is_written_nothing() -> None:
    async def play() -> None:
        wire = Wire()
        transport = GatheringTransport(wire)
        transport.write(b"for nobody")
        wire.close()
        await asyncio.sleep(0)
        transport.close()
        assert wire.writes == []

    asyncio.run(play())


def test_much_is_not_gathered_but_written_at_once_where_the_network_can_slow_it_down() -> None:
    async def play() -> None:
        wire = Wire()
        transport = GatheringTransport(wire)
        transport.write(b"a" * LARGEST)
        assert wire.writes == []
        transport.write(b"b")
        assert wire.writes == [b"a" * LARGEST + b"b"]
        await asyncio.sleep(0)
        assert len(wire.writes) == 1

    asyncio.run(play())


def test_all_else_is_the_transports_own() -> None:
    async def play() -> None:
        assert GatheringTransport(Wire()).get_write_buffer_size() == 7

    asyncio.run(play())
