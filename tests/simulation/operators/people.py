"""Operators: those who type what the failure names, and those who type whatever comes to mind.

Each order is a command line as a person types it; `ORDERS` says what of the daemon it calls. What
an order gives up or lets go is told to the truth before it is sent, since a death may hide whether
it took effect.
"""

import asyncio
import hashlib
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from rlmm_daemon.codec import records
from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.domain.errors import InvalidArgument, RefusedError, RlmmError
from rlmm_daemon.domain.ids import SegmentId, TopicId, uuid_bytes, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata
from tests.simulation.operators import manifest_orders, offline
from tests.simulation.operators.daemon import Daemon
from tests.simulation.operators.night import job
from tests.simulation.operators.rot import Rot
from tests.simulation.operators.truth import Books, Segment

#: Virtual seconds between two commands of one person.
TYPING_SECONDS: Final = 1.0
#: How often somebody with nothing else to do ends a hold.
TIDY_SHARE: Final = 0.15
#: How often somebody who sees a night at work restores a manifest, or holds it back.
SPARING_SHARE: Final = 0.3
#: Who keeps a manifest restores it so often, for good; else it is held back.
FOR_GOOD_SHARE: Final = 0.3
#: How often somebody who sees none lets one go, and how often that is one that is held back.
LETTING_SHARE: Final = 0.3
RELEASING_SHARE: Final = 0.5
#: Who restores waits for the next renewal of the lease, for so many looks.
RENEWAL_LOOKS: Final = 100
RENEWAL_LOOK_SECONDS: Final = 0.02
#: How often a log is named again from the state directory, and not from a copy.
NAMING_SHARE: Final = 0.5
#: How often somebody hasty gives a log up whose disk, or whose copy, is at hand.
GIVE_UP_SHARE: Final = 0.5
#: Commands that a person who follows the advice types before one gives up, on a calm machine.
PATIENCE: Final = 40
#: Commands one after another, each named by the error of the one before.
ADVICE_DEPTH_MAX: Final = 4
#: A command in the words of an error.
_NAMED: Final = re.compile(r"run: (rlmm [a-zA-Z0-9 -]+)")

Words = list[str]
Order = Callable[["Person", Words], Awaitable[Any]]


class Person:
    """Whoever sits before one life of the daemon."""

    def __init__(self, daemon: Daemon, rot: Rot, *, name: str, hasty: bool = False) -> None:
        """`hasty`: accepts whatever loss there is before anybody looked for objects."""
        self.daemon, self.rot, self.hasty = daemon, rot, hasty
        self.rng = daemon.life.rng(name)
        self.typed = 0
        #: Command -> how often it was typed, and how often it was answered without an error.
        self.counts: dict[str, int] = {}

    @property
    def books(self) -> Books:
        return self.daemon.world.books

    async def type(self, text: str) -> Any:
        """Type one command; return its answer, or the error that it was answered with."""
        words = text.split()[1:]
        name = _named_order(words)
        self.daemon.life.loop.note(f"typed: {text}")
        self.typed += 1
        self.counts[f"typed {name}"] = self.counts.get(f"typed {name}", 0) + 1
        try:
            async with asyncio.timeout(60.0):
                answer = await ORDERS[name](self, words[len(name.split()) :])
        except (RlmmError, TimeoutError) as error:
            answer = error
        if self.daemon.life.alive:
            self.daemon.life.loop.note(f"answered: {answer!r}"[:400])
            done = not isinstance(answer, Exception)
            self.counts[f"done {name}"] = self.counts.get(f"done {name}", 0) + done
        return answer

    # Following the advice.

    async def heal(self) -> None:
        """Type what is named next until nothing is wrong, one after another."""
        for turn in range(PATIENCE):
            named = await self.named()
            if not named:
                return
            await self.obey(named[turn % len(named)])
            await asyncio.sleep(TYPING_SECONDS)

    async def step(self) -> None:
        """Type one command that is named, if any is."""
        named = await self.named()
        if named:
            await self.obey(self.rng.choice(named))
        elif self.rng.random() < TIDY_SHARE:
            await self.tidy()

    async def tidy(self, *, harmless: bool = False) -> None:
        """End a hold, whether there is one or not; `harmless`: where nothing was given up."""
        numbers = range(self.books.partition_count)
        given_up = {each.metadata_partition for each in self.books.segments if each.lost}
        chosen = [str(n) for n in numbers if n not in given_up] if harmless else []
        hold = self.rng.choice(chosen or ["--all", *map(str, numbers)])
        await self.type(f"rlmm partition end-hold {hold} --execute")

    async def spare(self) -> None:
        """Keep a manifest from a night that is at work, or let one go."""
        manifests = self._manifests()
        if not manifests:
            return
        manifest = self.rng.choice(manifests)
        if not await self._is_night():
            if self.rng.random() < LETTING_SHARE:
                held = self.books.manifests.held.keys() & manifests
                if held and self.rng.random() < RELEASING_SHARE:
                    manifest, verb = self.rng.choice(sorted(held)), "release"
                else:
                    verb = self.rng.choice(["release", "approve", "approve", "approve"])
                await self.type(f"rlmm reconcile {verb} {manifest} --execute")
        elif self.rng.random() < SPARING_SHARE:
            await self._renewal()
            if self.rng.random() < FOR_GOOD_SHARE:
                await self.type(f"rlmm reconcile restore {manifest}")
            else:
                await self.type(f"rlmm reconcile hold {manifest} --execute")

    async def _renewal(self) -> None:
        """Wait until the night renews its lease: it has looked at all, and is about to delete."""
        before = self._lease_tag()
        for _ in range(RENEWAL_LOOKS):
            if self._lease_tag() != before:
                return
            await asyncio.sleep(RENEWAL_LOOK_SECONDS)

    def _lease_tag(self) -> str | None:
        stored = self.daemon.world.bucket.objects.get(job.lease.LEASE_KEY)
        return None if stored is None else stored.etag

    async def _is_night(self) -> bool:
        try:
            async with job.control.opened(offline.config()) as storage:
                found = await job.lease.look(storage)
                clock = await job.storage_time.read(storage)
        except RlmmError:
            return False
        return found is not None and found.ends_ms > clock.now_ms()

    async def named(self) -> list[str]:
        """Return the commands that the daemon's own answers name."""
        standing = self.daemon.standing
        status = await standing.status()
        found = list(filter(None, [named_in(status["log"]["trouble"] or "")]))
        if (failure := status["log"]["failure"]) is not None:
            found.append(failure["command"])
        failures = [row["failure"] for row in await standing.partitions()]
        found += [failure["command"] for failure in failures if failure is not None]
        if self.daemon.bucket.trouble is not None:
            found.append("rlmm storage rebuild-marker --execute")
        return list(dict.fromkeys(found))

    async def obey(self, command: str) -> None:
        """Type a command, and what its errors name."""
        if command in ("rlmm doctor", "rlmm log name"):
            await self._find_log(command)
            return
        looks = command.startswith(("rlmm log recover", "rlmm log repair"))
        if self.hasty and looks:
            number = command.rpartition(" ")[2]
            accept = f"rlmm partition accept-loss {number}"
            for words in (accept, f"{accept} --without-looking"):
                if not isinstance(await self.type(words), RlmmError):
                    return
        typed = set[str]()
        while command and command not in typed and len(typed) < ADVICE_DEPTH_MAX:
            typed.add(command)
            answer = await self.type(command)
            rebuilds = command.startswith("rlmm storage rebuild-marker")
            if rebuilds and isinstance(answer, InvalidArgument):
                await self._restore_marker()  # "restore it, or": it looks like another cluster's
            can_be = ("can_be_put_back", "can_be_ended")
            if isinstance(answer, Mapping) and any(map(answer.get, can_be)):
                await self.type(f"{command} --execute")
            command = self.following(answer)

    def following(self, answer: Any) -> str:
        """Return the command that is typed after an answer: what an error names, "" for none."""
        return named_in(answer.message) if isinstance(answer, RlmmError) else ""

    async def _find_log(self, command: str) -> None:
        """Put back what names the log, or its disk, or give it up."""
        if self.hasty and self.rng.random() < GIVE_UP_SHARE:
            answer = await self.type("rlmm partition accept-loss --all --without-looking")
            if not isinstance(answer, Exception):
                self.rot.kept.clear()
                return
        if command == "rlmm log name" and self.rng.random() < NAMING_SHARE:
            await self.type(f"{command} --execute")
        else:
            self._put_back()
        await asyncio.sleep(8.0)  # it is looked for every few seconds
        if self.daemon.manager.fleet.whole_failure is not None and not self.rot.kept:
            await self.type("rlmm partition accept-loss --all")

    async def _restore_marker(self) -> None:
        if self.rot.marker is not None:
            await self.daemon.storage.overwrite_control(MARKER_KEY, self.rot.marker)
            self.daemon.life.loop.note("put back: the marker")

    def _put_back(self) -> None:
        for path in self.rot.mend(self.daemon.life):
            self.daemon.life.loop.note(f"put back: {path}")

    # Whatever comes to mind.

    async def anything(self) -> None:
        """Type some command."""
        await self.type(self.thought())

    def thought(self) -> str:
        """Return some command, with some arguments."""
        rng, books = self.rng, self.books
        manifest = rng.choice([*self._manifests(), "none"])
        number = rng.randrange(books.partition_count)
        topic = rng.choice(books.partitions)
        execute = rng.choice(["", " --execute", " --execute"])
        return rng.choice(
            [
                f"rlmm partition retry {number}",
                f"rlmm partition rebuild {number}",
                f"rlmm partition accept-loss {number}",
                f"rlmm partition accept-loss {number} --without-looking",
                "rlmm partition accept-loss --all",
                "rlmm partition accept-loss --all --without-looking",
                f"rlmm partition end-hold {number}{execute}",
                f"rlmm partition end-hold --all{execute}",
                f"rlmm log repair {number}",
                "rlmm log repair",
                f"rlmm log recover {number}{execute}",
                f"rlmm log recover {number}{execute}",
                "rlmm snapshot now",
                f"rlmm purge {uuid_text(topic.topic_id)}{execute}",
                f"rlmm purge {uuid_text(topic.topic_id)} --existing{execute}"
                if rng.random() < 0.2
                else f"rlmm partition retry {number}",
                f"rlmm reconcile accept-record {number} {rng.randrange(40)}",
                f"rlmm log name{execute}",
                f"rlmm storage rebuild-marker{execute}",
                "rlmm drain" if rng.random() < 0.1 else "rlmm snapshot now",
                f"rlmm reconcile restore {manifest}",
                f"rlmm reconcile hold {manifest}{execute}",
                f"rlmm reconcile release {manifest}{execute}",
                f"rlmm reconcile approve {manifest}{execute}",
                "rlmm reconcile break-lease" if rng.random() < 0.3 else "rlmm log repair",
                f"rlmm delete {rng.randrange(len(books.segments) + 1)}",
                f"rlmm copy {rng.randrange(len(books.segments) + 1)}",
            ]
        )

    def _manifests(self) -> list[str]:
        """Return the manifests of the nightly job that lie in the bucket."""
        home = job.quarantine.MANIFESTS
        keys = self.daemon.world.bucket.objects
        return [key.removeprefix(home) for key in keys if key.startswith(home)]


def named_in(words: str) -> str:
    """Return the command that an error's words name, as somebody types it who means it."""
    found = _NAMED.search(words)
    if found is None:
        return ""
    command = found[1].replace("--config FILE", "").strip()
    return f"{command} --execute" if command == "rlmm storage rebuild-marker" else command


def _named_order(words: Words) -> str:
    for name in ORDERS:
        if words[: len(name.split())] == name.split():
            return name
    raise AssertionError(f"{words} is named, and nobody types it")


def _number(words: Words) -> int | None:
    digits = [word for word in words if word.isdigit()]
    return int(digits[0]) if digits else None


async def _retry(person: Person, words: Words) -> Any:
    return await person.daemon.operator.partition_retry(_number(words))


async def _rebuild(person: Person, words: Words) -> Any:
    return await person.daemon.operator.partition_rebuild(_number(words))


async def _accept_loss(person: Person, words: Words) -> Any:
    number, blind = _number(words), "--without-looking" in words
    books = person.books
    whole = [each for each in _missing(person, number) if books.can_be_put_back(each)]
    doubted = books.accepting(number)
    risen = _risen(person, number)
    try:
        answer = await person.daemon.operator.partition_accept_loss(
            number, everything="--all" in words, without_looking=blind
        )
    except RefusedError:
        books.refused(doubted)
        raise
    for segment in whole if not blind else ():
        books.fail(f"{segment.name} is whole and was known, and its loss is accepted")
    for segment in risen if not blind else ():
        if segment.deleted and books.is_gone(segment):
            books.fail(f"{segment.name} was known to be deleted, and is left as it came back")
    return answer


def _missing(person: Person, number: int | None) -> list[Segment]:
    """Return what an acceptance would give up of what the daemon knows to be missing.

    Where the head of the log is given up alone, the list stays.
    """
    found = []
    for each, follower in person.daemon.manager.fleet.followers.items():
        if number in (None, each) and not follower.head_alone:
            events = map(records.decode, follower.history.missing)
            found += [e.segment_id for e in events if isinstance(e, SegmentMetadata)]
    return [person.books.by_id[segment_id] for segment_id in found]


def _risen(person: Person, number: int | None) -> list[Segment]:
    """Return what the daemon knows to be finished again that was deleted."""
    return [
        person.books.by_id[segment_id]
        for each, follower in person.daemon.manager.fleet.followers.items()
        for _, segment_id in follower.history.risen
        if number in (None, each) and not follower.head_alone
    ]


async def _end_hold(person: Person, words: Words) -> Any:
    number, execute = _number(words), "--execute" in words
    if execute:
        person.books.ending_hold(number)
    return await person.daemon.operator.partition_end_hold(number, execute=execute)


async def _repair(person: Person, words: Words) -> Any:
    return await person.daemon.operator.log_repair(_number(words))


async def _recover(person: Person, words: Words) -> Any:
    number = _number(words)
    assert number is not None, "it has no default"
    return await person.daemon.operator.log_recover(number, execute="--execute" in words)


async def _snapshot(person: Person, words: Words) -> Any:
    return await person.daemon.operator.snapshot_now(_number(words))


async def _purge(person: Person, words: Words) -> Any:
    topic_id = TopicId(uuid_bytes(words[0]))
    existing = "--existing" in words
    if existing and "--execute" in words:
        person.books.purged.add(topic_id)
        for segment in person.books.segments:
            segment.unwanted = segment.unwanted or segment.first.partition.topic_id == topic_id
    return await person.daemon.operator.purge(
        topic_id, execute="--execute" in words, existing=existing
    )


async def _drain(person: Person, _: Words) -> Any:
    return await person.daemon.operator.drain()


async def _rebuild_marker(person: Person, words: Words) -> Any:
    return await offline.rebuild_marker(person.daemon, execute="--execute" in words)


async def _delete(person: Person, words: Words) -> Any:
    books = person.books
    if len(words) == 2:  # a partition and an id, as `rlmm` has it
        segment = books.by_id[SegmentId(uuid_bytes(words[1]))]
    elif int(words[0]) < len(books.segments):
        segment = books.segments[int(words[0])]
    else:
        return None
    segment.unwanted = True
    first = segment.first
    return await person.daemon.copier.delete_segment(first.partition, first.segment_id)


async def _copy(person: Person, words: Words) -> Any:
    """Repeat a copy as `--segment-id` does, or begin it again, of none that was deleted."""
    number = int(words[0])
    if number >= len(person.books.segments):
        return None
    segment = person.books.segments[number]
    record, repeats = records.encode(segment.first), segment.unwanted or number % 2 == 1
    return await person.daemon.copier.copy_segment(
        record, segment.files, Caller.OPERATOR, repeats=repeats
    )


async def _accept_record(person: Person, words: Words) -> Any:
    """Accept a record that is no event: none here is, so nothing may come of it."""
    record = job.control.AcceptedRecord(
        metadata_partition=int(words[0]),
        offset=int(words[1]),
        sha256=hashlib.sha256(words[1].encode()).hexdigest(),
        reason="looked at",
        accepted_at_ms=person.daemon.life.clock.now_ms(),
        accepted_by="somebody",
    )
    async with job.control.opened(offline.config()) as storage:
        await job.control.accept(storage, record)


async def _log_name(person: Person, words: Words) -> Any:
    del person
    return await offline.name_log(execute="--execute" in words)


async def _break_lease(person: Person, _: Words) -> Any:
    async with job.control.opened(offline.config()) as storage:
        found = await job.lease.look(storage)
        clock = await job.storage_time.read(storage)
        if found is None or (found.lease is not None and found.ends_ms <= clock.now_ms()):
            return None
        fence = (found.lease.fence if found.lease else 0) + 1
        await job.lease.take_away(storage, found, by="somebody", fence=fence, now_ms=clock.now_ms)
        return person.daemon.life.number


#: Commands that change something and that nobody types here, and why.
NOT_TYPED: Final[Mapping[str, str]] = {
    "reconcile run": "a timer runs it: `night`",
    "run": "each life is one",
    **dict.fromkeys(
        (
            "quorum run",
            "quorum format",
            "quorum add",
            "quorum remove",
            "quorum force-voters",
            "quorum user",
        ),
        "no daemon keeps its log in a quorum yet: `simulation.quorum`",
    ),
    "config from-properties": "writes a configuration",
    "setup": "writes a configuration",
    "pause": "begins nothing: `unit/daemon/metadata/test_pauses.py`",
    "resume": "as pause",
}
#: Command -> what it calls.
ORDERS: Final[Mapping[str, Order]] = {
    "partition retry": _retry,
    "partition rebuild": _rebuild,
    "partition accept-loss": _accept_loss,
    "partition end-hold": _end_hold,
    "log name": _log_name,
    "log repair": _repair,
    "log recover": _recover,
    "snapshot now": _snapshot,
    "purge": _purge,
    "drain": _drain,
    "storage rebuild-marker": _rebuild_marker,
    "reconcile restore": manifest_orders.restore,
    "reconcile hold": manifest_orders.hold,
    "reconcile release": manifest_orders.release,
    "reconcile approve": manifest_orders.approve,
    "reconcile accept-record": _accept_record,
    "reconcile break-lease": _break_lease,
    "delete": _delete,
    "copy": _copy,
}


def random_of(life_rng: random.Random) -> float:
    """Return how long somebody thinks before the next command, in virtual seconds."""
    return TYPING_SECONDS + life_rng.expovariate(0.5)
