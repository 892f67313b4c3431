"""`rlmm log`: check, seal and repair the event log."""

from dataclasses import asdict
from typing import Any

import click

from rlmm_daemon.cli.asking import asking
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.log_copy import copy
from rlmm_daemon.cli.log_restore import restore
from rlmm_daemon.cli.options import Target, daemon_options, json_option
from rlmm_daemon.cli.output import show_empty, show_json, show_table
from rlmm_daemon.core import phrases


@click.group("log")
def command() -> None:
    """Check, seal, copy, restore and repair the event log."""


command.add_command(copy)
command.add_command(restore)


@command.command("verify")
@click.argument("directory", metavar="DIR")
@json_option
def verify(directory: str, *, as_json: bool) -> None:
    """Read every batch of an embedded log's files; needs no daemon and changes nothing.

    DIR is the log's directory, by default `log` in the state directory. A torn tail is what a
    crash leaves and the next start trims. Exit code 1 if anything is corrupt.

    --json: an array of {partition, range{start, end}, files, batches, records,
    preallocated_bytes, findings[{file, position, reason, kind}]}.
    """
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.cli import offline

    reports = [asdict(report) for report in offline.verify_log(directory)]
    if as_json:
        show_json(reports)
    else:
        columns = ("partition", "offsets", "files", "batches", "records", "ahead", "verdict")
        shown = [report for report in reports if report["records"] or report["findings"]]
        show_table(columns, [_row(report) for report in shown])
        show_empty(len(reports) - len(shown))
        found = [finding for report in reports for finding in report["findings"]]
        if found:
            click.echo()
            rows = [(at["kind"], at["file"], at["position"], at["reason"]) for at in found]
            show_table(("kind", "file", "byte", "reason"), rows, fold=("file", "reason"))
    if any(at["kind"] == "corrupt" for report in reports for at in report["findings"]):
        raise click.exceptions.Exit(Exit.TROUBLE)


def _row(report: dict[str, Any]) -> tuple[object, ...]:
    kinds = {finding["kind"] for finding in report["findings"]}
    verdict = "corrupt" if "corrupt" in kinds else "torn tail" if kinds else "whole"
    return (
        report["partition"],
        f"{report['range']['start']} to {report['range']['end']}",
        report["files"],
        report["batches"],
        report["records"],
        phrases.size(report["preallocated_bytes"]),
        verdict,
    )


@command.command("seal")
@click.argument("directory", metavar="DIR")
@json_option
def seal(directory: str, *, as_json: bool) -> None:
    """Close every file of an embedded log that no daemon uses, so that Kafka's tools read it all.

    --json: {sealed: partitions}.
    """
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.cli import offline

    sealed = offline.seal_log(directory)
    if as_json:
        show_json({"sealed": sealed})
    else:
        click.echo(f"sealed {phrases.number(sealed, 'partition')}")


@command.command("repair")
@click.argument("number", metavar="[N]", type=click.IntRange(min=0), required=False)
@daemon_options
def repair(number: int | None, *, target: Target) -> None:
    """Let the daemon mend a failed metadata partition N, or all that failed.

    A corrupt file is kept aside as .corrupt; finished segments that the log lost and the daemon
    still knows are appended again. It answers when the partition was judged anew; a long replay
    goes on. Exit code 1 if not all of it could be done.

    --json: {repaired: [{metadata_partition, reason, appended, state, ...}]}.
    """
    with asking(target) as client:
        answer = client.log_repair(number)
    rows = answer["repaired"]
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
    else:
        click.echo("nothing has failed")
    if any(row.get("error") for row in rows):
        raise click.exceptions.Exit(Exit.TROUBLE)
