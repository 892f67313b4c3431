"""`rlmm storage`: what the remote storage allows, and whether it holds what the log says."""

import asyncio
import json
import random
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.options import config_option, json_option
from rlmm_daemon.cli.output import cell, show_json, show_table
from rlmm_daemon.codec.marker import MARKER_KEY, presence_key
from rlmm_daemon.config import Config, NoStorage, S3Storage, load
from rlmm_daemon.core import phrases
from rlmm_daemon.core.storage.layout import Layout, object_key
from rlmm_daemon.daemon.bucket.storage_clock import CLOCK_KEY
from rlmm_daemon.domain.errors import RlmmError, StorageNotConfigured
from rlmm_daemon.domain.ids import Offset, SegmentId, TopicId, TopicIdPartition
from rlmm_daemon.ports.storage import ProbeResult

if TYPE_CHECKING:
    from rlmm_daemon.offline.marker_rebuilding import Outcome
    from rlmm_daemon.offline.verification import Verified


@click.group("storage")
def command() -> None:
    """Check the remote storage."""


@command.command("doctor", short_help="Try every operation of the storage; say what is denied.")
@config_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="As in rlmm run.")
@json_option
def doctor(file: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Try every operation on a canary of our own, and say what a denied one needs.

    Writes, reads and deletes below _rlmm/probe/ only. Of what the daemon writes besides (marker,
    presence file, the storage's clock, a segment below the prefix) the right to write is tried, by
    a write under a condition that does not hold; a storage that knows no conditions is not asked,
    and the step says so. Not tried: the right to read and delete segments, and what the nightly job
    writes. Exit code 1 if anything is not allowed.

    --json: {steps: {name: null or {error, message, fields}}, policy: object or null}; the policy
    allows what was denied, for AWS IAM and servers that take its form.
    """
    config = load(file, overrides)
    result = asyncio.run(_probed(config))
    policy = _policy(config, result)
    if as_json:
        show_json({"steps": {n: _error(e) for n, e in result.results.items()}, "policy": policy})
    else:
        rows = [(name, _verdict(error)) for name, error in result.results.items()]
        show_table(("step", "outcome"), rows, fold=("outcome",))
        if policy is not None:
            click.echo("\nThe policy that allows what was denied:")
            click.echo(json.dumps(policy, indent=2))
    if any(error is not None for error in result.results.values()):
        raise click.exceptions.Exit(Exit.TROUBLE)


@command.command("verify", short_help="Compare the storage with the event log.")
@config_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="As in rlmm run.")
@click.option("--topic", metavar="TOPIC", help="Of this topic only.")
@json_option
def verify(file: str, overrides: tuple[str, ...], topic: str | None, *, as_json: bool) -> None:
    """List the storage, read the whole event log, and say in what the two differ.

    Beside a daemon that runs or without one; writes and deletes nothing. The listing comes first,
    and what it lacks is looked at again before it is called missing. Needs memory for every
    segment and object: for very large clusters there is the nightly reconcile. Exit code 1 if
    anything of high severity was found, data that consumers can't read, or if the log lacks events
    that nobody accepted as lost: what is called an orphan may be theirs then.

    A quorum's log is read from this daemon's replica, as far as it is settled: by a leader's word,
    or by what daemons had read. Without a leader no orphan is called one.

    --json: {objects, segments, trimmed, lacking: {metadata partition: what}, replica: null or
    {directory, settled, end, whole, unsettled}, untold, uploads_unlisted, advice, counts: {kind:
    rows}, findings: [{kind, severity, partition, segment_id, key, facts, meaning, action}]};
    uploads_unlisted is null, or why nothing is said of incomplete uploads; advice, where objects
    are missing, says whether that may be another bucket or directory, or which command ends such a
    segment.
    """
    config = load(file, overrides)
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.core.disposal.findings import RULES, Finding, Severity
    from rlmm_daemon.offline import verification

    found = verification.run(config, topic)
    counts = Counter(row.judged.kind for row in found.rows)
    if as_json:
        show_json(
            {
                "objects": found.objects,
                "segments": found.segments,
                "trimmed": found.trimmed,
                "lacking": found.lacking,
                "replica": None if found.replica is None else asdict(found.replica),
                "untold": found.untold,
                "uploads_unlisted": found.uploads_unlisted,
                "advice": found.advice(),
                "counts": {kind.value: count for kind, count in counts.items()},
                "findings": [verification.told(row) for row in found.rows],
            }
        )
    else:
        objects = phrases.number(found.objects, "object")
        segments = phrases.number(found.segments, "segment")
        click.echo(f"{objects} compared with {segments} of the log")
        _show_doubts(found)
        if found.uploads_unlisted is not None:
            click.echo(f"Incomplete uploads were not looked for: {found.uploads_unlisted}")
        _show_findings(found)
        if (advice := found.advice()) is not None:
            click.echo(advice)
        if not (found.lacking or found.untold or counts.keys() - {Finding.UNKNOWN_KEY}):
            click.echo("Of segments they agree." if counts else "They agree.")
    if found.lacking or any(RULES[kind].severity is Severity.HIGH for kind in counts):
        raise click.exceptions.Exit(Exit.TROUBLE)


def _show_findings(found: "Verified") -> None:
    """Show what is wrong with segments in rows, and of anything else only that it is there."""
    from rlmm_daemon.core.disposal.findings import RULES, Finding
    from rlmm_daemon.offline import verification

    # Somebody else's may be millions, and bury what is missing of ours.
    strange = [row for row in found.rows if row.judged.kind is Finding.UNKNOWN_KEY]
    ours = [row for row in found.rows if row.judged.kind is not Finding.UNKNOWN_KEY]
    columns = ("severity", "kind", "partition", "segment_id", "key", "facts")
    rows = [verification.told(row) for row in ours]
    if rows:
        show_table(columns, [[row[column] for column in columns] for row in rows])
    for kind in dict.fromkeys(row.judged.kind for row in ours):
        click.echo(f"{kind.value}: {RULES[kind].meaning}; {RULES[kind].action}")
    if strange:
        many = phrases.number(len(strange), "object")
        first = cell(min(row.key for row in strange))
        click.echo(
            f"{Finding.UNKNOWN_KEY.value}: {many} of names that no segment's object has, the first "
            f"{first}: no part of a segment, and nothing is damaged by it. Keep what is somebody "
            "else's out of the prefix (--json names each)"
        )


@command.command("rebuild-marker", short_help="Make a lost or damaged bucket marker anew.")
@config_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="As in rlmm run.")
@click.option(
    "--layout",
    "layouts",
    multiple=True,
    metavar="NUMBER=PREFIX",
    help="What a layout's number means, where nothing else says so; repeat it for others.",
)
@click.option(
    "--objects-are-gone",
    is_flag=True,
    help="Of all finished segments; then it is no other bucket or directory.",
)
@click.option("--execute", is_flag=True, help="Write; without it nothing is written.")
@json_option
def rebuild_marker(
    file: str,
    overrides: tuple[str, ...],
    layouts: tuple[str, ...],
    *,
    objects_are_gone: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Work out a lost or damaged marker: which prefix each layout's number means.

    A dry run unless --execute. From the copy in the state directory, the whole event log (whose
    segments name numbers) and a listing of the whole storage (which shows their prefixes). What
    they say differently, or do not say, is yours to say by --layout, unless all that is there lies
    elsewhere. Refused where nothing is there of all the segments that the log says are finished:
    that is another bucket or directory. A marker that is in order is left alone, and a damaged one
    is put beside the new one. Daemons that run go on by themselves. Where no copy says which losses
    were accepted, a hold keeps everything that may have been held. Where the event log is gone as
    well, the copy alone tells, and all that is there is held: rlmm log restore comes next. Damage
    in the log's files is passed over, and told: rlmm log repair comes next. Of a quorum's log this
    daemon's replica is read, and damage in that ends it.

    --json: {present, layouts: [{number, prefix, named, found, sources}], unplaced: {prefix:
    segments}, trimmed, damaged: {metadata partition: place}, replica, copy_differs, copy_unread,
    holds_all, needed, written, former}. Exit code 0 either way.
    """
    config = load(file, overrides)
    told = dict(_layout(text) for text in layouts)
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.offline import marker_rebuilding

    asked = {"layouts": told, "objects_are_gone": objects_are_gone}
    with order(**asked) if execute else nullcontext():
        outcome = marker_rebuilding.run(
            config, told, execute=execute, objects_are_gone=objects_are_gone
        )
    if as_json:
        fields = asdict(outcome)
        fields["replica"] = None if outcome.replica is None else asdict(outcome.replica)
        show_json({"present": fields.pop("present"), "layouts": fields.pop("rows")} | fields)
        return
    _show_evidence(outcome)
    if outcome.written:
        _show_written(outcome)
    elif outcome.needed:
        click.echo("Nothing was written. Next: the same with --execute")
    elif outcome.present == "in order":
        click.echo("Nothing to do.")
    else:
        click.echo("No segment names a layout: the daemon makes a marker at its next start.")
    if outcome.copy_unread is not None:
        click.echo(outcome.copy_unread)
    if outcome.copy_differs:
        click.echo("The state directory's copy says otherwise: stop the daemon and remove its")
        click.echo(f"      {config.daemon.state_dir}/marker.json before it starts again.")


def _show_doubts(found: "Verified") -> None:
    """Say what of the log was not there to be compared."""
    if found.trimmed:
        click.echo("The log's beginning is gone in parts: an orphan there may be no orphan.")
    for number, what in found.lacking.items():
        click.echo(f"Metadata partition {number}: the log lacks events: {what}. An orphan of it")
        click.echo(
            "      may be a live segment's. Next: rlmm partitions; one that is ready stands on"
        )
        click.echo(
            f"      a snapshot: rlmm partition rebuild {number} (it says what mends the log)"
        )
    said = None if found.replica is None else found.replica.told()
    if said is not None:
        click.echo(f"{said[0].upper()}{said[1:]}.")
        click.echo(f"      Not told: {phrases.number(found.untold, 'finding')} that may be none.")


def _show_evidence(outcome: "Outcome") -> None:
    click.echo(f"_rlmm/marker.json: {outcome.present}")
    columns = ("layout", "prefix", "segments", "found", "said by")
    rows = [(r.number, r.prefix, r.named, r.found, ", ".join(r.sources)) for r in outcome.rows]
    if rows:
        show_table(columns, rows)
    for prefix, count in outcome.unplaced.items():
        click.echo(f"{phrases.number(count, 'unfinished copy')} under {prefix!r}, in no layout")
    if outcome.trimmed:
        click.echo("The log's beginning is gone in parts: it may have named further layouts.")
    if outcome.replica is not None and not outcome.replica.whole:
        click.echo(f"No leader says whether {outcome.replica.directory} has all of the quorum's")
        click.echo("      log: events that it lacks may have named further layouts.")
    for number, place in outcome.damaged.items():
        click.echo(f"The log is damaged, and may have named further layouts: {place}.")
        click.echo(f"      Next, once the marker is there: rlmm log repair {number}")


def _show_written(outcome: "Outcome") -> None:
    click.echo("Written. Daemons that run take it up within seconds.")
    if outcome.former is not None:
        click.echo(f"The former one is kept as {outcome.former}.")
    if outcome.holds_all:
        click.echo("Nobody knows what the lost one held, so all that is there now is held. If no")
        click.echo("      loss was ever accepted: rlmm partition end-hold --all --execute")


def _layout(text: str) -> tuple[int, str]:
    number, found, prefix = text.partition("=")
    if not found or not number.isascii() or not number.isdecimal() or int(number) < 1:
        raise click.BadParameter(f"{text!r} is not NUMBER=PREFIX", param_hint="--layout")
    return int(number), Layout(prefix).prefix


async def _probed(config: Config) -> ProbeResult:
    # Imported late: a wrong configuration is told before everything is loaded.
    from rlmm_daemon.wiring import adapters

    # The daemon may be at its own canary just now.
    owner = f"doctor-{config.daemon.broker_id}"
    storage = adapters.storage_of(config, random.Random(), owner=owner)  # noqa: S311 - jitter
    if storage is None:
        raise StorageNotConfigured('storage.kind is "none": there is nothing to check')
    try:
        return await storage.backend.probe(_written(config))
    finally:
        await storage.backend.close()


def _written(config: Config) -> list[str]:
    """Return what the daemon writes, whose rights a policy may give apart: of segments, a nobody's.

    None of these is written by a probe.
    """
    prefix = "" if isinstance(config.storage, NoStorage) else config.storage.prefix
    partition = TopicIdPartition(TopicId(bytes(16)), "rlmm-storage-doctor", 0)
    nobodys = object_key(Layout(prefix), partition, Offset(0), SegmentId(bytes(16)), suffix=".log")
    return [MARKER_KEY, presence_key(config.daemon.broker_id), CLOCK_KEY, nobodys]


def _policy(config: Config, result: ProbeResult) -> dict[str, Any] | None:
    """Return what allows the denied steps; None for other storages and other troubles."""
    from rlmm_daemon.adapters.storage.s3 import policy

    denied = [
        name
        for name, error in result.results.items()
        if error is not None and error.fields.get("reason") == "denied"
    ]
    if not denied or not isinstance(config.storage, S3Storage):
        return None
    storage = config.storage
    return policy(
        storage.bucket,
        denied,
        region=storage.region,
        kms_key_id=storage.sse_kms_key,
        tags=bool(storage.tags),
    )


def _error(error: RlmmError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"error": error.wire_name(), "message": error.message, "fields": error.fields}


def _verdict(error: RlmmError | None) -> str:
    return "ok" if error is None else error.message
