"""Sections of the operator's runbook: what stays safe while something failed, and what ends it.

`docs/runbook.md` is made of these and of the rows of `causes`. N is the number of a metadata
partition; commands stand between backquotes.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec


class Ending(msgspec.Struct, frozen=True):
    """Steps that end a failure, in their order."""

    #: The case in which these are the steps; "" if there is only one.
    case: str
    steps: str


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, for whoever has to end it."""

    #: What goes on meanwhile, and what nobody touches.
    safe: str
    #: Where to look before anything is done.
    look: str
    endings: tuple[Ending, ...]


_ALL: Final = (
    "Nothing is answered about any partition, no segment is copied, and no object is deleted: "
    "neither by the cleaner nor by the nightly job."
)
_ONE: Final = (
    "Nothing is answered about this metadata partition, and neither cleaner nor nightly job "
    "deletes any of its objects. The other metadata partitions serve."
)
_NEWER: Final = "`rlmm --version` says which version this is; the evidence names the file."

RUNBOOK: Final[Mapping[str, Section]] = MappingProxyType(
    {
        "log_missing": Section(
            safe=f"{_ALL} The daemon makes no new log in its place by itself.",
            look="`rlmm doctor` says where the log was looked for, and whether that is mounted.",
            endings=(
                Ending(
                    "a disk is not mounted, or the configuration names another place",
                    "mount the disk or mend the configuration; the daemon goes on by itself",
                ),
                Ending("a copy of the log is there", "put it back; the daemon goes on by itself"),
                Ending(
                    "only snapshots are there",
                    "stop the daemon, `rlmm log restore`, start the daemon",
                ),
                Ending("nothing of it is left", "`rlmm partition accept-loss --all`"),
            ),
        ),
        "no_topic_id": Section(
            safe=f"{_ALL} Nothing is damaged.",
            look="`rlmm doctor` names the cluster's metadata.version.",
            endings=(Ending("", "upgrade the cluster (`kafka-features.sh upgrade`)"),),
        ),
        "partition_count_changed": Section(
            safe=f"{_ALL} The events of before lie where they were.",
            look="The evidence says both counts, and who remembers the other one.",
            endings=(
                Ending("the log is the wrong one", "name the right one in the configuration"),
                Ending(
                    "partitions were added to the topic, which is never to be done",
                    "`rlmm partition accept-loss --all` goes on without what lies elsewhere now",
                ),
            ),
        ),
        "segments_held": Section(
            safe=(
                f"{_ONE} Nothing deletes what is held: each of these segments was finished, and "
                "then marked for deletion as if its copy were stuck."
            ),
            look="`rlmm cleanup` shows what waits for it.",
            endings=(Ending("", "`rlmm log repair N`"),),
        ),
        "history_lost": Section(
            safe=_ONE,
            look=(
                "The evidence says which case it is: missing segments, deleted ones that came "
                "back, missing offsets, a lost head, or another log. `rlmm partitions` lists all "
                "that failed."
            ),
            endings=(
                Ending(
                    "segments that were known are missing: the log was cut, replaced or made anew",
                    "`rlmm log repair N`; where more may be lost than is known, as for missing "
                    "offsets; for what has no objects any more `rlmm partition accept-loss N`",
                ),
                Ending(
                    "deleted segments came back: the log lost the records of their deletion",
                    "`rlmm log recover N --execute`",
                ),
                Ending(
                    "offsets or a position are missing: nobody knows what stood there",
                    "`rlmm log recover N --execute`, then `rlmm partition accept-loss N`",
                ),
                Ending(
                    "the log starts later than it did: its head is gone; where the rest begins in "
                    "a later epoch than was read (Kafka), an unclean election may have cut off "
                    "what had been read: it is written to `N.lost` and compared, not gone on from",
                    "`rlmm log restore`, or `rlmm partition accept-loss N`; if a list of missing "
                    "segments is there, then `rlmm log recover N --execute`",
                ),
                Ending(
                    "the list of missing segments (`N.lost` in the state directory) can't be read",
                    "put it back from a copy, then `rlmm partition retry N`; else "
                    "`rlmm partition accept-loss N`",
                ),
                Ending(
                    "the whole log is another one: the topic or the directory was replaced; "
                    "`identity.json` or, where that is gone, `positions.json` in the state "
                    "directory names the one before",
                    "`rlmm log restore`; or, where a snapshot knew its segments, "
                    "`rlmm log recover N --execute`; what had been read beyond the snapshots is "
                    "given up by `rlmm partition accept-loss --all`",
                ),
            ),
        ),
        "log_corrupt": Section(
            safe=f"{_ONE} A repair keeps the damaged file, as `.corrupt`.",
            look=(
                "The evidence names file and byte, or the topic's offset. With the daemon stopped, "
                "`rlmm log verify DIR` reads every batch and shows whether there is more damage. "
                "See what the disk says of itself."
            ),
            endings=(
                Ending(
                    "the embedded log, files of the last clean stop are gone",
                    "stop the daemon, put them back from a copy, start it; else as the next one",
                ),
                Ending(
                    "the embedded log, directories of it changed places (`rlmm doctor` says so)",
                    "stop the daemon, rename each to the number of the metadata partition that its "
                    "events are of, start it; a repair mends nothing of that",
                ),
                Ending(
                    "the embedded log",
                    "`rlmm log repair N`, `rlmm log recover N --execute`, "
                    "`rlmm partition accept-loss N`",
                ),
                Ending(
                    "Kafka's log",
                    "let another replica lead (`kafka-leader-election.sh`), then "
                    "`rlmm partition retry N`; where the evidence names `unpacked_bytes_max`, set "
                    "that key higher and start the daemon again",
                ),
            ),
        ),
        "crash_loop": Section(
            safe=f"{_ONE} Nothing of it is known to be damaged.",
            look="The daemon's log has the traceback of each crash: report it.",
            endings=(Ending("", "`rlmm partition retry N`"),),
        ),
        "newer_log": Section(
            safe=f"{_ALL} The log is whole and was not touched.",
            look=_NEWER,
            endings=(Ending("", "start that version"),),
        ),
        "newer_state": Section(
            safe=f"{_ONE} The list was not touched.",
            look=_NEWER,
            endings=(Ending("", "start that version"),),
        ),
        "newer_snapshot": Section(
            safe=f"{_ONE} The event log is whole, and holds all that the snapshot holds.",
            look=_NEWER,
            endings=(
                Ending(
                    "", "start that version, or `rlmm partition rebuild N` reads the log instead"
                ),
            ),
        ),
        "log_unnamed": Section(
            safe=f"{_ALL} The log's segment files are not damaged: keep the directory.",
            look="`rlmm log name` says which log had been read, and changes nothing.",
            endings=(
                Ending(
                    "the state directory remembers the name",
                    "`rlmm log name --execute`; the daemon goes on by itself",
                ),
                Ending(
                    "nothing remembers it",
                    "put that file (`identity.json`) back from a copy; the daemon goes on by "
                    "itself",
                ),
            ),
        ),
        "log_foreign": Section(
            safe=f"{_ALL} The foreign log is left as it is, and nothing is given up for it.",
            look="`rlmm doctor` says which cluster each of them is of.",
            endings=(
                Ending(
                    "a directory of another cluster", "put this cluster's own back in its place"
                ),
                Ending(
                    "the configuration names the wrong one",
                    "mend `event_log`, `daemon.cluster_id` or `daemon.state_dir`, whichever is "
                    "wrong, and start the daemon again",
                ),
            ),
        ),
        "presence_unread": Section(
            safe=f"{_ONE} All objects are held, and the file is not written over.",
            look=(
                "The evidence names the file, below `_rlmm/daemons/` in the bucket. Is its broker "
                "still there? `rlmm log recover N` looks for what the log may lack."
            ),
            endings=(
                Ending(
                    "another broker's daemon runs",
                    "nothing: it writes the file anew within a minute; one of a newer version is "
                    "read by that version",
                ),
                Ending(
                    "a copy of the file is there (a bucket with versions has one)",
                    "put it back; the daemon goes on by itself",
                ),
                Ending(
                    "nothing of it is left",
                    "`rlmm log recover N --execute`, then `rlmm partition accept-loss N`; of this "
                    "daemon's own file `rlmm partition accept-loss --all` then",
                ),
            ),
        ),
        "not_read_failed": Section(
            safe=f"{_ONE} Nobody can tell whether the partition that was asked for lies in it.",
            look="`rlmm partitions` names each that failed, and why.",
            endings=(Ending("", "as its own reason says, which the evidence names"),),
        ),
        "file_unusable": Section(
            safe=(
                "It is no failure: the file is tried again and again, and all goes on by itself "
                "once it can be used. Until then nothing is answered about this metadata partition."
            ),
            look="`ls -l` of the file that the sentence names; the kernel's log, for its disk.",
            endings=(
                Ending("rights", "let the daemon's user read and write it"),
                Ending("a failing disk", "mend the disk, or put the file back from a copy"),
                Ending(
                    "a snapshot", "`rlmm partition rebuild N` gives it up: the log is read instead"
                ),
                Ending(
                    "a file of the event log that can't be read any more",
                    "stop the daemon, save what can be read (`dd if=FILE of=FILE.new bs=4096 "
                    "conv=noerror,sync`), give it the owner (`chown --reference=FILE FILE.new`), "
                    "move it to the name, and start: the rest is `log_corrupt` or `history_lost`",
                ),
            ),
        ),
        "offline_log_corrupt": Section(
            safe="No daemon runs, so nothing changes. `rlmm explain` only reads its files.",
            look="`rlmm log verify DIR` shows every damaged batch.",
            endings=(Ending("", "start the daemon; then it is `log_corrupt`"),),
        ),
        "offline_history_lost": Section(
            safe="No daemon runs, so nothing changes. `rlmm explain` only reads its files.",
            look="The evidence says up to where the log had been read, and where its files end.",
            endings=(Ending("", "start the daemon; then it is `history_lost`"),),
        ),
    }
)
