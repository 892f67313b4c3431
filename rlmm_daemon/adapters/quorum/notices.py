"""Alarms of a replica, counted by kind and logged now and then, and whom it can't reach."""

from typing import Final

import structlog

from rlmm_daemon.adapters.quorum.links import Unreachable
from rlmm_daemon.adapters.quorum.rare_log import RareLog

_STRANGER: Final = "stranger"


class Notices:
    """Those of one replica."""

    def __init__(self, alarms: dict[str, int]) -> None:
        """`alarms` are counted there."""
        self._alarms = alarms
        self._log = RareLog(structlog.get_logger(__name__))

    def alarm(self, kind: str, message: str) -> None:
        """Count what no healthy quorum does; strangers may cause it as often as they like."""
        self._alarms[kind] = self._alarms.get(kind, 0) + 1
        self._log.warning("a quorum is not in health", about=kind, kind=kind, what=message)

    def missed(self, replica: int | None, error: Unreachable) -> None:
        """Tell why a replica was not reached; somebody else in its place is an alarm."""
        if error.unproven:
            self.alarm(_STRANGER, f"in the place of replica {replica}: {error}")
        else:
            self._log.warning(
                "a replica is not reached", about=f"{replica}", replica=replica, why=str(error)
            )
