"""`hello`: who may talk to this daemon, and as what."""

import enum
from typing import Final

import msgspec

from rlmm_daemon.codec.api import HelloParams
from rlmm_daemon.codec.frames import PROTOCOL_VERSION
from rlmm_daemon.domain.errors import InvalidArgument, UnsupportedProtocol
from rlmm_daemon.domain.ids import BrokerId


class Role(enum.Enum):
    """How a connection is served; it grants nothing."""

    BROKER = "broker"
    OPERATOR = "operator"
    BULK = "bulk"


class Plugin(enum.Enum):
    """Which of the broker's two plugins speaks."""

    METADATA = "metadata"
    STORAGE = "storage"
    NONE = ""


class Introduction(msgspec.Struct, frozen=True):
    """A `hello` that makes sense, whether or not it is for this daemon."""

    role: Role
    part: Plugin
    client: str
    cluster_id: str | None
    broker_id: int | None
    incarnation_ms: int | None
    #: By the kernel's word, as of its connect().
    uid: int = -1
    pid: int = 0


class DaemonIdentity(msgspec.Struct):
    """Whose sidecar this daemon is. The cluster may become known later, and then stays."""

    broker_id: BrokerId
    cluster_id: str | None


_CLIENT_CHARACTERS_MAX: Final = 200


def introduce(params: HelloParams) -> Introduction:
    """Return what a `hello` says.

    Raises:
        UnsupportedProtocol: another version of the protocol.
        InvalidArgument: an unknown role or part, or a broker without its ids. A cluster id is
            asked of its metadata manager only: Kafka does not tell it to RemoteStorageManagers.
    """
    if params.protocol != PROTOCOL_VERSION:
        raise UnsupportedProtocol(
            f"protocol {params.protocol} is not spoken here, only {PROTOCOL_VERSION}",
            spoken=PROTOCOL_VERSION,
        )
    try:
        role, part = Role(params.role), Plugin(params.part)
    except ValueError as error:
        raise InvalidArgument(f"hello: {error}") from error
    if role is Role.BROKER:
        _require_ids(params, part)
    return Introduction(
        role=role,
        part=part,
        client=params.client[:_CLIENT_CHARACTERS_MAX],
        cluster_id=params.cluster_id,
        broker_id=params.broker_id,
        incarnation_ms=params.broker_incarnation,
    )


def _require_ids(params: HelloParams, part: Plugin) -> None:
    missing = [
        name
        for name in ("cluster_id", "broker_id", "broker_incarnation")
        if getattr(params, name) is None and not (name == "cluster_id" and part is Plugin.STORAGE)
    ]
    if missing:
        raise InvalidArgument(f"hello of a broker lacks {', '.join(missing)}", missing=missing)
    if part is Plugin.NONE:
        raise InvalidArgument('hello of a broker needs a part: "metadata" or "storage"')


def verify(introduction: Introduction, identity: DaemonIdentity) -> None:
    """Return quietly when the ids that were given are this daemon's; an unknown cluster passes.

    Raises:
        InvalidArgument: a client of another cluster or broker.
    """
    if introduction.broker_id not in (None, identity.broker_id):
        raise InvalidArgument(
            f"this daemon belongs to broker {identity.broker_id}, not {introduction.broker_id}",
            broker_id=identity.broker_id,
        )
    if identity.cluster_id is not None and introduction.cluster_id not in (
        None,
        identity.cluster_id,
    ):
        raise InvalidArgument(
            f"this daemon belongs to cluster {identity.cluster_id}, not {introduction.cluster_id}",
            cluster_id=identity.cluster_id,
        )
