"""A quorum's log as the daemon's event log: every daemon has a replica, voters or not."""

from rlmm_daemon.adapters.quorum.event_log.log import QuorumLog
from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions

__all__ = ["QuorumLog", "QuorumLogOptions"]
