"""The cleaner's next step, from facts: of a partition's removal, a stuck copy, a stuck delete.

Each question is a table that is read from the top: the first row that applies is the answer, and
the last one always applies. Whoever carries a step out gathers the facts anew afterwards, so that
nothing but the log remembers how far a removal came. A daemon without storage has no cleaner and
asks nothing here.

    partition   MARKED -> STARTED -> (segments: STARTED, objects, FINISHED) -> listing -> FINISHED
    copy        COPY_SEGMENT_STARTED whose broker can't be copying any more
    delete      DELETE_SEGMENT_STARTED that nobody ends

Source: KIP-405, RemoteLogCleaner and RemotePartitionDeleteState.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from rlmm_daemon.domain.partition_delete import PartitionDeleteState

P = PartitionDeleteState
_Facts = TypeVar("_Facts")
_Step = TypeVar("_Step")
_Rows = Sequence[tuple[Callable[[_Facts], bool], _Step]]


class Proof(enum.Enum):
    """The second fact, beside the mark: is the topic id gone?"""

    #: Every live broker answers UNKNOWN_TOPIC_ID or, without a cluster to ask, the broker does not
    #: announce it and has no directory of it.
    GONE = "gone"
    ALIVE = "alive"
    #: Not every broker answered, or nobody could be asked.
    UNKNOWN = "unknown"


class Listing(enum.Enum):
    """What a listing of the partition's prefixes, of every layout, showed after the last delete."""

    NOT_TAKEN = "not taken"
    EMPTY = "empty"
    LEFTOVERS = "leftovers"


class PartitionStep(enum.Enum):
    """What to do next for a partition that is marked for removal; HOLD_* say why nothing is."""

    REST = "rest"
    HOLD_FAILED = "partition_failed"
    HOLD_ALIVE = "topic_exists"
    HOLD_UNPROVEN = "topic_unproven"
    HOLD_HELD_SEGMENT = "segment_held"
    HOLD_PEERS = "foreign_metadata_manager"
    APPEND_STARTED = "append DELETE_PARTITION_STARTED"
    DELETE_SEGMENTS = "delete segments"
    END_COPIES = "end copies"
    LIST = "list"
    SWEEP = "sweep leftovers"
    APPEND_FINISHED = "append DELETE_PARTITION_FINISHED"


#: Steps that wait for something other than the cleaner.
HOLDS: Final = frozenset(step for step in PartitionStep if step.name.startswith("HOLD_"))


class PartitionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the next step of a removal is decided by."""

    state: PartitionDeleteState | None
    proof: Proof
    #: The metadata partition is `failed`, so its fold is no ground to delete by.
    failed: bool
    #: Live segments, whatever their state.
    segments: int
    #: Of these, the ones that only `rlmm log repair` may touch.
    held: int
    #: Copies of this partition that run in this daemon.
    copies_here: int
    listing: Listing
    #: Every registered broker's metadata manager survives DELETE_PARTITION_FINISHED.
    peers: bool


_PARTITION: Final[_Rows[PartitionFacts, PartitionStep]] = (
    (lambda f: f.state in (None, P.DELETE_PARTITION_FINISHED), PartitionStep.REST),
    # A held segment is why its metadata partition is failed, and says what to do about it.
    (lambda f: f.held > 0, PartitionStep.HOLD_HELD_SEGMENT),
    (lambda f: f.failed, PartitionStep.HOLD_FAILED),
    (lambda f: f.proof is Proof.ALIVE, PartitionStep.HOLD_ALIVE),
    (lambda f: f.proof is Proof.UNKNOWN, PartitionStep.HOLD_UNPROVEN),
    (lambda f: f.state is P.DELETE_PARTITION_MARKED, PartitionStep.APPEND_STARTED),
    (lambda f: f.segments > 0, PartitionStep.DELETE_SEGMENTS),
    # A copy ends after the sweep that it was not in: end ours first, then look.
    (lambda f: f.copies_here > 0, PartitionStep.END_COPIES),
    (lambda f: f.listing is Listing.NOT_TAKEN, PartitionStep.LIST),
    (lambda f: f.listing is Listing.LEFTOVERS, PartitionStep.SWEEP),
    (lambda f: not f.peers, PartitionStep.HOLD_PEERS),
    (lambda _: True, PartitionStep.APPEND_FINISHED),
)


def partition_step(facts: PartitionFacts) -> PartitionStep:
    """Return the next step of a partition's removal."""
    return _first(_PARTITION, facts)


class CopyStep(enum.Enum):
    """What a COPY_SEGMENT_STARTED segment is."""

    #: It may be running, or may still be finished by its broker.
    LIVE = "live"
    #: Old, and another daemon's to judge.
    NOT_OURS = "not_ours"
    #: Old, but its broker's metadata or storage manager is not ours, or away: only reported.
    REPORT = "foreign_metadata_manager"
    #: Old, but nothing proves that its broker gave it up.
    UNPROVEN = "unproven"
    #: Its metadata partition is `failed`.
    FAILED = "partition_failed"
    #: Its COPY_SEGMENT_FINISHED may be among events that are lost (`core.disposal.holds`).
    HOLD = "loss_accepted"
    REMOVE = "remove"


class CopyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one COPY_SEGMENT_STARTED segment."""

    failed: bool
    #: An accepted loss of its metadata partition holds it.
    loss_held: bool
    #: A copy of this segment id runs in this daemon.
    running_here: bool
    #: Since the event was written.
    age_ms: int
    #: The copy deadline and the delivery timeout together: this daemon's for its own broker's
    #: copies, the largest recorded ones for another's.
    patience_ms: int
    #: The broker that this daemon stands beside wrote it.
    own: bool
    #: That broker's metadata manager is ours: it is connected.
    manager_ours: bool
    #: Its storage manager is ours: it said hello. Another one's objects are not ours to look for.
    storage_ours: bool
    #: The broker's incarnation is newer than the event.
    reborn: bool
    #: A later COPY_SEGMENT_STARTED of the same broker for the same partition was applied.
    superseded: bool
    #: This daemon owns the metadata partition.
    owner: bool
    #: Another broker: whether it is registered, fenced ones included; None: not known.
    registered: bool | None
    #: Another broker: whether its presence file's lease has run out; None: not known.
    lease_over: bool | None


_COPY: Final[_Rows[CopyFacts, CopyStep]] = (
    (lambda f: f.running_here or f.age_ms <= f.patience_ms, CopyStep.LIVE),
    (lambda f: f.failed, CopyStep.FAILED),
    (lambda f: f.loss_held, CopyStep.HOLD),
    (lambda f: f.own and not (f.manager_ours and f.storage_ours), CopyStep.REPORT),
    (lambda f: f.own and (f.reborn or f.superseded), CopyStep.REMOVE),
    (lambda f: f.own, CopyStep.UNPROVEN),
    (lambda f: not f.owner, CopyStep.NOT_OURS),
    (lambda f: f.registered is False and f.lease_over is True, CopyStep.REMOVE),
    (lambda f: f.registered is True, CopyStep.NOT_OURS),
    (lambda _: True, CopyStep.UNPROVEN),
)


def copy_step(facts: CopyFacts) -> CopyStep:
    """Return whether a COPY_SEGMENT_STARTED segment is stuck, and who may end it."""
    return _first(_COPY, facts)


class DeleteStep(enum.Enum):
    """What to do about a DELETE_SEGMENT_STARTED segment."""

    #: The broker's own expiration repeats it.
    WAIT = "broker_repeats_it"
    NOT_OURS = "not_ours"
    HELD = "segment_held"
    FAILED = "partition_failed"
    #: It was meant for a stuck copy, whose COPY_SEGMENT_FINISHED may be among events that are lost.
    HOLD = "loss_accepted"
    #: Another storage manager stored it, and alone knows where its objects are.
    FOREIGN = "foreign_storage_manager"
    #: Delete the objects now; a copy may still put some, so DELETE_SEGMENT_FINISHED comes later.
    OBJECTS = "copy_may_be_ending"
    #: Delete the objects, then append DELETE_SEGMENT_FINISHED.
    FINISH = "finish"


class DeleteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one DELETE_SEGMENT_STARTED segment."""

    failed: bool
    owner: bool
    #: DELETE_SEGMENT_STARTED replaced a COPY_SEGMENT_FINISHED that its writer had not seen.
    held: bool
    #: An accepted loss of its metadata partition holds it, and nobody asked for this delete.
    loss_held: bool
    #: The partition's own removal is under way, or its topic id is gone.
    topic_gone: bool
    age_ms: int
    #: After so long the broker's expiration is not waited for any more.
    stuck_ms: int
    #: Its custom metadata is another storage manager's.
    foreign: bool
    #: No custom metadata was ever recorded: the segment went from COPY_SEGMENT_STARTED.
    never_finished: bool
    #: The copy that began it is known to have ended: it was this daemon's own.
    copy_ended: bool
    #: No copy lives longer than this, counted from DELETE_SEGMENT_STARTED too; None: not known.
    copy_ms: int | None


_DELETE: Final[_Rows[DeleteFacts, DeleteStep]] = (
    (lambda f: f.held, DeleteStep.HELD),
    (lambda f: f.failed, DeleteStep.FAILED),
    (lambda f: f.loss_held and not f.topic_gone, DeleteStep.HOLD),
    (lambda f: not f.owner, DeleteStep.NOT_OURS),
    (lambda f: not f.topic_gone and f.age_ms <= f.stuck_ms, DeleteStep.WAIT),
    (lambda f: f.foreign, DeleteStep.FOREIGN),
    (
        lambda f: (
            f.never_finished and not f.copy_ended and (f.copy_ms is None or f.age_ms <= f.copy_ms)
        ),
        DeleteStep.OBJECTS,
    ),
    (lambda _: True, DeleteStep.FINISH),
)


def delete_step(facts: DeleteFacts) -> DeleteStep:
    """Return what to do about a DELETE_SEGMENT_STARTED segment."""
    return _first(_DELETE, facts)


def _first(rows: "_Rows[_Facts, _Step]", facts: _Facts) -> _Step:
    return next(step for applies, step in rows if applies(facts))
