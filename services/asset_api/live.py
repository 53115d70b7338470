"""Live state: the process's one change stream over the event store, shared by everybody who listens.

docs/decisions/0009-live-state.md says why no event is missed or doubled.
"""

import asyncio
import random
from collections import Counter, defaultdict, deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import structlog
from bson.timestamp import Timestamp
from pymongo.asynchronous.change_stream import AsyncCollectionChangeStream
from pymongo.errors import OperationFailure, PyMongoError

from asset_api.listener import Ending, Happened, Listener
from asset_api.position import Position, Progress, Time, next_after, token_time
from darkroom import outbox
from darkroom.runtime.mongo import AsyncClient, Document

log = structlog.get_logger()

Stream = AsyncCollectionChangeStream[Document]

# InvalidResumeToken, ChangeStreamFatalError, ChangeStreamHistoryLost: where it stopped cannot be found any more.
HISTORY_LOST = frozenset({260, 280, 286})
AWAIT_MS = 1000
CATCH_UP_AWAIT_MS = 50
CONNECTION: dict[str, Any] = {
    "appname": "darkroom-asset-api-live",
    # A server that says nothing at all for so long may stand still with its connections open.
    "socketTimeoutMS": 10_000,
}
"""Options of a client for the hub alone."""
BREATH = 32
"""After so many events at once listeners get their turn, so that a burst fills no queue of one who keeps up."""
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
_FIELDS = (
    "_id",
    "asset_id",
    "sequence",
    "type",
    "data_version",
    "data",
    "owner_id",
    "occurred_at",
    "causation_id",
    "correlation_id",
)


class Refused(Exception):
    """Nobody can begin to listen now. The message says why."""


class Hub:
    """Hears every commit of the event store once and hands it to who listens.

    Starts with its first listener. ``remembered`` is how many events are kept for listeners that come back;
    ``replay_seconds`` how far back one may go that was away for longer, by the server's history.
    """

    def __init__(
        self,
        *,
        client: AsyncClient,
        database: str,
        seconds: float,
        listeners: int = 1000,
        per_owner: int = 250,
        queued: int = 256,
        remembered: int = 4096,
        replay_seconds: float = 3600.0,
    ) -> None:
        self._client = client
        self._rows = client[database][outbox.COLLECTION]
        self._seconds = seconds
        self._most = listeners
        self._most_per_owner = per_owner
        self._queued = queued
        self._most_remembered = remembered
        self._replay_seconds = replay_seconds
        self._listeners: defaultdict[str, set[Listener]] = defaultdict(set)
        self._behind: set[Listener] = set()
        self._counts: Counter[str] = Counter()
        self._remembered: deque[Happened] = deque()
        self._whole_from: Time = (0, 0)  # everything from this time on is remembered
        self._lost_until: Time = (0, 0)  # the server has told that it does not go back so far
        self._progress = Progress((0, 0))
        self._token: Mapping[str, Any] | None = None
        self._opened = asyncio.Event()
        self._ended = False
        self._following: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self.restarts = 0
        """How often the change stream broke and was opened again."""

    @property
    def listening(self) -> int:
        """How many listen now."""
        return self._counts.total()

    async def listen(
        self, owner_id: str, *, asset_id: str | None = None, after: Position | None = None, lost: bool = False
    ) -> Listener:
        """Begin to listen, after what the listener knows; None: from now on. ``lost``: what it knows is unreadable.

        Raises:
            Refused: the process is ending, too many listen, or the change stream does not open in time.

        """
        self._check_room(owner_id)
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        try:
            async with asyncio.timeout(self._seconds):
                await self._opened.wait()
                if after is not None and await self._never_comes(after):
                    after, lost = None, True
        except (TimeoutError, PyMongoError) as error:
            raise Refused("The live events cannot be read now.") from error
        self._check_room(owner_id)
        listener = Listener(owner_id, asset_id=asset_id, after=after, limit=self._queued)
        self._counts[owner_id] += 1
        # No await from here on: nothing can happen between looking back and listening.
        if lost or (after is not None and self._too_old(after)):
            self._go_on_from_here(listener)
        elif after is not None and after.time < self._whole_from:
            self._behind.add(listener)
            if self._catching_up is None:
                self._catching_up = asyncio.create_task(self._catch_up())
        else:
            self._join(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Forget a listener."""
        self._counts[listener.owner_id] -= 1
        self._counts += Counter()  # drops those at nought
        self._behind.discard(listener)
        theirs = self._listeners.get(listener.owner_id, set())
        theirs.discard(listener)
        if not theirs:
            self._listeners.pop(listener.owner_id, None)

    def position(self, listener: Listener) -> Position | None:
        """Where a listener is that has sent all it was given; None while it is behind."""
        if not listener.live:
            return None
        reached = self._progress.of(listener.owner_id)
        return reached if listener.after is None else max(reached, listener.after)

    def end(self) -> None:
        """Let every stream end at once, and no new one begin."""
        self._ended = True
        for listener in [*self._behind, *(one for theirs in self._listeners.values() for one in theirs)]:
            listener.end(Ending.SHUTDOWN)

    async def close(self) -> None:
        """End the streams and the reading."""
        self.end()
        for task in (self._following, self._catching_up):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _check_room(self, owner_id: str) -> None:
        if self._ended:
            raise Refused("This instance is ending.")
        if self._counts.total() >= self._most:
            raise Refused(f"This instance has its {self._most} listeners already.")
        if self._counts[owner_id] >= self._most_per_owner:
            raise Refused(f"You have {self._most_per_owner} streams open at this instance already; end some.")

    # What follows is one change stream, read for ever.

    async def _follow(self) -> None:
        wait = FIRST_WAIT_SECONDS
        # Asked as well as cancelled: a cancellation may come while the driver has it in its hands.
        while not self._ended:
            try:
                stream = await self._open()
                async with stream:
                    wait = FIRST_WAIT_SECONDS
                    while stream.alive and not self._ended:
                        await self._read(stream)
                if not self._ended:
                    log.warning("live_invalidated")
                    self._token = None
            except PyMongoError as error:
                lost = isinstance(error, OperationFailure) and error.code in HISTORY_LOST
                log.warning("live_interrupted", error=type(error).__name__, reason=str(error)[:300], lost=lost)
                if lost:
                    self._token = None
            except Exception:
                log.exception("live_failed")  # a form of token that is not known, say: in the log, again and again
            self.restarts += not self._ended
            await asyncio.sleep(random.uniform(wait / 2, wait))  # noqa: S311 -- spreads processes, guards nothing
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    async def _open(self) -> Stream:
        if self._token is not None:
            return await self._watch(resume_after=self._token, max_await_time_ms=AWAIT_MS)
        committed, _ = await self._server_times()
        begin = next_after(committed)  # what is of that very time is there already, and may have been heard
        stream = await self._watch(start_at_operation_time=Timestamp(*begin), max_await_time_ms=AWAIT_MS)
        self._begin(begin)
        self._token = stream.resume_token
        return stream

    def _begin(self, time: Time) -> None:
        """Start at the present. If this is not the first time, what was missed is told to everybody."""
        self._remembered.clear()
        self._whole_from = time
        self._progress = Progress(time)
        self._opened.set()
        for theirs in self._listeners.values():
            for listener in theirs:
                listener.lose(self._progress.of(listener.owner_id))

    async def _read(self, stream: Stream) -> None:
        """Everything that is there, or nothing after a while."""
        for _ in range(BREATH):
            change = await stream.try_next()
            if change is None:
                if stream.resume_token is not None:
                    self._token = stream.resume_token
                    self._progress.reached(token_time(self._token))
                return
            self._hear(change)
            self._token = change["_id"]
        await asyncio.sleep(0)

    def _hear(self, change: Mapping[str, Any]) -> None:
        happened = _happened(change, self._progress)
        self._remembered.append(happened)
        if len(self._remembered) > self._most_remembered:
            self._whole_from = next_after(self._remembered.popleft().position.time)
        for listener in self._listeners.get(happened.owner_id, ()):
            listener.hear(happened)

    def _join(self, listener: Listener) -> None:
        """From what is remembered into what is to come."""
        if listener.after is not None:
            listener.catch_up(self._remembered)
        self._add(listener)

    def _go_on_from_here(self, listener: Listener) -> None:
        listener.lose(self._progress.of(listener.owner_id))
        self._add(listener)

    def _add(self, listener: Listener) -> None:
        listener.live = True
        self._listeners[listener.owner_id].add(listener)
        if self._ended:
            listener.end(Ending.SHUTDOWN)

    def _too_old(self, after: Position) -> bool:
        return after.time <= self._lost_until or self._progress.time[0] - after.time[0] > self._replay_seconds

    # A listener that was away for longer than is remembered is brought up by a second, short change stream: one at a
    # time for all who are behind, and only over their owners' events.

    async def _catch_up(self) -> None:
        wait = FIRST_WAIT_SECONDS
        try:
            while self._behind and not self._ended:
                group = list(self._behind)
                oldest = min(_after(listener) for listener in group).time
                try:
                    await self._pass(group, oldest)
                    wait = FIRST_WAIT_SECONDS
                except PyMongoError as error:
                    if isinstance(error, OperationFailure) and error.code in HISTORY_LOST:
                        self._lost_until = max(self._lost_until, oldest)
                    else:
                        log.warning("catch_up_interrupted", error=type(error).__name__, reason=str(error)[:300])
                        await asyncio.sleep(wait)
                        wait = min(2 * wait, LONGEST_WAIT_SECONDS)
                except Exception:
                    log.exception("catch_up_failed")
                    self._lost_until = max(self._lost_until, oldest)
                self._give_up_the_too_old()
        finally:
            self._catching_up = None

    async def _pass(self, group: Sequence[Listener], oldest: Time) -> None:
        by_owner: defaultdict[str, list[Listener]] = defaultdict(list)
        for listener in group:
            by_owner[listener.owner_id].append(listener)
        progress = Progress(oldest)
        stream = await self._watch(
            start_at_operation_time=Timestamp(*oldest), max_await_time_ms=CATCH_UP_AWAIT_MS, owners=list(by_owner)
        )
        async with stream:
            while stream.alive and not self._ended and self._behind.intersection(group):
                for _ in range(BREATH):
                    change = await stream.try_next()
                    if change is None:
                        if stream.resume_token is not None:
                            progress.reached(token_time(stream.resume_token))
                        break
                    happened = _happened(change, progress)
                    for listener in by_owner[happened.owner_id]:
                        if listener in self._behind:  # who has joined hears it from there
                            listener.hear(happened)
                self._let_join(group, progress)
                await asyncio.sleep(0)

    def _let_join(self, group: Sequence[Listener], progress: Progress) -> None:
        """Whoever has come as far as what is remembered goes on from there."""
        for listener in self._behind.intersection(group):
            listener.after = max(_after(listener), progress.of(listener.owner_id))
            if listener.ending is not None:
                self._behind.discard(listener)
            elif listener.after.time >= self._whole_from:
                self._behind.discard(listener)
                self._join(listener)

    def _give_up_the_too_old(self) -> None:
        for listener in list(self._behind):
            if self._too_old(_after(listener)):
                self._behind.discard(listener)
                self._go_on_from_here(listener)

    async def _never_comes(self, after: Position) -> bool:
        """Whether it is of another cluster, or of a time that a restored backup does not know."""
        if after.time <= self._progress.time:
            return False
        _, newest = await self._server_times()
        return after.time > newest

    async def _server_times(self) -> tuple[Time, Time]:
        """The time up to which a majority has everything, and one that no write of now is later than."""
        async with self._client.start_session() as session:
            # A majority read, whose operation time is the majority's: what is committed later has a later time.
            await self._rows.find_one({}, {"_id": 1}, session=session)
            committed, newest = session.operation_time, session.cluster_time
        if committed is None or newest is None:
            raise TypeError("a replica set that tells no operation time")
        return (committed.time, committed.inc), (newest["clusterTime"].time, newest["clusterTime"].inc)

    def _watch(self, *, owners: Sequence[str] | None = None, **options: Any) -> Coroutine[Any, Any, Stream]:
        wanted: Document = {
            "operationType": "insert",
            # A row that is no event must not stop the stream for everybody.
            "fullDocument.owner_id": {"$type": "string"},
            "fullDocument.asset_id": {"$type": "string"},
            "fullDocument.sequence": {"$type": "number"},
            "fullDocument.data_version": {"$type": "number"},
            "fullDocument.data": {"$type": "object"},
            "fullDocument.occurred_at": {"$type": "date"},
        }
        if owners is not None:
            wanted["fullDocument.owner_id"] = {"$type": "string", "$in": owners}
        fields = {f"fullDocument.{name}": 1 for name in _FIELDS}
        pipeline = [{"$match": wanted}, {"$project": {"clusterTime": 1, **fields}}]
        return self._rows.watch(pipeline, batch_size=1000, **options)


def _happened(change: Mapping[str, Any], progress: Progress) -> Happened:
    row, time = change["fullDocument"], change["clusterTime"]
    return Happened.of(row, progress.event((time.time, time.inc), row["owner_id"]))


def _after(listener: Listener) -> Position:
    if listener.after is None:
        raise TypeError("a listener that is behind has a position")
    return listener.after
