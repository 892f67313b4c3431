"""`rlmm partition`: orders about one metadata partition."""

from typing import Any

import click

from rlmm_daemon.cli.asking import asking, asking_log
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_json
from rlmm_daemon.core import phrases

_number = click.argument("number", metavar="N", type=click.IntRange(min=0))


@click.group("partition")
def command() -> None:
    """Retry, rebuild, or give up what is missing from a metadata partition.

    N is the number of a metadata partition, as rlmm partitions and rlmm explain show it.
    """


@command.command("retry", short_help="Judge a failed metadata partition anew.")
@_number
@daemon_options
def retry(number: int, *, target: Target) -> None:
    """Start a failed metadata partition over, once the cause is gone.

    It answers when N was judged anew. Exit code 1 if it failed again, or is read for so long, as
    after a start, that it is not known yet whether it failed.

    --json: {retried: [N], failed: [N], next: [command]}; empty if it had not failed, or did not
    fail again.
    """
    with asking_log(target) as client:
        answer = client.partition_retry(number)
    words = "started over" if answer["retried"] else "has not failed"
    (following,) = answer["next"] or [None]
    _show(
        answer, target, "failed again" if answer["failed"] else words, number, following=following
    )


@command.command("rebuild")
@_number
@daemon_options
def rebuild(number: int, *, target: Target) -> None:
    """Forget what was folded and replay the log from its start.

    Nothing is lost: the replay is held against what had been known. Not ready meanwhile. It answers
    when N was judged anew; a long replay goes on. Exit code 1 if it failed.

    --json: {rebuilding: [N], state, next: the command that is named now that it failed, or null}.
    """
    with asking_log(target) as client:
        answer = client.partition_rebuild(number)
    words = {"failed": "was read again, and failed", "ready": "was rebuilt"}
    said = words.get(answer["state"], "is being rebuilt; rlmm partitions shows how far it came")
    _show(answer, target, said, number, following=answer["next"])


@command.command("accept-loss", short_help="Go on without the events that the log lost.")
@click.argument("number", metavar="[N]", type=click.IntRange(min=0), required=False)
@click.option("--all", "everything", is_flag=True, help="All metadata partitions; the log itself.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--without-looking",
    is_flag=True,
    help="Also give up segments whose objects were not looked for yet.",
)
@daemon_options
def accept_loss(
    number: int | None, *, everything: bool, yes: bool, without_looking: bool, target: Target
) -> None:
    """Go on without the events that are missing from the log, for good.

    Segments that only those events named are no longer found by anybody. Their objects stay: a hold
    keeps all that may belong to them, until rlmm partition end-hold. Try rlmm log repair and rlmm
    log recover first. Refused where nothing is missing, and where a storage is configured in which
    nobody has looked for what is missing since the daemon started, unless --without-looking.

    Of a log that lost its head while a list of lost segments is there, the head alone is given up
    at first: what the rest of the log lacks of the list is named next.

    --json: {accepted: [N] or "all", missing: segments, next: commands for what still fails}.
    """
    if everything == (number is not None):
        raise click.UsageError("either N or --all is wanted")
    which = "every metadata partition" if everything else f"metadata partition {number}"
    if not yes:
        question = f"Give up what is missing from {which}? Nothing brings it back."
        click.confirm(question, abort=True, err=True)
    with asking(target) as client:
        answer = client.partition_accept_loss(
            number, everything=everything, without_looking=without_looking
        )
    if target.json:
        show_json(answer)
    else:
        missing = phrases.number(answer["missing"], "segment")
        lost = f"what the log lost, {missing} that had been known among it"
        click.echo(f"{which} goes on without {lost}")
        for each in answer["next"]:
            click.echo(f"what is still missing: {each}")


@command.command("end-hold", short_help="Let objects that an accepted loss keeps be deleted.")
@click.argument("number", metavar="[N]", type=click.IntRange(min=0), required=False)
@click.option("--all", "everything", is_flag=True, help="Every hold.")
@click.option("--execute", is_flag=True, help="Do it; without this, only say what there is.")
@daemon_options
def end_hold(number: int | None, *, everything: bool, execute: bool, target: Target) -> None:
    """Let what an accepted loss keeps be deleted again: abandoned copies, unnamed objects.

    After rlmm log recover has put back what was whole. What is kept of segments is listed as far as
    this daemon looks after it; objects that no event names are the nightly job's, which finds them
    in its next run. Exit code 1 if --execute did not end all that keeps N: a hold of every metadata
    partition is not ended for one.

    --json: {executed, holds[{metadata_partition, before_ms, kept[{partition, kind, segments}]}]}.
    """
    if everything == (number is not None):
        raise click.UsageError("either N or --all is wanted")
    with asking_log(target) as client:
        answer = client.partition_end_hold(number, execute=execute)
    if target.json:
        show_json(answer)
    else:
        _show_holds(answer, number)
    stays = number is not None and any(h["metadata_partition"] is None for h in answer["holds"])
    if execute and stays:
        raise click.exceptions.Exit(Exit.TROUBLE)


def _show_holds(answer: dict[str, Any], number: int | None) -> None:
    for hold in answer["holds"]:
        which = hold["metadata_partition"]
        where = "every metadata partition" if which is None else f"metadata partition {which}"
        click.echo(f"{where}: what is older than {phrases.moment(hold['before_ms'])} is kept")
        for row in hold["kept"]:
            count = phrases.number(row["segments"], "segment")
            click.echo(f"  {row['partition']}: {count}, begun and not ended ({row['kind']})")
    named = [hold["metadata_partition"] for hold in answer["holds"]]
    if not named:
        click.echo("nothing is held")
    elif answer["executed"]:
        click.echo("ended: the cleaner and the nightly job may delete it")
    elif number is None or number in named:
        click.echo("nothing was done; --execute does it")
    if number is not None and None in named:
        click.echo("the hold on every metadata partition stays: end-hold --all --execute ends it")


def _show(
    answer: dict[str, Any], target: Target, words: str, number: int, *, following: str | None
) -> None:
    """Show what came of an order; `following` ends what is still failed."""
    if target.json:
        show_json(answer)
    else:
        click.echo(f"metadata partition {number} {words}")
        if following is not None:
            click.echo(f"Next: {following}")
    if following is not None:
        raise click.exceptions.Exit(Exit.TROUBLE)
