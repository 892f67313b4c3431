"""`rlmm log`: check, seal and repair the event log."""

from typing import Any

import click
import msgspec

from rlmm_daemon.cli.asking import asking_log
from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.mend.log_copy import copy
from rlmm_daemon.cli.mend.log_name import name
from rlmm_daemon.cli.mend.log_restore import restore
from rlmm_daemon.cli.options import Target, daemon_options, json_option
from rlmm_daemon.cli.output import show_empty, show_json, show_table
from rlmm_daemon.core import phrases
from rlmm_daemon.offline.ownership import given_to_owner


@click.group("log")
def command() -> None:
    """Check, seal, copy, name, restore and repair the event log."""


command.add_command(copy)
command.add_command(name)
command.add_command(restore)


@command.command("verify", short_help="Check every batch of a log's files.")
@click.argument("directory", metavar="DIR")
@json_option
def verify(directory: str, *, as_json: bool) -> None:
    """Read every batch of a log's files; needs no daemon and changes nothing.

    DIR is an embedded log's directory, by default `log` in the state directory; or a quorum's
    replica's, or a copy of one. All partitions share a replica's files, checkpoints among them, so
    their number and that of batches stand in each row, and damage ends the command, by file and
    byte. Whether most voters have what is there, no file says. A torn tail is what a
    crash leaves and the next start trims; what compactions dropped is counted, and no damage. Exit
    code 1 if anything is corrupt, or misplaced: in another metadata partition's directory.

    --json: an array of {partition, range{start, end}, files, batches, records, dropped,
    preallocated_bytes, findings[{file, position, reason, kind}]}.
    """
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.adapters.event_log.embedded.misplaced import MISPLACED
    from rlmm_daemon.offline import answers

    reports = [msgspec.to_builtins(report) for report in answers.verify_log(directory)]
    if as_json:
        show_json(reports)
    else:
        told = ("partition", "offsets", "files", "batches", "records", "dropped", "ahead")
        shown = [report for report in reports if report["records"] or report["findings"]]
        show_table((*told, "verdict"), [_row(report) for report in shown])
        show_empty(len(reports) - len(shown))
        found = [finding for report in reports for finding in report["findings"]]
        if found:
            click.echo()
            rows = [(at["kind"], at["file"], at["position"], at["reason"]) for at in found]
            show_table(("kind", "file", "byte", "reason"), rows, fold=("file", "reason"))
    kinds = {at["kind"] for report in reports for at in report["findings"]}
    if "misplaced" in kinds and not as_json:
        click.echo()
        click.echo(f"Next: {MISPLACED}")
    if kinds - {"torn_tail"}:
        raise click.exceptions.Exit(Exit.TROUBLE)


def _row(report: dict[str, Any]) -> tuple[object, ...]:
    kinds = {finding["kind"] for finding in report["findings"]}
    order = {"corrupt": "corrupt", "misplaced": "misplaced", "torn_tail": "torn tail"}
    verdict = next((told for kind, told in order.items() if kind in kinds), "whole")
    return (
        report["partition"],
        f"{report['range']['start']} to {report['range']['end']}",
        report["files"],
        report["batches"],
        report["records"] - report["dropped"],
        report["dropped"] or None,
        phrases.size(report["preallocated_bytes"]),
        verdict,
    )


@command.command("seal", short_help="Close every file of an embedded log, for Kafka's tools.")
@click.argument("directory", metavar="DIR")
@json_option
def seal(directory: str, *, as_json: bool) -> None:
    """Close every file of an embedded log that no daemon uses, so that Kafka's tools read it all.

    --json: {sealed: partitions}.
    """
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.offline import answers

    with order(directory=directory), given_to_owner(directory):
        sealed = answers.seal_log(directory)
    if as_json:
        show_json({"sealed": sealed})
    else:
        click.echo(f"sealed {phrases.number(sealed, 'partition')}")


@command.command("repair", short_help="Mend a failed metadata partition, or all that failed.")
@click.argument("number", metavar="[N]", type=click.IntRange(min=0), required=False)
@daemon_options
def repair(number: int | None, *, target: Target) -> None:
    """Let the daemon mend a failed metadata partition N, or all that failed.

    A corrupt file is kept aside as .corrupt; what it lost stays lost, and the partition failed,
    until rlmm log recover and rlmm partition accept-loss. Finished segments that the log lost and
    the daemon still knows are appended again, unless the log holds their end, may have held it in
    what it lost, or their objects are not whole. It answers when the partition was judged anew; a
    long replay goes on. Exit code 1 if a partition is still failed, if not all of it could be done,
    or if a partition is read for so long, as after a start, that it is not known yet.

    --json: {repaired: [{metadata_partition, reason, appended, state, next, ...}], not_known:
    partitions, not_read: [{metadata_partition, before_offset}] (they went on from a snapshot)}.
    """
    with asking_log(target) as client:
        answer = client.log_repair(number)
    rows, unknown = answer["repaired"], answer.get("not_known", ())
    if target.json:
        show_json(answer)
    elif rows:
        columns = ("partition", "had failed of", "events appended", "now", "trouble")
        show_table(
            columns,
            [
                (
                    row["metadata_partition"],
                    row["reason"],
                    row["appended"],
                    row["state"],
                    row.get("error"),
                )
                for row in rows
            ],
            fold=("trouble",),
        )
        if any(row["state"] == "replaying" for row in rows):
            click.echo("Next: rlmm partitions")
        for row in rows:
            if row.get("next"):
                click.echo(f"Next: {row['next']}")
    elif not unknown:
        click.echo("nothing has failed")
        for row in answer.get("not_read", ()) if number is not None else ():
            click.echo(
                f"metadata partition {number} went on from a snapshot: its log was not read before "
                f"offset {row['before_offset']}. If rlmm log verify finds damage there, have it "
                f"read first: rlmm partition rebuild {number}"
            )
    if unknown and not target.json:
        named = ", ".join(map(str, unknown))
        click.echo(f"not known yet, as they are still being read: metadata partitions {named}")
        click.echo("Next: rlmm partitions")
    if unknown or any(row.get("error") for row in rows):
        raise click.exceptions.Exit(Exit.TROUBLE)


@command.command("recover", short_help="Put back segments that the log may have lost.")
@click.argument("number", metavar="N", type=click.IntRange(min=0))
@click.option("--execute", is_flag=True, help="Do it; without this, only say what there is.")
@daemon_options
def recover(number: int, *, execute: bool, target: Target) -> None:
    """Put segments of metadata partition N back whose COPY_SEGMENT_FINISHED the log lost.

    Looked for are those that were known to be finished, and copies whose beginning alone is known.
    One comes back only if all its objects are there: sizes, each batch of its .log, and checksums
    where recorded. The rest is listed; its objects stay. Exit code 1 if some of it is not whole.

    Segments that had been deleted, and that came back since the log lost that, are ended again: if
    none of their objects is there. No object is ever removed by it.

    --json: {metadata_partition, executed, put_back[] or can_be_put_back[], not_whole[],
    ended[] or can_be_ended[], came_back[], may_have_ended, not_looked_at,
    next: the command that is named then, or null}.
    """
    with asking_log(target) as client:
        answer = client.log_recover(number, execute=execute)
    if target.json:
        show_json(answer)
    else:
        _show_recovery(answer, number)
    if answer["not_whole"] or answer["not_looked_at"]:
        raise click.exceptions.Exit(Exit.TROUBLE)


def _show_recovery(answer: dict[str, Any], number: int) -> None:
    whole = answer["put_back" if answer["executed"] else "can_be_put_back"]
    word = "put back" if answer["executed"] else "can be put back"
    rows = [(*_segment_of(row), word) for row in whole]
    rows += [(*_segment_of(row), row["reason"]) for row in answer["not_whole"]]
    gone = answer.get("ended" if answer["executed"] else "can_be_ended", ())
    word = "deletion recorded again" if answer["executed"] else "was deleted: can be ended"
    rows += [(*_segment_of(row), word) for row in gone]
    rows += [(*_segment_of(row), row["reason"]) for row in answer.get("came_back", ())]
    columns = ("partition", "segment", "offsets", "bytes", "what becomes of it")
    show_table(columns, rows, fold=("what becomes of it",))
    if not rows:
        click.echo("no segment is known that may have been finished in what was lost")
    if answer.get("may_have_ended"):
        click.echo("a deletion of them may have stood in what was lost: consumers see them again")
    if answer["not_looked_at"]:
        click.echo(f"{answer['not_looked_at']:,} more were not looked at: ask again")
    if (whole or gone) and not answer["executed"]:
        click.echo("nothing was done; --execute does it")
        click.echo(f"Next: rlmm log recover {number} --execute")
    elif answer["next"]:
        click.echo(f"Next: {answer['next']}")


def _segment_of(row: dict[str, Any]) -> tuple[object, ...]:
    offsets = f"{row['start_offset']} to {row['end_offset']}"
    return (row["partition"], row["segment_id"], offsets, phrases.size(row["bytes"]))
