"""Log lines for each change of a metadata partition's state, with its cause; repeats held down."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import structlog

from rlmm_daemon.core.readiness import follower_inputs as inputs
from rlmm_daemon.core.readiness.follower_inputs import Input
from rlmm_daemon.core.readiness.follower_roles import Following
from rlmm_daemon.core.readiness.states import Failure, PartitionState
from rlmm_daemon.domain.ids import MetadataPartition

#: Of one partition in so many seconds; then changes are counted, and the last one is told.
LINES_MAX: Final = 6
SECONDS: Final = 60.0
#: How soon a silence is told, or what was held back.
_LOOK_SECONDS: Final = 1.0
_CAUSES: Final[dict[type, str]] = {
    inputs.Retry: "an operator has it tried again",
    inputs.Rebuild: "an operator has it rebuilt",
    inputs.LossAccepted: "an operator accepted a loss",
    inputs.OtherLog: "the log is another one",
    inputs.Damaged: "a table of its snapshot is damaged",
    inputs.Recheck: "what was read before became known",
    inputs.WrittenDown: "the log is being mended",
    inputs.Obeyed: "it begins with what was ordered",
    inputs.Refused: "the log has cut its snapshot off",
    inputs.Doubted: "its log was held against the one that was known",
    inputs.PositionAnswered: "the log answered for what was read before",
    inputs.Checked: "what was read before is confirmed",
    inputs.Compared: "what was known is compared with what came",
    inputs.Forgotten: "all that was missing came again",
    inputs.Judged: "what was read of the log was judged",
    inputs.Trimmed: "the log's head is gone",
    inputs.Untrimmed: "the log has its head again",
    inputs.Moved: "the log moved",
    inputs.Dropped: "the fold was given up",
    inputs.Broken: "no reading mends it",
}
_SILENT: Final = "the log has been silent"
_HEARD: Final = "the log is heard again"

logger = structlog.get_logger(__name__)


class Followed(Protocol):
    """A follower, as far as its state is told."""

    @property
    def state(self) -> PartitionState:
        """As of now, a silence included."""

    @property
    def failure(self) -> Failure | None:
        """Why it failed."""

    @property
    def states(self) -> "StateLog":
        """Its own lines."""


class StateLog:
    """Of one partition."""

    def __init__(self, partition: MetadataPartition, monotonic: Callable[[], float]) -> None:
        self._partition, self._now = partition, monotonic
        self._told = PartitionState.UNASSIGNED
        self._cause = ""
        self._since = float("-inf")
        self._lines = self._left_out = 0

    def changed(self, now: Following, given: Input, position: int) -> None:
        """A step was taken, which may have changed the state."""
        if now.state is self._told:
            return
        self._cause = _CAUSES[type(given)]
        if self._held_down():
            self._left_out += 1
        else:
            self._tell(now.state, self._cause, now.failure, position)

    def looked(self, state: PartitionState, failure: Failure | None) -> None:
        """Tell of a silence, which no step tells of, and of what was held back."""
        known = state is self._told and not self._left_out
        if known or self._told is PartitionState.UNASSIGNED or self._held_down():
            return
        cause = self._cause
        if state is PartitionState.STALE:
            cause = _SILENT
        elif self._told is PartitionState.STALE:
            cause = _HEARD
        self._tell(state, cause, failure, None)

    def _held_down(self) -> bool:
        if (now := self._now()) - self._since >= SECONDS:
            self._since, self._lines = now, 0
        return self._lines >= LINES_MAX

    def _tell(
        self, state: PartitionState, cause: str, failure: Failure | None, position: int | None
    ) -> None:
        self._lines += 1
        line = logger.bind(
            metadata_partition=self._partition,
            state=state.value,
            before=self._told.value,
            cause=cause,
            **({} if position is None else {"position": position}),
            **({"left_out": self._left_out} if self._left_out else {}),
        )
        begins = PartitionState.STARTING in (state, self._told) and failure is None
        self._told, self._left_out = state, 0
        if failure is not None:
            line.error(
                "partition.state", reason=failure.reason.value, evidence=failure.evidence,
                command=failure.command(self._partition),
            )  # fmt: skip
        elif state is PartitionState.STALE:
            line.warning("partition.state")
        elif begins:
            line.debug("partition.state")
        else:
            line.info("partition.state")


async def keep_telling(followers: Callable[[], Iterable[Followed]]) -> None:
    """Look at every follower each second, for ever."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        for each in followers():
            each.states.looked(each.state, each.failure)
