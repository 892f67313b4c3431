"""`rlmm status`: the daemon on one screen."""

import time
from collections.abc import Mapping
from typing import Any, Final

import click

from rlmm_daemon.cli.asking import asking
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_facts, show_json, show_table
from rlmm_daemon.core import phrases

#: A request that met a bug makes `rlmm status` end with 1 for so long.
_BUG_ALARMS_SECONDS: Final = 3600.0


@click.command("status")
@daemon_options
def command(*, target: Target) -> None:
    """Show the daemon: its log, what the broker announced, segments, copies and tasks.

    Exit code 1 if a metadata partition failed, the log takes no writes (its disk is full, or no
    leader of the quorum is heard), the log or the storage has trouble or the storage is slow, a
    request met a bug within the last hour, another daemon runs under this broker id, nobody can
    tell which topics are paused, or a copy failed of a segment that somebody else finished.

    \b
    --json: version, broker_id, cluster_id, uptime_seconds, draining, log{open, topic_id,
    partition_count, trouble, unwritable, failure, quorum{replica, role, epoch, leader, voters[],
    heard[], needed, end, committed, checkpoint{epoch, end} or null, why} or null,
    compaction{done, failed, bytes_before, bytes_after, trouble} or null}, broker{announced,
    leads, follows, plugins{part: name}},
    metadata_partitions{state: count}, user_partitions, segments{state: count}, segment_bytes,
    memory{private_bytes, mapped_bytes, copying_process_private_bytes, snapshot_bytes,
    segments_in_memory, segments_in_snapshots, user_partitions_awake, user_partitions_asleep,
    events_put_aside, bytes_put_aside, bytes_per_segment}, copying_process{pid, in_hand},
    storage{kind, error, slow, other_daemon}, snapshots{rejected, failures}, copies[],
    copy_lag{segments, bytes, seconds, topics[], untold_partitions} or null (as rlmm top),
    paused{topics[{topic, since_ms}], trouble, refused},
    internal_errors{count, last{where, error, seconds_ago}}, unsettled_copies[{partition,
    segment_id, message, at_ms}], observation{watches, last_look_ms, trouble, seen_alive, marked,
    topics[]} or null, controllers{standing, trouble, at{epoch, end}, age_seconds, topics, brokers,
    unknown_kinds} or null, tasks[].
    """  # noqa: D301 - click's own mark
    with asking(target) as client:
        status = client.status()
    if target.json:
        show_json(status)
    else:
        _show(status)
    if _trouble(status):
        raise click.exceptions.Exit(Exit.TROUBLE)


def _trouble(status: dict[str, Any]) -> bool:
    log = status["log"]
    failed = status["metadata_partitions"].get("failed", 0)
    unknown = (status.get("paused") or {}).get("trouble")
    unwritable = log.get("unwritable")  # a daemon from before says nothing of it
    other = status["storage"].get("other_daemon")  # nor of it
    slow = status["storage"].get("slow")
    troubles = (failed, log["failure"], log["trouble"], unwritable, status["storage"]["error"])
    unsettled = status.get("unsettled_copies")  # a daemon from before says nothing of them
    return any((*troubles, other, slow, unsettled, unknown)) or _met_bug_lately(status)


def _met_bug_lately(status: dict[str, Any]) -> bool:
    last = status.get("internal_errors", {}).get("last")  # a daemon from before says nothing of it
    return last is not None and last["seconds_ago"] < _BUG_ALARMS_SECONDS


def _bugs(status: dict[str, Any]) -> dict[str, str]:
    """A line about the bugs that requests met, if there were any."""
    bugs = status.get("internal_errors", {})
    if not bugs.get("count"):
        return {}
    ago, where = phrases.duration(bugs["last"]["seconds_ago"]), bugs["last"]["where"]
    what = phrases.number(bugs["count"], "request")
    return {
        "internal errors": f"{what}; the last {ago} ago in {where}: {bugs['last']['error']}; "
        "the daemon's log has the traceback"
    }


def _show(status: dict[str, Any]) -> None:
    log, broker, storage = status["log"], status["broker"], status["storage"]
    show_facts(
        {
            "daemon": f"rlmm {status['version']}, up {phrases.duration(status['uptime_seconds'])}"
            + (", draining" if status["draining"] else ""),
            "broker": _broker(status),
            "event log": _log(log),
            **_quorum(log.get("quorum")),
            **_compaction(log.get("compaction")),
            **({"warning": "; ".join(log["warnings"])} if log.get("warnings") else {}),
            "announced": f"leads {broker['leads']:,}, follows {broker['follows']:,}"
            if broker["announced"]
            else "nothing yet: the broker's reads hear not_ready",
            "metadata partitions": _counts(status["metadata_partitions"]) or "none followed",
            "user partitions": status["user_partitions"],
            "segments": _segments(status),
            "memory": _memory(status["memory"]),
            "kept": _kept(status["memory"]),
            "storage": _storage(storage),
            **({"other daemon": other} if (other := storage.get("other_daemon")) else {}),
            "copies": len(status["copies"]),
            **({"not copied yet": waits} if (waits := waiting_words(status)) else {}),
            **_paused(status.get("paused")),
            **_bugs(status),
            **_unsettled(status.get("unsettled_copies") or []),
            **({"observed": _observed(status["observation"])} if status["observation"] else {}),
            **_controllers(status.get("controllers")),
            "tasks": len(status["tasks"]),
        }
    )
    if status["copies"]:
        click.echo()
        columns = ("copy of", "segment", "phase", "done", "age", "call in flight")
        rows = [_copy(job) for job in status["copies"]]
        show_table(columns, rows, fold=("copy of", "phase", "call in flight"))
    if log["failure"]:
        click.echo(f"\nNext: {log['failure']['command']}")


def waiting_words(status: Mapping[str, Any]) -> str | None:
    """Return what of the broker's closed segments the tier does not have; None: nothing is told."""
    lag = status.get("copy_lag")  # a daemon from before says nothing of it, nor without log_dirs
    if not lag:
        return None
    told = ""
    if lag["untold_partitions"]:
        told = f"; of {phrases.number(lag['untold_partitions'], 'partition')} it is not known"
    if not lag["segments"]:
        return f"none{told}"
    topics = ", ".join(f"{row['topic']} {phrases.size(row['bytes'])}" for row in lag["topics"])
    return (
        f"{phrases.number(lag['segments'], 'closed segment')}, {phrases.size(lag['bytes'])}, for "
        f"{phrases.duration(lag['seconds'])} at least ({topics}){told}"
    )


def _paused(paused: dict[str, Any] | None) -> dict[str, str]:
    """The topics of which no copy begins, if there are any."""
    if not paused or not (paused["topics"] or paused["trouble"]):
        return {}  # a daemon from before says nothing of it
    now_ms = time.time_ns() // 1_000_000
    topics = ", ".join(
        f"{each['topic']} since {phrases.ago(each['since_ms'], now_ms)}"
        for each in paused["topics"]
    )
    return {"paused": paused["trouble"] or f"{topics}; rlmm resume TOPIC ends it"}


def _unsettled(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Copies that failed of segments that somebody else finished."""
    if not rows:
        return {}
    last = rows[-1]
    where = f"{last['partition'].partition(':')[2]}, segment {last['segment_id']}"
    count = phrases.number(len(rows), "copy", "copies")
    return {
        "alarm": f"{count} failed of segments that somebody else finished, last {where}; "
        "next: rlmm storage verify"
    }


def _storage(storage: dict[str, Any]) -> str:
    slow = storage.get("slow")  # a daemon from before says nothing of it
    error = f": {storage['error']}" if storage["error"] else ""
    return f"{storage['kind']}{error}" + (f"; slow: {slow}" if slow else "")


def _observed(observation: dict[str, Any]) -> str:
    """The clocks of topics that the brokers call unknown; `rlmm cleanup` has each."""
    if observation["trouble"]:
        return f"the last look failed: {observation['trouble']}"
    if not observation["watches"]:
        return "by another daemon"
    topics = phrases.number(len(observation["topics"]), "topic")
    return f"{topics} unknown to every broker, {observation['marked']:,} marked"


def _controllers(told: dict[str, Any] | None) -> dict[str, str]:
    """A line about the controllers' log, where it is followed."""
    if told is None:
        return {}
    if told["standing"] != "current":
        why = f": {told['trouble']}" if told["trouble"] else ""
        return {"controllers": f"{told['standing']}, so brokers alone say what is deleted{why}"}
    at, topics = told["at"], phrases.number(told["topics"], "topic")
    age = phrases.duration(told["age_seconds"])
    return {"controllers": f"{topics} at offset {at['end']:,} of epoch {at['epoch']}, {age} ago"}


def _log(log: dict[str, Any]) -> str:
    if log["failure"]:
        return f"failed, {log['failure']['reason']}: {log['failure']['evidence']}"
    if not log["open"]:
        return f"not open: {log['trouble']}"
    written = f"; takes no writes: {log['unwritable']}" if log.get("unwritable") else ""
    return f"{log['topic_id']}, {phrases.number(log['partition_count'], 'partition')}{written}"


def _quorum(told: dict[str, Any] | None) -> dict[str, str]:
    """A line about this daemon's replica, where a quorum keeps the log."""
    if told is None:
        return {}
    if told["role"] is None:
        return {"quorum": f"this replica is not open: {told['why']}"}
    led = "nobody leads" if told["leader"] is None else f"replica {told['leader']} leads"
    voters = ", ".join(map(str, told["voters"]))
    heard = ", ".join(map(str, told["heard"])) or "none"
    made = told.get("checkpoint")  # a daemon from before says nothing of it
    return {
        "quorum": f"replica {told['replica']}, {told['role']} in epoch {told['epoch']}; {led}; "
        f"hears {heard} (voters {voters}; {told['needed']} decide); "
        f"committed to {told['committed']:,}, its log ends at {told['end']:,}"
        + (f"; newest checkpoint to {made['end']:,}" if made else "")
    }


def _compaction(done: dict[str, Any] | None) -> dict[str, str]:
    """A line about the log's compaction since the start, if there was any."""
    if done is None or not (done["done"] or done["trouble"]):
        return {}
    sizes = f"{phrases.size(done['bytes_before'])} became {phrases.size(done['bytes_after'])}"
    times = phrases.number(done["done"], "time")
    trouble = f"; the last one failed: {done['trouble']}" if done["trouble"] else ""
    return {"compacted": (f"{times}, {sizes}" if done["done"] else "not yet") + trouble}


def _copy(job: dict[str, Any]) -> tuple[object, ...]:
    return (
        job["partition"].partition(":")[2],
        job["segment_id"],
        job["phase"],
        f"{phrases.size(job['bytes_done'])} of {phrases.size(job['bytes_total'])}",
        phrases.duration(job["age_seconds"]),
        job["call"] or None,
    )


def _segments(status: dict[str, Any]) -> str:
    counts = status["segments"]
    return (
        f"{counts['COPY_SEGMENT_FINISHED']:,} finished ({phrases.size(status['segment_bytes'])}), "
        f"{counts['COPY_SEGMENT_STARTED']:,} being copied, "
        f"{counts['DELETE_SEGMENT_STARTED']:,} being deleted"
    )


def _memory(memory: dict[str, Any]) -> str:
    if memory["private_bytes"] is None:
        return "unknown"
    each, copying = memory["bytes_per_segment"], memory.get("copying_process_private_bytes")
    return (
        f"{phrases.size(memory['private_bytes'])} private, "
        f"{phrases.size(memory['mapped_bytes'])} mapped"
        + ("" if each is None else f", {phrases.size(each)} per segment")
        + (f", {phrases.size(copying)} in the process for copies" if copying else "")
    )


def _kept(memory: dict[str, Any]) -> str:
    aside = memory["events_put_aside"]
    return (
        f"{memory['segments_in_snapshots']:,} segments in snapshots, "
        f"{memory['segments_in_memory']:,} in memory"
        + (f", {aside:,} events put aside" if aside else "")
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name.lower()}" for name, count in counts.items())


def _broker(status: dict[str, Any]) -> str:
    names = [status["broker_id"], status["cluster_id"]]
    broker, cluster = ("-" if name is None else str(name) for name in names)
    return f"{broker} of cluster {cluster}"
