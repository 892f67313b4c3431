"""A manager on a memory log, a simulated disk and virtual time, driven by one-line commands."""

import asyncio
import random
import shlex
import struct
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog
from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.state_files import lost_head
from rlmm_daemon.core.explain.explanation import explain
from rlmm_daemon.core.explain.verdict import Explanation
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.daemon.operator.facts import StorageView, collect
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.daemon.operator.selector import find, only
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.event_log import EventLog, LogIdentity, LogRange
from tests.scenario.faulty_log import FaultyLog, Withheld
from tests.simulation.clock import SimClock
from tests.simulation.disk import DiskFaults, SimDisk
from tests.simulation.loop import SimLoop
from tests.simulation.platter import Platter
from tests.support.memory_log import AppendFault, MemoryLogStore

COUNT = 3
TOPIC_ID = TopicId(bytes(range(1, 17)))
TP = TopicIdPartition(TOPIC_ID, "orders", 0)
NUMBER = metadata_partition(TOPIC_ID, 0, COUNT)
STATES = {
    "finish": SegmentState.COPY_SEGMENT_FINISHED,
    "delete": SegmentState.DELETE_SEGMENT_STARTED,
    "deleted": SegmentState.DELETE_SEGMENT_FINISHED,
}
#: Enough for whatever passes by itself, well below every limit on silence.
SETTLE_SECONDS = 1.5


def segment_id(number: str) -> SegmentId:
    return SegmentId(int(number).to_bytes(16, "big"))


def number_of(record: bytes) -> str:
    segment = records.decode(record)
    assert isinstance(segment, SegmentMetadata)
    return str(int.from_bytes(segment.segment_id, "big"))


class _Bucket:
    """A bucket that does not answer."""

    has_storage = True

    async def log(self) -> None:
        raise StorageUnavailable("the bucket does not answer")

    async def accept_loss(
        self,
        _partition: int | None,
        _identity: LogIdentity,
        _gaps: Mapping[int, Sequence[LogRange]],
    ) -> None:
        raise StorageUnavailable("the bucket does not answer")


def _newer_lost() -> bytes:
    body = msgspec.msgpack.encode({"format": 9})
    return lost_head(crc32c(body)) + body


class Harness:
    """One world per scenario file."""

    def __init__(self, loop: SimLoop, group: asyncio.TaskGroup) -> None:
        self.group = group
        self.clock = SimClock(loop, random.Random(1))
        self.disk = SimDisk(Platter(), loop, random.Random(2), DiskFaults())
        self.store = MemoryLogStore(topic_id=TopicId(bytes(range(100, 116))), partition_count=COUNT)
        self.manager: Manager | None = None
        self.task: asyncio.Task[None] | None = None
        self.marker_trouble = False
        self.quarantined: frozenset[int] = frozenset()
        self.withheld = Withheld()
        self.kind = "memory"
        self.log: EventLog | None = None
        #: Files as they were before they were spoiled.
        self.spoiled: dict[str, bytes] = {}

    async def run(self, command: str) -> str:
        """Return what a command answers; an error of ours is an answer."""
        words = shlex.split(command)
        name, args = words[0], words[1:]
        plain = [word for word in args if "=" not in word]
        named = dict(word.split("=", 1) for word in args if "=" in word)
        handler: Callable[..., Awaitable[str]] = getattr(self, f"do_{name.replace('-', '_')}")
        try:
            return await handler(*plain, **named) or "ok"
        except RlmmError as error:
            return f"{error.wire_name()}: {error.message}"

    # The daemon.

    def _new_log(self) -> EventLog:
        if self.kind == "memory":
            return FaultyLog(self.store, self.withheld)
        return EmbeddedLog(
            disk=self.disk,
            clock=self.clock,
            spawn=lambda work, name: self.group.create_task(work, name=name),
            luck=random.Random(4),
            directory="/log",
            partition_count=COUNT,
            cluster_id="simulated",
        )

    async def do_use(self, kind: str) -> str:
        """Choose the event log, before the first start: memory or embedded."""
        self.kind = kind
        return ""

    async def do_start(self, settle: str = "yes") -> str:
        self.log = self._new_log()
        self.manager = Manager(
            log=self.log,
            disk=self.disk,
            clock=self.clock,
            rng=random.Random(3),
            options=ManagerOptions(state_dir="/state"),
            bucket=_Bucket() if self.marker_trouble else None,
            quarantined=self.quarantined,
        )
        self.task = self.group.create_task(self.manager.run(), name="manager")
        if settle == "yes":
            await asyncio.sleep(SETTLE_SECONDS)
        return ""

    async def do_stop(self, drain: str = "yes") -> str:
        assert self.task is not None
        if drain == "yes":
            await self.running.drain()
        self.task.cancel()
        await asyncio.wait({self.task})
        assert self.log is not None
        await self.log.close()
        self.manager = self.task = None
        return ""

    @property
    def running(self) -> Manager:
        assert self.manager is not None, "the scenario has not started a daemon"
        return self.manager

    async def do_wait(self, seconds: str) -> str:
        await asyncio.sleep(float(seconds))
        return ""

    # The broker.

    async def do_announce(self, role: str = "leader", settle: str = "yes") -> str:
        self.running.replace_assignment([TP] * (role == "leader"), [TP] * (role == "follower"))
        if settle == "yes":
            await asyncio.sleep(SETTLE_SECONDS)
            self.running.lookups.is_ready(TP)  # the first question is what asks for the log's end
            await asyncio.sleep(SETTLE_SECONDS)
        return ""

    async def do_hello(self, incarnation: str) -> str:
        self.running.hello_from_broker(int(incarnation))
        return ""

    async def do_unannounce(self) -> str:
        self.running.on_stop_partitions([TP])
        return ""

    # Events.

    def _started(
        self, number: str, span: str, epochs: str | None = None, broker: str = "1"
    ) -> SegmentMetadata:
        start, end = span.split("-")
        pairs = [pair.split(":") for pair in (epochs or f"0:{start}").split(",")]
        return SegmentMetadata(
            partition=TP,
            segment_id=segment_id(number),
            start_offset=Offset(int(start)),
            end_offset=Offset(int(end)),
            broker_id=BrokerId(int(broker)),
            max_timestamp_ms=7,
            event_timestamp_ms=self.clock.now_ms() // 1000 * 1000,
            segment_leader_epochs={LeaderEpoch(int(e)): Offset(int(o)) for e, o in pairs},
            segment_size_bytes=1024,
        )

    async def do_add(self, number: str, span: str, **named: str) -> str:
        await self.running.events.add(
            records.encode(self._started(number, span, **named)), Caller.BROKER
        )
        return ""

    def _updated(
        self, number: str, state: SegmentState, broker: str = "1", *, only: bool = False
    ) -> bytes:
        """An update; `only` marks it as meant for a copy that was not finished."""
        return records.encode(
            SegmentUpdate(
                partition=TP,
                segment_id=segment_id(number),
                broker_id=BrokerId(int(broker)),
                event_timestamp_ms=self.clock.now_ms() // 1000 * 1000,
                custom_metadata=ONLY_IF_STARTED if only else None,
                state=state,
            )
        )

    async def do_finish(self, number: str, broker: str = "1") -> str:
        await self.running.events.update(
            self._updated(number, STATES["finish"], broker), Caller.BROKER
        )
        return ""

    async def do_delete(self, number: str) -> str:
        await self.running.events.update(self._updated(number, STATES["delete"]), Caller.BROKER)
        return ""

    async def do_deleted(self, number: str) -> str:
        await self.running.events.update(self._updated(number, STATES["deleted"]), Caller.BROKER)
        return ""

    async def do_mark(self, state: str) -> str:
        mark = PartitionDelete(
            partition=TP,
            broker_id=BrokerId(1),
            event_timestamp_ms=self.clock.now_ms(),
            state=PartitionDeleteState[f"DELETE_PARTITION_{state}"],
        )
        await self.running.events.put_partition_delete(records.encode(mark), Caller.BROKER)
        return ""

    async def do_log(self) -> str:
        """How many records the log holds."""
        known = self.store.partition(NUMBER)
        return f"offsets {known.start} to {known.end}"

    # Questions.

    async def do_lookup(self, epoch: str, offset: str) -> str:
        found = self.running.lookups.remote_log_segment_metadata(
            TP, int(epoch), int(offset), Caller.BROKER
        )
        return "none" if found is None else f"segment {number_of(found)}"

    async def do_highest(self, epoch: str) -> str:
        return str(self.running.lookups.highest_offset_for_epoch(TP, int(epoch), Caller.BROKER))

    async def do_list(self, epoch: str | None = None) -> str:
        number = None if epoch is None else int(epoch)
        found = self.running.lookups.list_remote_log_segments(TP, number, Caller.BROKER)
        return " ".join(map(number_of, found)) or "none"

    async def do_is_ready(self) -> str:
        return str(self.running.lookups.is_ready(TP))

    async def do_explain(
        self, selector: str = "orders-0", *, wait: str = "yes", **named: str
    ) -> str:
        """What `rlmm explain` says; `wait=no` looks before anything had time to begin."""
        manager = self.running
        found = await find(manager, selector) if manager.fleet.follow_set else []
        partition = only(selector, found)
        if partition is not None and wait == "yes":
            await manager.lookups.until_readable(partition, Caller.OPERATOR, 1.0)
        facts = await collect(
            manager,
            selector,
            partition,
            epoch=int(named["epoch"]) if "epoch" in named else None,
            offset=int(named["offset"]) if "offset" in named else None,
            storage=StorageView(kind="local"),
        )
        # To the nearest second, so that no text hangs on a millisecond of the daemon's own pace.
        return shown(explain(replace(facts, now_ms=round(facts.now_ms, -3))))

    async def do_tail(self) -> str:
        async with aclosing(Operator(self.running).tail(NUMBER, None, follow=False)) as events:
            lines = [f"{event.offset} {event.outcome}" async for event in events]
        return "\n".join(lines)

    # Faults.

    async def do_inject(self, fault: str, *args: str) -> str:  # noqa: C901, PLR0912 - flat: one arm for each fault
        match fault:
            case "truncate":
                self.store.truncate(NUMBER, int(args[0]))
            case "trim":
                self.store.trim(NUMBER, int(args[0]))
            case "recreate":
                self.store.recreate(TopicId(bytes(range(50, 66))))
            case "pause":
                self.store.pause()
            case "resume":
                self.store.resume()
            case "absent":
                self.store.exists = False
            case "tombstone":
                self.store.put(NUMBER, None)
            case "garbage":
                self.store.put(NUMBER, b"\x01\x63\x00garbage")
            case "foreign-finish":
                self.store.put(NUMBER, self._updated(args[0], STATES["finish"]))
            case "stuck-delete":
                self.store.put(NUMBER, self._updated(args[0], STATES["delete"], only=True))
            case "foreign-add":
                self.store.put(NUMBER, records.encode(self._started(args[0], args[1])))
            case "append":
                self.store.fail_next_append(NUMBER, AppendFault[args[0]])
            case "marker":
                self.marker_trouble = True
            case "crashes":
                self.quarantined = frozenset({int(NUMBER)})
            case "withhold":
                self._withhold(*args)
            case "partitions":
                identity = self.store.identity
                self.store = MemoryLogStore(
                    topic_id=identity.topic_id, partition_count=int(args[0])
                )
            case "flip":
                await self._flip(int(args[0]))
            case "spoil":
                await self._spoil(*args)
            case "put-back":
                for path, content in self.spoiled.items():
                    await self.disk.write_atomically(path, content)
                self.spoiled.clear()
            case _:
                raise AssertionError(fault)
        await asyncio.sleep(0.3)
        return ""

    def _withhold(self, what: str, argument: str = "") -> None:
        match what:
            case "ends":
                self.withheld.ends = True
            case "epochs":
                self.withheld.epochs = True
            case "records":
                self.withheld.records_from = int(argument)
            case "reads":
                self.withheld.reads = argument
            case "name":
                self.withheld.name = True
            case _:
                assert what == "nothing", what
                for each in ("ends", "epochs", "name"):
                    setattr(self.withheld, each, False)
                self.withheld.records_from = self.withheld.reads = None

    async def _flip(self, position: int) -> None:
        """Flip one bit in the newest file of the embedded log."""
        home = f"/log/{NUMBER}"
        name = max(each for each in await self.disk.list(home) if each.endswith(".log"))
        file = await self.disk.open(f"{home}/{name}", write=True)
        (byte,) = await file.pread(position, 1)
        await file.pwrite(position, bytes([byte ^ 1]))
        await file.fdatasync()
        await file.close()

    async def _spoil(self, what: str) -> None:
        """Let a file be damaged, or as a newer version would have written it."""
        found = [n for n in await self.disk.list("/state/snapshots") if n.endswith(".snapshot")]
        snapshot = f"/state/snapshots/{max(found, default='')}"
        head = struct.Struct("<8sI")
        changes: dict[str, dict[str, Callable[[bytes], bytes]]] = {
            "newer-log": {"/log/identity.json": lambda _: b'{"format": 3}'},
            "names": {
                "/log/identity.json": lambda _: b"damaged",
                "/log/state.json": lambda _: b"damaged",
            },
            "newer-snapshot": {
                snapshot: lambda found: head.pack(head.unpack_from(found)[0], 9) + found[12:]
            },
            "newer-lost": {f"/state/{NUMBER}.lost": lambda _: _newer_lost()},
        }
        for path, change in changes[what].items():
            self.spoiled[path] = await self.disk.read(path)
            await self.disk.write_atomically(path, change(self.spoiled[path]))

    # Orders.

    async def do_order(self, order: str) -> str:
        operator = Operator(self.running, repair=self._repair)
        orders: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
            "retry": lambda: operator.partition_retry(NUMBER),
            "rebuild": lambda: operator.partition_rebuild(NUMBER),
            "repair": lambda: operator.log_repair(NUMBER),
            "accept-loss": lambda: operator.partition_accept_loss(NUMBER, everything=False),
            "drain": self._drain,
            "accept-all": lambda: operator.partition_accept_loss(None, everything=True),
        }
        answer = await orders[order]()
        if order not in ("retry", "repair"):  # those answer when the partition was judged anew
            await asyncio.sleep(2 * SETTLE_SECONDS)
        return str(answer)

    async def _drain(self) -> dict[str, Any]:
        await Operator(self.running).drain()
        return {"draining": True}

    async def _repair(
        self, partition: MetadataPartition, events: Collection[bytes]
    ) -> dict[str, Any]:
        assert isinstance(self.log, EmbeddedLog)
        repaired: dict[str, Any] = msgspec.to_builtins(await repair(self.log, partition, events))
        return repaired


def shown(explanation: Explanation) -> str:
    lines = [f"{explanation.verdict}: {explanation.cause}", f"  {explanation.sentence}"]
    lines += [f"  - {line}" for line in explanation.evidence]
    lines.append(f"  next: {explanation.next_command}")
    for notice in explanation.also:
        lines.append(f"  also {notice.cause}{' (trouble)' if notice.trouble else ''}")
        lines.append(f"    {notice.sentence}")
        if notice.next_command:
            lines.append(f"    next: {notice.next_command}")
    return "\n".join(lines)


def in_world(work: Callable[[Harness], Awaitable[str]]) -> str:
    """Return what `work` returns in a fresh world with virtual time."""
    loop = SimLoop(rng=random.Random(0), steps_max=2_000_000)

    async def main() -> str:
        async with asyncio.TaskGroup() as group:
            harness = Harness(loop, group)
            answer = await work(harness)
            if harness.task is not None:
                harness.task.cancel()
        return answer

    try:
        return loop.run_until_complete(main())
    finally:
        if not loop.is_closed():
            loop.abandon()
