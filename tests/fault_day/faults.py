"""Faults of a day, and where each is found: an alert, the page, `rlmm explain`, its command.

`test_day.py` holds each of them against a real daemon; `docs/fault-day.md` has them as a table.
"""

from typing import Final

import msgspec

from tests.docs.tables import table

#: Consequences of a storage that takes or gives nothing.
_OF_THE_STORAGE: Final = ("RlmmCopiesFail",)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault that is really brought about."""

    name: str
    #: How it is brought about here.
    made: str
    #: The alert that names it.
    alert: str
    #: Others of severity `page` that may fire as well: each says what is true.
    also: tuple[str, ...] = ()
    #: Words of the page below "What is wrong".
    page: str
    #: What `rlmm explain` calls it, as cause or besides it.
    cause: str
    command: str
    #: What that command says of it.
    says: str
    #: What ends it, by what the command says.
    ends: str


SLOW: Final = Fault(
    name="S3 is slow",
    made="each answer of the S3 server comes 2.5 s later",
    alert="RlmmStorageSlow",
    page="The storage is slow",
    cause="storage_slow",
    command="rlmm doctor",
    says="it is slow",
    ends="nothing has to be done once the way to S3 is quick again",
)
SILENT: Final = Fault(
    name="S3 is down",
    made="each connection to the S3 server is reset",
    alert="RlmmStorageSilent",
    also=_OF_THE_STORAGE,
    page="the connection failed",
    cause="storage_trouble",
    command="rlmm doctor",
    says="the connection failed",
    ends="nothing has to be done once S3 answers again",
)
FULL: Final = Fault(
    name="The disk is full",
    made="the state directory's file system is filled to the last byte",
    alert="RlmmLogUnwritable",
    also=("RlmmAppendsFail", *_OF_THE_STORAGE),
    page="Writes are refused: No space left on device",
    cause="log_takes_no_writes",
    command="rlmm doctor",
    says="free disk",
    ends="make room in the directory that it names",
)
FOREIGN: Final = Fault(
    name="The marker is foreign",
    made="the configuration names another cluster's bucket",
    alert="RlmmMarkerRefused",
    also=_OF_THE_STORAGE,
    page="belongs to cluster 'another-cluster'",
    cause="storage_trouble",
    command="rlmm doctor",
    says="of cluster another-cluster",
    ends="name this cluster's own bucket in the configuration, and start the daemon anew",
)
KILLED: Final = Fault(
    name="The daemon is killed",
    made="SIGKILL",
    alert="RlmmDown",
    page="",
    cause="daemon_unreachable",
    command="systemctl start rlmm-daemon",
    says="",
    ends="that command",
)
BROKER: Final = Fault(
    name="The broker is gone",
    made="SIGKILL of the Kafka node that leads `__remote_log_metadata`",
    alert="RlmmNoLeader",
    also=("RlmmAppendsFail", "RlmmCopiesFail", "RlmmNotReady"),
    page="The event log has not answered",
    cause="quiet",
    command="rlmm doctor",
    says="connecting to broker",
    ends="start the broker",
)
MINORITY: Final = Fault(
    name="The quorum has lost its majority",
    made="the daemons of two replicas of three are stopped",
    alert="RlmmQuorumLeaderless",
    also=("RlmmAppendsFail", "RlmmCopiesFail", "RlmmNotReady"),
    page="Writes are refused: no leader of the quorum is known",
    cause="quorum_takes_no_writes",
    command="rlmm status",
    says="nobody leads; hears 1 (voters 1, 2, 3; 2 decide)",
    ends="start the daemons of the voters that it does not hear",
)
FAULTS: Final = (SLOW, SILENT, FULL, FOREIGN, KILLED, BROKER, MINORITY)


def rows() -> str:
    """Return the table of `docs/fault-day.md`."""
    heads = ("fault", "alert", "the page", "`rlmm explain`", "next command", "what ends it")
    return table(
        heads,
        [
            (
                f"{each.name}: {each.made}",
                f"[{each.alert}](alerts.md#{each.alert.lower()})",
                f'"{each.page}"' if each.page else "is not there",
                f"`{each.cause}`",
                f"`{each.command}`" + (f', which says "{each.says}"' if each.says else ""),
                each.ends,
            )
            for each in FAULTS
        ],
    )
