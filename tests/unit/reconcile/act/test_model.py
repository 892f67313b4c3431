"""Every interleaving of copies, deletes, leader changes, a crash, nights and a reconciling job.

States are walked exhaustively, each judged by `core.disposal` and planned by `quarantine.plan`
themselves; the job reads the log's tail, looks at what it planned and deletes it, each in a step of
its own, and may be killed before each. The claim: no object of a segment that is live, or that its
copier counts on, is ever deleted. Then each guard is taken away in turn, from the fewest that are
safe together, and the walk must find the loss: a guard that can go without harm guards nothing.

One of them is no guard but what `executing` counts on: that no id is begun anew in the seconds
between the tail's read and the delete (`quiet_window`). Without it the walk finds the loss too.

Left out: a second job (the lease's tests), restored manifests, held segments, accepted losses, caps
and the guards over the whole log, each of which only takes something out of a plan.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.core.disposal.findings import Ages, Present, Recorded, judge
from rlmm_daemon.core.disposal.history import Told, last_word
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.reconcile.act import quarantine
from rlmm_daemon.reconcile.act.quarantine import CondemnedObject, Manifest

LOG = ".log"
DAY = 86_400_000
NOW = 1_000 * DAY
#: Ages are whole days, and what is two days old is old for good.
OLD = 2
STATES_MAX = 600_000
Event = tuple[S, int]
Object = tuple[int, int]


class Segment(NamedTuple):
    """One segment id: what the log says, what lies in the storage, and who works on it."""

    #: (state, age) in log order.
    events: tuple[Event, ...] = ()
    #: (version, age); None: absent.
    stored: Object | None = None
    #: "begun": may put; "put": its object is there, COPY_SEGMENT_FINISHED is not said yet.
    copier: str = ""
    deleting: bool = False
    versions: int = 0


class Job(NamedTuple):
    """The reconciling run: what it has seen and decided so far."""

    step: str = "idle"
    #: Per segment what was listed, and how many events were read.
    listing: tuple[Object | None, ...] = ()
    read: tuple[int, ...] = ()
    #: (segment, version, nights since) as quarantined.
    quarantined: tuple[tuple[int, int, int], ...] = ()
    plan: tuple[tuple[int, int], ...] = ()
    #: What the plan quarantines, once it has deleted.
    fresh: tuple[tuple[int, int], ...] = ()


class World(NamedTuple):
    segments: tuple[Segment, ...]
    job: Job = Job()
    crashed: bool = False


class Guards(NamedTuple):
    """What keeps live objects alive; each can be switched off."""

    #: COPY_SEGMENT_STARTED is applied before the first byte is put.
    started_first: bool = True
    #: The log's end is asked for after the listing.
    log_after_listing: bool = True
    #: Every event up to that end was read.
    whole_log: bool = True
    grace: bool = True
    quarantine: bool = True
    #: The log's tail is read before a delete.
    tail: bool = True
    #: A delete looks whether the object is still the one that was judged.
    same_object: bool = True
    #: No copy of a segment that is about to be deleted begins, or puts, behind the tail's read.
    quiet_window: bool = True


class Bounds(NamedTuple):
    """How long the histories may be: states grow with the square for two segments."""

    segments: int = 1
    events: int = 5
    #: Objects put under one key.
    versions: int = 2
    crashes: bool = True


#: Behind the tail's read, until the last delete.
WINDOW = frozenset({"tail", "look", "delete"})


class Loss(AssertionError):
    """A live object was deleted."""


@functools.cache
def recorded(events: tuple[Event, ...]) -> Recorded:
    found = last_word(
        Told(
            offset=offset,
            state=state,
            event_ms=NOW - age * DAY,
            log_size=1 if state is S.COPY_SEGMENT_STARTED else None,
        )
        for offset, (state, age) in enumerate(events)
    )
    sizes = {LOG: 1} if found.state is not None else {}
    return Recorded(state=found.state, event_ms=found.event_ms, held=found.held, sizes=sizes)


@functools.cache
def condemned(events: tuple[Event, ...], stored: Object, *, grace: bool) -> bool:
    ages = Ages(listed_ms=NOW + 1, grace_ms=DAY if grace else 0, stuck_copy_ms=DAY, skew_ms=-1)
    present = {LOG: Present(suffix=LOG, size=1, modified_ms=NOW - stored[1] * DAY)}
    return any(one.condemned for one in judge(recorded(events), present, ages))


def steps(world: World, guards: Guards, bounds: Bounds) -> Iterator[World]:
    for at, segment in enumerate(world.segments):
        planned = world.job.step in WINDOW and any(at == each for each, _ in world.job.plan)
        for after, copies in steps_of(segment, guards, bounds):
            if not (planned and copies and guards.quiet_window):
                yield put(world, at, after)
    yield job_step(world, guards)
    # The job is killed, wherever it is: the next one begins with what was listed before.
    yield world._replace(job=Job(quarantined=world.job.quarantined))
    yield night(world)
    if bounds.crashes and not world.crashed:
        dead = tuple(each._replace(copier="", deleting=False) for each in world.segments)
        yield world._replace(segments=dead, crashed=True)


def put(world: World, at: int, segment: Segment) -> World:
    segments = world.segments
    return world._replace(segments=(*segments[:at], segment, *segments[at + 1 :]))


@functools.cache
def steps_of(segment: Segment, guards: Guards, bounds: Bounds) -> tuple[tuple[Segment, bool], ...]:
    """Return what a segment may become, and whether a copy began or put something by it."""
    return tuple(
        (after, after.copier == "begun" != segment.copier or after.versions > segment.versions)
        for after in segment_steps(segment, guards, bounds)
    )


def segment_steps(segment: Segment, guards: Guards, bounds: Bounds) -> Iterator[Segment]:
    said = segment.events
    state = recorded(said).state
    idle = not segment.copier and not segment.deleting
    # Once more with the same id is an operator's or a repair's doing; Kafka draws a new one.
    absent = state is None or state is S.DELETE_SEGMENT_FINISHED
    if idle and absent and segment.versions < bounds.versions and len(said) < bounds.events:
        begun = (*said, (S.COPY_SEGMENT_STARTED, 0)) if guards.started_first else said
        yield segment._replace(events=begun, copier="begun")
    if idle and state in {S.COPY_SEGMENT_STARTED, S.COPY_SEGMENT_FINISHED}:
        yield segment._replace(events=(*said, (S.DELETE_SEGMENT_STARTED, 0)), deleting=True)
    if idle and state is S.DELETE_SEGMENT_STARTED:
        yield segment._replace(deleting=True)
    if segment.copier and not segment.deleting and state is S.COPY_SEGMENT_STARTED:
        # Another broker leads by now and removes what it sees; the old one is still at its copy.
        yield segment._replace(events=(*said, (S.DELETE_SEGMENT_STARTED, 0)), deleting=True)
    if segment.copier == "begun":
        version = segment.versions + 1
        yield segment._replace(stored=(version, 0), versions=version, copier="put")
    if segment.copier == "put" and state in {S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED}:
        yield segment._replace(copier="")  # COPY_SEGMENT_FINISHED is refused
    elif segment.copier == "put":
        late = () if guards.started_first else ((S.COPY_SEGMENT_STARTED, 0),)
        done = (*said, *late, (S.COPY_SEGMENT_FINISHED, 0))
        yield segment._replace(events=done, copier="")
    if segment.deleting:
        ended = (*said, (S.DELETE_SEGMENT_FINISHED, 0))
        yield segment._replace(events=ended, stored=None, deleting=False)
        # A put of a copy that died can arrive behind the delete: the object is there again.
        yield segment._replace(events=ended, deleting=False)


def older(age: int) -> int:
    return min(age + 1, OLD)


@functools.cache
def aged(segment: Segment) -> Segment:
    stored = segment.stored
    return segment._replace(
        events=tuple((state, older(age)) for state, age in segment.events),
        stored=None if stored is None else (stored[0], older(stored[1])),
        copier="",
    )


def night(world: World) -> World:
    """Let a day pass: no copy lives into the next one, its deadline is shorter."""
    segments = tuple(map(aged, world.segments))
    job = world.job
    quarantined = tuple((at, version, older(age)) for at, version, age in job.quarantined)
    # A run does not last a whole day: one that does begins anew.
    return world._replace(segments=segments, job=Job(quarantined=quarantined))


def job_step(world: World, guards: Guards) -> World:
    job = world.job
    first, second = ("list", "read") if guards.log_after_listing else ("read", "list")
    after = {"idle": first, first: second, second: "plan", "plan": "tail", "tail": "look"}
    todo = after.get(job.step, "delete")
    match todo:
        case "list":
            listing = tuple(each.stored for each in world.segments)
            return world._replace(job=job._replace(step=todo, listing=listing))
        case "read":
            missed = 0 if guards.whole_log else 2
            read = tuple(max(len(each.events) - missed, 0) for each in world.segments)
            return world._replace(job=job._replace(step=todo, read=read))
        case "plan":
            return world._replace(job=planned(world, guards))
        case "tail":
            known = (each for each in job.plan if not guards.tail or untouched(world, each[0]))
            return world._replace(job=job._replace(step=todo, plan=tuple(known)))
        case "look":
            there = (each for each in job.plan if not guards.same_object or is_same(world, *each))
            return world._replace(job=job._replace(step=todo, plan=tuple(there)))
        case _:
            return executed(world)


def untouched(world: World, at: int) -> bool:
    return len(world.segments[at].events) <= world.job.read[at]


def is_same(world: World, at: int, version: int) -> bool:
    stored = world.segments[at].stored
    return stored is not None and stored[0] == version


@functools.cache
def plan_of(
    condemned: frozenset[tuple[int, int]],
    quarantined: frozenset[tuple[int, int, int]],
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Return what `quarantine.plan` deletes and quarantines of (segment, version)."""
    entries = {each: entry(*each) for each in sorted(condemned)}
    manifests = {
        f"{number}": Manifest(
            run="r", fence=1, created_ms=NOW - nights * DAY, entries=(entry(at, version),)
        )
        for number, (at, version, nights) in enumerate(sorted(quarantined))
    }
    totals = quarantine.Totals(objects=10**6, bytes=10**9)
    made = quarantine.plan(
        entries.values(), manifests, totals, Safety(quarantine_hours=24), now_ms=NOW
    )
    names = {one: name for name, one in entries.items()}
    return tuple(names[one] for one in made.delete), tuple(names[one] for one in made.quarantine)


def entry(at: int, version: int) -> CondemnedObject:
    return CondemnedObject(
        key=f"{at}", size=1, etag=f"{version}", modified_ms=version * 1_000, kind="orphan_object"
    )


def planned(world: World, guards: Guards) -> Job:
    job = world.job
    found = frozenset(
        (at, stored[0])
        for at, stored in enumerate(job.listing)
        if stored is not None
        and condemned(world.segments[at].events[: job.read[at]], stored, grace=guards.grace)
    )
    plan: tuple[tuple[int, int], ...] = tuple(sorted(found))
    fresh: tuple[tuple[int, int], ...] = ()
    if guards.quarantine:
        plan, fresh = plan_of(found, frozenset(job.quarantined))
    # What nothing asks for any more is forgotten, so that states which differ by it alone are one.
    read = tuple(n * any(at == each for each, _ in plan) for at, n in enumerate(job.read))
    return Job("plan", read=read, quarantined=job.quarantined, plan=plan, fresh=fresh)


def executed(world: World) -> World:
    """Delete the plan's next object, whatever lies there now, or list what is new behind the last.

    A delete names a key: nothing of the object that was looked at goes with it.
    """
    job, after = world.job, world
    if not job.plan:
        listed = {*job.quarantined, *((at, version, 0) for at, version in job.fresh)}
        return world._replace(job=Job(quarantined=tuple(sorted(listed))))
    (at, _), *rest = job.plan
    segment = world.segments[at]
    after = world._replace(job=job._replace(step="delete", plan=tuple(rest)))
    if segment.stored is None:
        return after
    state = recorded(segment.events).state
    counted_on = segment.copier == "put" and state in {None, S.COPY_SEGMENT_STARTED}
    if counted_on or state is S.COPY_SEGMENT_FINISHED:
        raise Loss(world, at)
    return put(after, at, segment._replace(stored=None))


def walk(guards: Guards, bounds: Bounds) -> int:
    """Return how many states there are.

    Raises:
        Loss: one of them loses a live object.
    """
    start = World(segments=tuple(Segment() for _ in range(bounds.segments)))
    seen, frontier = {start}, [start]
    while frontier:
        world = frontier.pop()
        for after in steps(world, guards, bounds):
            if after not in seen:
                assert len(seen) < STATES_MAX, "the model has grown beyond its bound"
                seen.add(after)
                frontier.append(after)
    return len(seen)


ONE = Bounds()
TWO = Bounds(segments=2, events=1, versions=1)
#: Guard -> others that have to be away too, so that nothing else catches what it catches.
ALONE = {
    "started_first": ("same_object",),
    "log_after_listing": ("grace", "quarantine", "tail"),
    "whole_log": ("tail",),
    "grace": ("started_first", "quarantine"),
    "quarantine": ("started_first", "grace"),
    "tail": ("same_object",),
    "same_object": ("tail",),
    "quiet_window": (),
}
assert ALONE.keys() == set(Guards._fields), "every guard is broken once"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bounds", [ONE, TWO])
def test_no_live_object_is_ever_deleted(bounds: Bounds) -> None:
    assert walk(Guards(), bounds) > 10_000


@pytest.mark.parametrize("guard", ALONE)
def test_each_guard_taken_away_loses_a_live_object(guard: str) -> None:
    others = Guards()._replace(**dict.fromkeys(ALONE[guard], False))
    walk(others, ONE)
    with pytest.raises(Loss):
        walk(others._replace(**{guard: False}), ONE)
