"""Metrics of this daemon's replica in a quorum, by KRaft's words."""

from typing import Final

from prometheus_client import CollectorRegistry, Gauge

#: In the place of a replica's id.
NOBODY: Final = -1


class QuorumMetrics:
    """A quorum's log, as this replica sees it. Nothing of it moves with another kind of log."""

    def __init__(self, into: CollectorRegistry) -> None:
        #: role: leader, follower, observer, and those of an election. KRaft's `current-state`.
        self.role = Gauge("rlmm_quorum_role", "1 for its present role.", ["role"], registry=into)
        self.leader = Gauge(
            "rlmm_quorum_leader",
            "Replica that leads, as far as is known; -1: nobody (KRaft's current-leader).",
            registry=into,
        )
        self.epoch = Gauge(
            "rlmm_quorum_epoch", "The newest epoch it knows (current-epoch).", registry=into
        )
        self.voters = Gauge(
            "rlmm_quorum_voters", "Voters that count (number-of-voters).", registry=into
        )
        self.heard = Gauge(
            "rlmm_quorum_voters_heard",
            "Voters that it hears, itself included: a follower, of others, its leader only.",
            registry=into,
        )
        self.end = Gauge(
            "rlmm_quorum_end_offset", "End of its own log (log-end-offset).", registry=into
        )
        self.committed = Gauge(
            "rlmm_quorum_committed_offset", "Committed before it (high-watermark).", registry=into
        )
        self.leader.set(NOBODY)
        self.epoch.set(NOBODY)
