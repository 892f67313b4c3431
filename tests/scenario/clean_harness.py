"""Daemons with cleaners on one log and one bucket, driven by one-line commands.

Every text that `explain` answers here is brought about: by a mark, a death, an answer that does not
come. `log` shows what was appended since it was asked last, by whom.
"""

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.marker import AcceptedLoss
from rlmm_daemon.core.disposal.observation import ObservationOptions
from rlmm_daemon.core.explain.explanation import explain
from rlmm_daemon.core.explain.facts import RemovalFacts
from rlmm_daemon.core.explain.verdict import Explanation
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.cleaner.observer import ObserverOptions
from rlmm_daemon.daemon.cleaner.proof import AnnouncedProof
from rlmm_daemon.daemon.cleaner.purge import Purge
from rlmm_daemon.daemon.operator.facts import StorageView, collect
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, Offset, uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentSnapshot,
    SegmentState,
)
from rlmm_daemon.ports.storage import UploadInfo
from tests.scenario.harness import shown
from tests.simulation.cleaning import (
    COUNT,
    CUSTOM,
    OPTIONS,
    CleanWorld,
    SimDaemon,
    number_of,
    partition_of,
    run,
    segment,
    topic,
)
from tests.support.memory_log import AppendFault

AT: Final = partition_of(2)
FIRST_OTHER: Final = 10
LOGS: Final = "/logs"
NUMBER: Final = number_of(AT)
#: Custom metadata: `foreign` is as another storage manager writes it.
KINDS: Final = {
    "recorded": CUSTOM,
    "none": None,
    "only_if_started": ONLY_IF_STARTED,
    "foreign": CustomMetadata(b"somewhere"),
}
#: FairScheduler of a second in which something is waited for.
PATIENCE: Final = 8_000
S = SegmentState


class CleanHarness:
    """One world per scenario file; the daemon beside broker 1 is the one that is asked."""

    def __init__(self, world: CleanWorld) -> None:
        self.world = world
        self._shown = 0
        self._refuses = False

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

    @property
    def daemon(self) -> SimDaemon:
        return self.world.daemons[1]

    # Daemons and brokers.

    async def do_embedded(self) -> str:
        """From now on daemons judge as beside an embedded log: nobody is asked about topics."""
        await self._log_directory()
        disk = self.world.disk
        self.world.proof_of = lambda manager: AnnouncedProof(manager.assignment, disk, [LOGS])
        return ""

    async def do_start(self, broker: str = "1", jvm_peers: str = "yes") -> str:
        options = replace(OPTIONS, jvm_peers=jvm_peers == "yes")
        self.world.daemon(int(broker), options, f"/kept/{broker}")
        await asyncio.sleep(3)
        return ""

    async def do_stop(self, broker: str = "1") -> str:
        await self.world.daemons[int(broker)].stop()
        return ""

    async def do_snapshot(self) -> str:
        """Write down what the daemon has folded; from then on the partition sleeps in it."""
        manager = self.daemon.manager
        await asyncio.sleep(1)
        written = await manager.snapshotter.write(manager.fleet.followers[NUMBER])
        assert written is not None, "its state does not allow one"
        return ""

    async def do_damage(self, number: str) -> str:
        """Flip a bit of a segment in whatever snapshots are on the disk."""
        kept = self.world.disk.platter.names
        for name in [name for name in kept if name.endswith(".snapshot")]:
            inode = kept[name]
            at = bytes(inode.data).index(segment(int(number)))
            inode.data[at] ^= 1
            inode.base[at] ^= 1
        return ""

    async def do_hello(self, broker: str = "1", storage: str = "ours") -> str:
        """The broker was started now, and its metadata manager is ours; so may its storage be."""
        await asyncio.sleep(1)
        manager = self.world.daemons[int(broker)].manager
        manager.assignment.is_connected = lambda _: True
        manager.assignment.is_stored_for = lambda _: storage == "ours"
        manager.hello_from_broker(self.world.clock.now_ms())
        manager.replace_assignment([AT], [])
        await asyncio.sleep(1)
        return ""

    async def do_goodbye(self) -> str:
        """The broker's metadata manager is not connected any more."""
        self.daemon.manager.assignment.is_connected = lambda _: False
        return ""

    async def do_announce(self, what: str = "all") -> str:
        self.daemon.manager.replace_assignment([AT] if what == "all" else [], [])
        return ""

    async def do_restart_broker(self) -> str:
        """It says hello, and tells of its partitions once Kafka has told it of them."""
        self.daemon.manager.hello_from_broker(self.world.clock.now_ms())
        return await self.do_announce("nothing")

    async def do_own(self, broker: str) -> str:
        """Who owns every metadata partition."""
        self.world.facts.owners.update(dict.fromkeys(range(COUNT), int(broker)))
        return ""

    async def do_register(self, broker: str, manager: str = "rlmm", **named: str) -> str:
        self.world.facts.registered.add(BrokerId(int(broker)))
        deadline = float(named.get("copy_deadline", "60"))
        self.world.present(int(broker), metadata_manager=manager, copy_deadline_seconds=deadline)
        return ""

    async def do_unregister(self, broker: str, lease: str = "0") -> str:
        """Taken out of the cluster; its daemon's lease ends so many seconds from now."""
        self.world.facts.registered.discard(BrokerId(int(broker)))
        self.world.present(int(broker), lease_seconds=float(lease))
        return ""

    async def do_topic(self, how: str) -> str:
        """What the brokers answer about the topic's id: gone, there, or nothing."""
        self.world.facts.silent = how == "silent"
        change = self.world.facts.gone.add if how == "gone" else self.world.facts.gone.discard
        change(AT.topic_id)
        return ""

    async def do_observe(self, grace: str, interval: str = "60") -> str:
        """Let the daemon watch for topics that are gone."""
        await self._log_directory()
        options = ObserverOptions(
            interval_seconds=float(interval),
            bounds=ObservationOptions(grace_ms=1000 * int(grace)),
        )
        self.daemon.observe(options, [LOGS])
        await asyncio.sleep(2 * float(interval))
        return ""

    async def _log_directory(self) -> None:
        """The broker's, as it is before its first partition."""
        await self.world.disk.make_directory(LOGS)
        await self.world.disk.write_atomically(f"{LOGS}/meta.properties", b"version=1\n")

    async def do_disk(self, how: str) -> str:
        """Whether the disk with the broker's log directory is mounted: its mount point is there."""
        if how == "absent":
            await self.world.disk.remove(f"{LOGS}/meta.properties")
        else:
            await self._log_directory()
        return ""

    async def do_others(self, count: str) -> str:
        """So many other topics, with a segment each."""
        for number in range(FIRST_OTHER, FIRST_OTHER + int(count)):
            self.world.finished(number, partition_of(number))
        return ""

    async def do_others_gone(self, count: str) -> str:
        """So many of them are deleted, the first ones first."""
        for number in range(FIRST_OTHER, FIRST_OTHER + int(count)):
            self.world.facts.gone.add(topic(number))
        return ""

    async def do_controller(self, broker: str, epoch: str) -> str:
        self.world.facts.controller = int(broker), int(epoch)
        return ""

    async def do_cluster(self, name: str) -> str:
        self.world.facts.cluster_id = name
        return ""

    async def do_live(self, count: str) -> str:
        """So many brokers are not fenced."""
        self.world.facts.live = int(count)
        return ""

    async def do_directory(self, how: str) -> str:
        """Whether the broker's disk has a directory of the partition."""
        file = f"{LOGS}/{AT.topic}-{AT.partition}/partition.metadata"
        if how == "absent":
            await self.world.disk.remove(file)
            return ""
        await self.world.disk.make_directory(file.rpartition("/")[0])
        text = f"version: 0\ntopic_id: {uuid_text(AT.topic_id)}\n"
        await self.world.disk.write_atomically(file, text.encode())
        return ""

    async def do_observed(self) -> str:
        """What `rlmm cleanup` shows of the clocks."""
        observer = self.daemon.report.observer
        assert observer is not None, "nothing is observed"
        rows = observer.rows()
        words = [f"watches {rows['watches']}, seen alive {rows['seen_alive']}"]
        words += [f"marked {rows['marked']}"] if rows["marked"] else []
        words += [f"trouble: {rows['trouble']}"] if rows["trouble"] else []
        return "\n".join([", ".join(words), *(row["clock"] for row in rows["topics"])])

    # Segments.

    def _span(self, span: str) -> tuple[int, int]:
        start, _, end = span.partition("-")
        return int(start), int(end)

    async def do_begin(self, number: str, span: str, broker: str = "1", ahead: str = "0") -> str:
        """A copy that a broker began, its clock so many seconds ahead, and that put its objects."""
        start, end = self._span(span)
        begun = self.world.started(int(number), AT, start, broker_id=int(broker))
        event_ms = begun.event_timestamp_ms + 1000 * int(ahead)
        self.world.put(replace(begun, end_offset=Offset(end), event_timestamp_ms=event_ms))
        self.world.place(int(number), AT, start)
        return ""

    async def do_finish(self, number: str, broker: str = "1", custom: str = "recorded") -> str:
        state, custom_metadata = S.COPY_SEGMENT_FINISHED, KINDS[custom]
        self.world.put(
            self.world.updated(int(number), AT, state, custom_metadata, broker_id=int(broker))
        )
        return ""

    async def do_whole(self, number: str, span: str) -> str:
        await self.do_begin(number, span)
        return await self.do_finish(number)

    async def do_delete(self, number: str, custom: str = "recorded") -> str:
        """DELETE_SEGMENT_STARTED; `only_if_started` as the cleaner writes it for a stuck copy."""
        self.world.put(self.world.updated(int(number), AT, S.DELETE_SEGMENT_STARTED, KINDS[custom]))
        return ""

    async def do_upload(self, number: str, span: str) -> str:
        """Leave an incomplete upload behind."""
        start, _ = self._span(span)
        upload = UploadInfo(
            key=self.world.keys(int(number), AT, start)[2], upload_id=number, initiated_ms=0
        )
        self.world.objects.uploads[f"{number}/{upload.key}"] = upload
        return ""

    async def do_orphan(self, number: str, span: str) -> str:
        """Put objects that no event names."""
        start, _ = self._span(span)
        self.world.place(int(number), AT, start)
        return ""

    async def do_mark(self, state: str = "MARKED") -> str:
        self.world.mark(AT, PartitionDeleteState[f"DELETE_PARTITION_{state}"])
        return ""

    async def do_put(self, state: str) -> str:
        """A client of the socket says how far the partition's removal is."""
        mark = PartitionDelete(
            partition=AT,
            broker_id=BrokerId(1),
            event_timestamp_ms=self.world.clock.now_ms(),
            state=PartitionDeleteState[f"DELETE_PARTITION_{state}"],
        )
        await self.daemon.manager.events.put_partition_delete(records.encode(mark), Caller.BROKER)
        return ""

    async def do_repair(self) -> str:
        """Put held segments back, as `rlmm log repair` does."""
        world = self.world
        for record in world.fold(NUMBER).held_records():
            held = records.decode(record)
            assert isinstance(held, SegmentMetadata)
            number = int.from_bytes(held.segment_id, "big")
            world.put(
                world.updated(number, AT, S.DELETE_SEGMENT_FINISHED),
                replace(held, state=S.COPY_SEGMENT_STARTED, custom_metadata=None),
                world.updated(number, AT, S.COPY_SEGMENT_FINISHED, held.custom_metadata),
            )
        return ""

    # Losses.

    async def do_accept(self) -> str:
        """Accept a loss of the metadata partition, as `rlmm partition accept-loss` keeps it."""
        loss = AcceptedLoss(
            metadata_partition=NUMBER,
            topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
            accepted_at_ms=self.world.clock.now_ms(),
            broker_id=1,
        )
        await acceptance.accept_loss(self.daemon.bucket, loss, cluster_id=None)
        return ""

    async def do_end_hold(self) -> str:
        await acceptance.end_holds(self.daemon.bucket, NUMBER, cluster_id=None)
        return ""

    # Faults and time.

    async def do_bucket(self, how: str) -> str:
        self.world.objects.available = how != "away"
        return ""

    async def do_appends(self, how: str) -> str:
        """`refused`: every write is, from now on."""
        self._refuses = how == "refused"
        if self._refuses:
            self.world.group.create_task(self._refuse(), name="refuse")
        return ""

    async def _refuse(self) -> None:
        store = self.world.store
        while self._refuses:
            if not store.partition(NUMBER).faults:
                store.fail_next_append(NUMBER, AppendFault.REFUSED)
            await asyncio.sleep(0.001)
        store.partition(NUMBER).faults.clear()

    async def do_truncate(self, end: str) -> str:
        """An unclean election: the log's end is gone."""
        self.world.store.truncate(MetadataPartition(NUMBER), int(end))
        self._shown = min(self._shown, int(end))
        return ""

    async def do_slip(self, number: str) -> str:
        """Let the broker's finish land right before the cleaner's next append."""
        manager = self.daemon.manager
        update_if = manager.events.update_if

        async def slipped(record: bytes, holds: Any, *args: Any, **named: Any) -> Any:
            def judged(cache: Any) -> bool:
                fine = bool(holds(cache))
                self.world.put(self.world.updated(int(number), AT, S.COPY_SEGMENT_FINISHED, CUSTOM))
                manager.events.update_if = update_if  # type: ignore[method-assign] # the real one
                return fine

            return await update_if(record, judged, *args, **named)

        manager.events.update_if = slipped  # type: ignore[method-assign] # with a record before it
        return ""

    async def do_wait(self, seconds: str) -> str:
        await asyncio.sleep(float(seconds))
        return ""

    # Orders and answers.

    async def do_purge(self, execute: str = "no", existing: str = "no") -> str:
        answer = await Purge(self.daemon.cleaner).purge(
            AT.topic_id, execute=execute == "yes", existing=existing == "yes"
        )
        rows = [f"{row['segments']} segments: {row['action']}" for row in answer["partitions"]]
        return "\n".join([f"topic {answer['topic']}, executed {answer['executed']}", *rows])

    async def do_explain(self, until: str | None = None, storage: str = "local") -> str:
        """What `rlmm explain` says; `until=CAUSE` waits until it says that."""
        said = await self._explained(storage)
        for _ in range(PATIENCE):
            if until is None or until in {said.cause, *(each.cause for each in said.also)}:
                return _without_times(shown(said))
            await asyncio.sleep(1)
            said = await self._explained(storage)
        return f"never said: {until}\n{_without_times(shown(said))}"

    async def _explained(self, storage: str) -> Explanation:
        daemon = self.daemon
        await daemon.manager.lookups.until_readable(AT, Caller.OPERATOR, 5.0)
        told = daemon.report.told if storage != "none" else lambda _: RemovalFacts()
        facts = await collect(
            daemon.manager, str(AT), AT, storage=StorageView(kind=storage), removal=told
        )
        return explain(facts)

    async def do_log(self, until: str | None = None) -> str:
        """What was appended since this was asked last; `until=WORDS` waits for such a line."""
        lines: list[str] = []
        for _ in range(PATIENCE):
            values = self.world.store.partition(MetadataPartition(NUMBER)).values
            lines += [line for value in values[self._shown :] if (line := _line(value))]
            self._shown = len(values)
            if until is None or any(until in line for line in lines):
                return "\n".join(lines) or "nothing"
            await asyncio.sleep(1)
        return "\n".join([f"never: {until}", *lines])

    async def do_objects(self) -> str:
        numbers = sorted({_number_in(key) for key in self.world.stored(AT)})
        uploads = len(self.world.objects.uploads)
        words = f"of segments {', '.join(map(str, numbers))}" if numbers else "none"
        return words + (f"; {uploads} uploads" if uploads else "")

    async def do_cleanup(self) -> str:
        """What `rlmm cleanup` shows of removals and of what hangs."""
        rows = self.daemon.report.rows()
        removals = [
            f"removal: {row['step']}{', held up' if row['held'] else ''}; "
            f"{row['segments_left']} left, {row['segments_deleted']} deleted"
            for row in rows["removals"]
        ]
        stuck = [f"{row['kind']}: {row['step']}, {row['segments']}" for row in rows["stuck"]]
        errors = [f"error: {row['error']}" for row in rows["errors"]]
        return "\n".join([*removals, *stuck, *errors]) or "nothing"


def _number_in(key: str) -> int:
    for number in range(1000):
        if uuid_text(segment(number)) in key:
            return number
    raise AssertionError(key)


def _line(value: bytes | None) -> str | None:
    """An event in words; None: of another topic."""
    event = None if value is None else records.decode(value)
    if event is None or isinstance(event, SegmentSnapshot) or event.partition != AT:
        return None
    if isinstance(event, PartitionDelete):
        return f"{event.state.name} by {event.broker_id}"
    number = int.from_bytes(event.segment_id, "big")
    only = " only_if_started" if event.custom_metadata == ONLY_IF_STARTED else ""
    return f"{event.state.name} {number} by {event.broker_id}{only}"


def _without_times(text: str) -> str:
    """Leave out what hangs on a millisecond of the daemons' own pace."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ \([^)]*\)", "WHEN", text)
    text = re.sub(r"due \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "due WHEN", text)
    text = re.sub(r"up to offset \d+; its log spans \d+ to \d+", "to its end", text)
    return re.sub(r"segment A{20}([A-Za-z0-9_-]{2})", r"segment ..\1", text)


def in_clean_world(work: Callable[[CleanHarness], Awaitable[str]]) -> str:
    """Return what `work` returns in a fresh world with virtual time."""
    answers: list[str] = []

    async def scenario(world: CleanWorld) -> None:
        harness = CleanHarness(world)
        answers.append(await work(harness))
        await harness.do_appends("accepted")

    run(scenario, steps_max=60_000_000)
    return answers[0]
