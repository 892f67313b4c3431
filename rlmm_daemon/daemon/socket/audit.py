"""Audit lines for each order that changes something: who gave it, and how it ended.

Uid and pid are the kernel's word (SO_PEERCRED), the client's name is its own: `rlmm` says there
which command was typed and by whom. An order that the process did not survive has the first alone.
"""

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import structlog

from rlmm_daemon.codec import api, records
from rlmm_daemon.daemon.base.outcomes import outcome_told
from rlmm_daemon.daemon.socket.greeting import Introduction, Role
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import UUID_BYTES, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata

T = TypeVar("T")
#: How long the client waits, which is nobody's wish.
_TIMEOUT: Final = "timeout_ms"
#: A broker's job that makes something go for good.
BROKERS_DELETE: Final = "delete_log_segment_data"

log = structlog.get_logger(__name__)


def is_order(method: str, role: Role) -> bool:
    """Whether a job or an operator's request changes something: a broker's own jobs are no orders.

    Records that a client library appends are none either: each is an event of the log itself.
    """
    row = api.METHODS[method]
    return row.right is api.Right.ADMIN or (row.right is api.Right.WRITE and role is Role.OPERATOR)


async def audited(asker: Introduction, method: str, params: Any, work: Awaitable[T]) -> T:
    """Return what an order comes to, with its two lines in the log."""
    line = log.bind(
        order=method,
        uid=asker.uid,
        pid=asker.pid,
        client=asker.client,
        **{f"param_{name}": value for name, value in said(params).items()},
    )
    line.info("audit.order_begun")
    with outcome_told(lambda outcome: line.info("audit.order_ended", outcome=outcome)):
        return await work


async def audited_delete(asker: Introduction, params: api.RecordParams, work: Awaitable[T]) -> T:
    """Return what a broker's delete comes to, with one line: retention has thousands of them."""
    where = dict[str, str]()
    with suppress(RlmmError):  # its answer says what is wrong with it
        segment = records.decode(params.record)
        if isinstance(segment, SegmentMetadata):
            segment_id = uuid_text(segment.segment_id)
            where = {"partition": str(segment.partition), "segment_id": segment_id}
    line = log.bind(uid=asker.uid, pid=asker.pid, client=asker.client, **where)
    with outcome_told(lambda outcome: line.info("audit.segment_deleted", outcome=outcome)):
        return await work


def said(params: Any) -> dict[str, Any]:
    """Return what parameters say, as far as a line of a log holds it: no records, no paths."""
    found = dict[str, Any]()
    for name, value in msgspec.structs.asdict(params).items():
        if name == _TIMEOUT:
            continue
        if isinstance(value, bytes):
            if len(value) == UUID_BYTES:
                found[name] = uuid_text(value)
        elif isinstance(value, api.Partition):
            found[name] = str(value.to_domain())
        elif value is None or isinstance(value, bool | int | str):
            found[name] = value
    return found
