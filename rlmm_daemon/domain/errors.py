"""Every error of this project: one root, four branches, one table of wire codes.

A branch says who must act: the caller (`RefusedError`), nobody but time (`UnavailableError`), an
operator (`CorruptError`), whoever wrote the configuration (`ConfigError`). A class's docstring is
its default message. `fields` travel with the error over the socket: small, JSON-like values only.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final


class RlmmError(Exception):
    """The root of all errors that this project raises on purpose."""

    #: 0 means that the error never crosses the socket.
    code: ClassVar[int] = 0
    retriable: ClassVar[bool] = False

    def __init__(self, message: str = "", /, **fields: Any) -> None:
        self.message = message or (type(self).__doc__ or "").partition("\n")[0]
        self.fields: dict[str, Any] = fields
        super().__init__(self.message)

    @classmethod
    def wire_name(cls) -> str:
        """Return the snake_case name that the socket and `--json` use."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")


class RefusedError(RlmmError):
    """The request can never succeed as it stands."""


class InvalidArgument(RefusedError):
    """An argument is malformed or out of range."""

    code = 100


class IllegalTransition(RefusedError):
    """KIP-405's life cycle does not allow this step from the segment's present state."""

    code = 101


class SegmentNotFound(RefusedError):
    """No such segment is known."""

    code = 102


class NotAssigned(RefusedError):
    """The broker did not announce this partition to the daemon."""

    code = 103


class NotLeader(RefusedError):
    """The broker's last announcement made it a follower of this partition."""

    code = 104


class Unauthorized(RefusedError):
    """The peer's uid and gid do not carry the right that this method needs."""

    code = 105


class PathNotAllowed(RefusedError):
    """A source file lies outside the partition's own directory under `log_dirs`."""

    code = 106


class Malformed(RefusedError):
    """Bytes that do not follow their format."""

    code = 107


class UnknownMethod(RefusedError):
    """The daemon has no method of that name."""

    code = 108


class UnsupportedProtocol(RefusedError):
    """The daemon does not speak this version of the protocol."""

    code = 109


class StorageNotConfigured(RefusedError):
    """This daemon keeps metadata only: `[storage] kind` is "none"."""

    code = 110


class IndexNotFound(RefusedError):
    """The segment was recorded as having no such index."""

    code = 111


class UnavailableError(RlmmError):
    """The right request at the wrong moment; the same request may succeed later."""

    retriable = True


class NotReady(UnavailableError):
    """The daemon has not caught up with the log for this partition, so it does not answer."""

    code = 200


class TimedOut(UnavailableError):
    """The deadline passed before anything was begun that could still take effect."""

    code = 201


class Overloaded(UnavailableError):
    """A limit on work in flight is reached."""

    code = 202


class StorageUnavailable(UnavailableError):
    """The remote storage does not answer, or answers with a passing fault."""

    code = 203


class StorageFull(UnavailableError):
    """No space is left for the write, which was refused before anything was written."""

    code = 204


class Draining(UnavailableError):
    """The daemon is shutting down and takes no new work."""

    code = 205


class OutcomeUnknown(UnavailableError):
    """The write was handed on and may still take effect; ask again to learn its fate."""

    code = 206


class InternalError(UnavailableError):
    """The daemon met a bug in this request and goes on; its log has the traceback."""

    code = 207


class CopiesPaused(UnavailableError):
    """An operator paused the copies of this topic; nothing was begun."""

    code = 208


class CorruptError(RlmmError):
    """Stored state contradicts itself; serving on would risk data."""


class ChecksumMismatch(CorruptError):
    """Bytes differ from the checksum that was recorded for them."""

    code = 300


class LogCorrupt(CorruptError):
    """The event log holds an invalid batch that is not a torn tail."""

    code = 301


class HistoryLost(CorruptError):
    """Acknowledged events are missing from the event log."""

    code = 302


class PartitionFailed(CorruptError):
    """The metadata partition stopped; the error names the reason and the command that ends it."""

    code = 303


class ObjectMissing(CorruptError):
    """An object that the log records is absent from the remote storage."""

    code = 304


class ConfigError(RlmmError):
    """The configuration cannot be used; nothing was started (exit code 78)."""


class InTheWay(RlmmError):
    """Another process or a shortage is in the way of a start; it may pass (exit code 1)."""


class SnapshotGone(UnavailableError):
    """A snapshot of the quorum's log was removed; there is a newer one."""


class DaemonUnreachable(RlmmError):
    """No daemon answers on the socket (exit code 3)."""


class ProtocolViolation(RlmmError):
    """The peer broke the framing or cut a bulk answer short; the connection is closed."""


def _leaves(branch: type[RlmmError]) -> list[type[RlmmError]]:
    return [
        leaf
        for sub in branch.__subclasses__()
        for leaf in ([sub] if sub.code else []) + _leaves(sub)
    ]


#: Wire code -> class: the socket's error table, made from the classes themselves.
BY_CODE: Final[Mapping[int, type[RlmmError]]] = MappingProxyType(
    {leaf.code: leaf for leaf in _leaves(RlmmError)}
)
assert len(BY_CODE) == len(_leaves(RlmmError)), "two errors share a wire code"


def from_wire(code: int, message: str, fields: Mapping[str, Any]) -> RlmmError:
    """Return the error that a peer sent; an unknown code keeps its branch by its hundreds."""
    branches = {1: RefusedError, 2: UnavailableError, 3: CorruptError}
    kind = BY_CODE.get(code) or branches.get(code // 100, RlmmError)
    return kind(message, **{str(name): value for name, value in fields.items()})


def first_of(errors: BaseExceptionGroup[RlmmError]) -> RlmmError:
    """Return the error that a group of tasks was raised by first."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RlmmError)
    return error
