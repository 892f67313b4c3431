"""JSON of our small objects in the bucket: the marker and each daemon's presence file.

Both carry a format version, and a reader refuses a newer one untouched. The marker is rewritten by
several daemons, so it refuses unknown fields too: rewriting would drop them. It ends in a checksum;
the first two formats have none.
"""

from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from rlmm_daemon.codec.sealed_json import sealed, unsealed
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.domain.ids import uuid_bytes

MARKER_KEY: Final = "_rlmm/marker.json"
#: Older ones are read: 1 has no holds, and 2 does not tell which were ended. No checksum.
MARKER_FORMAT: Final = 3
PRESENCE_PREFIX: Final = "_rlmm/daemons/"
PRESENCE_FORMAT: Final = 1
#: Of one that tells of another daemon: a nightly job that does not know that would delete by it.
PRESENCE_FORMAT_OTHER: Final = 2
#: Ten years: far above what a configuration may say.
COPY_DEADLINE_SECONDS_MAX: Final = 315_360_000
#: A control object beyond this is nobody's; far above a table of 65,535 layouts' usual size.
CONTROL_BYTES_MAX: Final = 1024 * 1024

#: The last second that a calendar has, in ms since 1970.
CONTROL_MS_MAX: Final = 253_402_300_799_000
#: A time in ms since 1970 that a calendar has.
CalendarMs = Annotated[int, Meta(ge=0, le=CONTROL_MS_MAX)]

_S = TypeVar("_S", bound=msgspec.Struct)


class NewerMarker(Malformed):
    """A control object of ours that a newer version of this program wrote."""


class LayoutRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layout that some copy has used. Rows are appended, never changed or removed."""

    #: 1, 2, 3, ...; custom metadata names it.
    number: int
    kind: str
    prefix: str


class AcceptedLoss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's word that events of a metadata partition are gone for good."""

    #: None: the whole log.
    metadata_partition: int | None
    #: Kafka's uuid text of the metadata topic that was given up.
    topic_id: str
    #: By the storage's time; by the daemon's own where the storage does not tell it.
    accepted_at_ms: int
    broker_id: int


class AcceptedGap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Offsets [start, end) of the log whose records are lost: accepted, and not raised again."""

    metadata_partition: int
    #: Kafka's uuid text of the metadata topic that they are missing from.
    topic_id: str
    start: int
    end: int


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an accepted loss keeps from being deleted; see `core.disposal.holds`."""

    #: None: of every metadata partition.
    metadata_partition: int | None
    #: Begun or written until then, in ms since 1970.
    before_ms: int
    #: Which daemon was told to accept the loss.
    broker_id: int


class BucketMarker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose bucket this is and where in it segments were ever stored."""

    format: int = MARKER_FORMAT
    cluster_id: str
    #: Of the metadata topic; fixed at first contact.
    partition_count: Annotated[int, Meta(ge=1)]
    #: Kafka's uuid text of the metadata topic.
    metadata_topic_id: str
    layouts: tuple[LayoutRow, ...] = ()
    accepted_losses: tuple[AcceptedLoss, ...] = ()
    #: These three are left out of a marker that has none.
    accepted_gaps: tuple[AcceptedGap, ...] | msgspec.UnsetType = msgspec.UNSET
    holds: tuple[Hold, ...] | msgspec.UnsetType = msgspec.UNSET
    #: Of each metadata partition (None: of all) the one that kept most: what of it is in a copy of
    #: an older marker was ended, and what is in none was not.
    ended_holds: tuple[Hold, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def gaps(self) -> tuple[AcceptedGap, ...]:
        """The accepted gaps, none if it names none."""
        return self.accepted_gaps or ()

    @property
    def held(self) -> tuple[Hold, ...]:
        """The holds, none if it names none."""
        return self.holds or ()

    @property
    def ended(self) -> tuple[Hold, ...]:
        """The ended holds, none if it names none."""
        return self.ended_holds or ()

    @property
    def tells_ended(self) -> bool:
        """Whether holds that it has no more are among the ended ones."""
        return self.format >= MARKER_FORMAT


#: A state of a metadata partition in a presence file. It begins as `failed`, on which older nightly
#: jobs stop, too: whether events are missing from the log is not known yet.
COMPARING: Final = "failed_or_comparing"


class PresencePartition(msgspec.Struct, frozen=True, kw_only=True):
    """One followed metadata partition as its daemon sees it."""

    #: Of `PartitionState`, or `COMPARING`.
    state: str
    #: Kafka's uuid text of the metadata topic.
    topic_id: str
    leader_epoch: int
    next_offset: int
    #: At least so many segments were COPY_SEGMENT_FINISHED when it had been read to `live_at`.
    #: None: not counted, or by an older daemon.
    live_segments: int | None = None
    live_at: int | None = None


class OtherDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """Another daemon that has the same broker id, or may; see `core.readiness.twins`."""

    #: Host, process and start, for people.
    who: str
    #: It was seen to live; else it only may.
    met: bool


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What one daemon says of itself; rewritten on change, and at least every 60 s."""

    format: int = PRESENCE_FORMAT
    cluster_id: str
    broker_id: int
    #: The broker JVM's start in ms since 1970; None until it said hello.
    incarnation: int | None
    started_at_ms: int
    written_at_ms: CalendarMs
    #: No copy of this daemon lives longer, so what is older and unfinished is abandoned.
    copy_deadline_seconds: Annotated[float, Meta(ge=0, le=COPY_DEADLINE_SECONDS_MAX)]
    #: Not rewritten until then, the daemon is gone; None: an older daemon's, which says nothing.
    lease_end_ms: int | None
    #: Whose metadata manager the broker runs: "rlmm" only while ours is connected.
    metadata_manager: Literal["rlmm", "foreign"]
    #: Metadata partition -> its state.
    partitions: dict[int, PresencePartition]
    #: Names the lock that the daemon holds; "": an older daemon's, or not known.
    place: str = ""
    #: Host, process and start of who writes this, for people.
    host: str = ""
    #: The daemon has stopped, and this is its last word.
    ended: bool = False
    #: Set while it is not sure to be alone: it deletes nothing, nor may the nightly job.
    other: OtherDaemon | None = None
    #: The holds that its daemon knows: a marker that lacks one, ended or not, is an older one.
    holds: tuple[Hold, ...] = ()


def presence_key(broker_id: int) -> str:
    """Return where a broker's daemon writes its presence."""
    return f"{PRESENCE_PREFIX}{broker_id}.json"


def is_presence_key(key: str) -> bool:
    """Return whether a broker's daemon writes its presence there."""
    number = key.removeprefix(PRESENCE_PREFIX).removesuffix(".json")
    return number.isdecimal() and key == presence_key(int(number))


def encode(control: BucketMarker | Presence) -> bytes:
    """Return indented JSON with a newline at its end: people read these files too.

    A presence file gets the lowest format whose readers understand all that is in it.
    """
    if isinstance(control, BucketMarker):
        return sealed(msgspec.json.encode(as_written(control)))
    if control.other is not None:
        control = msgspec.structs.replace(control, format=PRESENCE_FORMAT_OTHER)
    return msgspec.json.format(msgspec.json.encode(control), indent=2) + b"\n"


def as_written(marker: BucketMarker) -> BucketMarker:
    """Return a marker as it comes back once it was written."""
    return msgspec.structs.replace(
        marker,
        format=MARKER_FORMAT,
        accepted_gaps=marker.accepted_gaps or msgspec.UNSET,
        holds=marker.holds or msgspec.UNSET,
        ended_holds=marker.ended_holds or msgspec.UNSET,
    )


def decode_marker(raw: bytes) -> BucketMarker:
    """Return the marker.

    Raises:
        Malformed: not a marker, damaged, or of a newer format.
    """
    try:
        content, has_checksum = unsealed(raw)
    except ValueError as error:
        raise Malformed(f"bucket marker: {error}") from error
    marker = _decode(content, BucketMarker, "bucket marker", MARKER_FORMAT)
    if marker.tells_ended and not has_checksum:
        raise Malformed("bucket marker: its checksum is gone")
    if [row.number for row in marker.layouts] != list(range(1, len(marker.layouts) + 1)):
        raise Malformed("bucket marker: its layouts are not numbered 1, 2, 3, ...")
    return marker


def require_topic_ids(marker: BucketMarker) -> None:
    """Judge what only those need who hold an event log against the marker.

    Raises:
        Malformed: what should be a topic id is none.
    """
    losses = [loss.topic_id for loss in marker.accepted_losses]
    gaps = [gap.topic_id for gap in marker.gaps]
    try:
        for topic_id in (marker.metadata_topic_id, *losses, *gaps):
            uuid_bytes(topic_id)
    except InvalidArgument as error:
        raise Malformed(f"bucket marker: {error.message}") from error


def decode_presence(raw: bytes) -> Presence:
    """Return a presence file's content.

    Raises:
        Malformed: not a presence file, or of a newer format.
    """
    return _decode(raw, Presence, "presence file", PRESENCE_FORMAT_OTHER)


class _Versioned(msgspec.Struct):
    format: int


def _decode(raw: bytes, kind: type[_S], what: str, newest: int) -> _S:
    try:
        # The version first: a newer file's fields would be refused with a misleading reason.
        version = msgspec.json.decode(raw, type=_Versioned).format
        if not 1 <= version <= newest:
            kind_of = NewerMarker if version > newest else Malformed
            raise kind_of(f"{what}: format {version} is not known to this version ({newest})")
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{what}: {error}") from error
