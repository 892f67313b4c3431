"""`rlmm explain`: why a partition answers as it does, and what to do next."""

from typing import Any, Final

import click

from rlmm_daemon.cli import completion
from rlmm_daemon.cli.asking import asking
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_json
from rlmm_daemon.cli.prose import Prose
from rlmm_daemon.core.explain.verdict import START
from rlmm_daemon.domain.errors import DaemonUnreachable

#: The verdict's colour on a terminal.
_COLOURS: Final = {
    "ready": "green",
    "waiting": "yellow",
    "stale": "yellow",
    "failed": "red",
    "refused": "yellow",
    "unknown": "cyan",
}


@click.command("explain")
@click.argument("partition", metavar="TOPIC-PARTITION", shell_complete=completion.partitions)
@click.option("--epoch", type=click.IntRange(min=0), help="With --offset: the leader epoch.")
@click.option("--offset", type=click.IntRange(min=0), help="Why is there no segment for it?")
@click.option(
    "--state-dir", metavar="DIR", help="Read a daemon's files instead of asking the daemon."
)
@click.option(
    "--log-dir", metavar="DIR", help="With --state-dir: the embedded log, unless it is DIR/log."
)
@daemon_options
def command(
    partition: str,
    *,
    epoch: int | None,
    offset: int | None,
    state_dir: str | None,
    log_dir: str | None,
    target: Target,
) -> None:
    """Say how a partition stands: a verdict, its cause, the evidence, and the command to type next.

    Exit code 0 if all is well, 1 if anything is not. With --state-dir it works while the daemon is
    down, and says how old its facts are.

    \b
    --json: partition, metadata_partition, as_of_ms, verdict (ready, waiting, stale, failed,
    refused, unknown), cause, sentence, evidence[], next_command, trouble,
    also[{cause, sentence, next_command, trouble}].
    """  # noqa: D301 - click's own mark
    if epoch is not None and offset is None:
        raise click.UsageError("--epoch says in which leader epoch --offset is looked for")
    if log_dir is not None and state_dir is None:
        raise click.UsageError("--log-dir goes with --state-dir")
    if state_dir is None:
        answer = _ask(target, partition, epoch, offset)
    else:
        # Imported late: it brings the rooms of the daemon along.
        from rlmm_daemon.offline import answers

        answer = answers.explain(state_dir, log_dir, partition, epoch, offset=offset)
    if target.json:
        show_json(answer)
    else:
        _show(partition, answer)
    if answer["trouble"]:
        raise click.exceptions.Exit(Exit.TROUBLE)


def _ask(target: Target, partition: str, epoch: int | None, offset: int | None) -> dict[str, Any]:
    try:
        with asking(target) as client:
            return client.explain(partition, epoch, offset)
    except DaemonUnreachable as error:
        hint = (
            f"  if it does not run: {START}, then journalctl -u rlmm-daemon\n"
            f"  without a daemon: rlmm explain {partition} --state-dir DIR"
        )
        raise DaemonUnreachable(f"{error.message}\n{hint}", **error.fields) from error


def _show(selector: str, answer: dict[str, Any]) -> None:
    prose = Prose()
    verdict = str(answer["verdict"])
    name = answer["partition"] or selector
    prose.line((verdict, f"bold {_COLOURS.get(verdict, 'bold')}"), "  ", (name, "bold"))
    prose.line(("cause  ", "dim"), answer["cause"])
    prose.gap()
    prose.paragraph(answer["sentence"])
    if answer["evidence"]:
        prose.heading("Evidence")
        for each in answer["evidence"]:
            prose.item(each)
    if answer["also"]:
        prose.heading("Also")
        for notice in answer["also"]:
            prose.item(notice["sentence"], style="yellow" if notice["trouble"] else "")
            if notice["next_command"]:
                prose.command(notice["next_command"])
    prose.heading("Next")
    prose.command(answer["next_command"])
