"""`rlmm cleanup`: where removals stand, and what is stuck."""

from typing import Any, Final

import click

from rlmm_daemon.cli.asking import asking, require_log
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_json, show_table
from rlmm_daemon.core import phrases
from rlmm_daemon.core.disposal.observation import UnknownClock
from rlmm_daemon.core.disposal.steps import CopyStep, DeleteStep

#: Of what is stuck: nothing ends these unless something else happens first.
_WAITING: Final = {
    step.value
    for step in (
        CopyStep.REPORT,
        CopyStep.UNPROVEN,
        CopyStep.FAILED,
        CopyStep.HOLD,
        DeleteStep.HELD,
        DeleteStep.HOLD,
        DeleteStep.FAILED,
        DeleteStep.FOREIGN,
    )
}
#: Clocks of topics that no broker knows which take `rlmm purge`.
_FOR_A_PERSON: Final = {
    clock.value
    for clock in (UnknownClock.NEVER_SEEN, UnknownClock.TOO_MANY, UnknownClock.FOR_PURGE)
}


@click.command("cleanup")
@daemon_options
def command(*, target: Target) -> None:
    """Show the removals that this daemon looks after, and what is stuck in its partitions.

    Another daemon shows those whose metadata partition its broker leads. Exit code 1 if something
    waits for a person, a broker or the storage; rlmm explain says for what.

    With storage.kind = "none" nothing is removed here, so it names the topics that are gone, or of
    which that can't be told now, and still have segments in the log: a deletion that broke off.
    Their objects are in a storage that this daemon doesn't know.

    \b
    --json: owned[], removals[{partition, step, held, segments_left, bytes_left,
    segments_deleted, error, since_ms}], stuck[{partition, kind, step, segments, oldest}],
    errors[{partition, error}], orders[], deleted{why: segments}, failures, waiting,
    observation{watches, last_look_ms, trouble, seen_alive, marked, topics[{topic_id, topic,
    clock, since_ms, due_ms}]} or null; and with "none" left[{topic, topic_id, gone, partitions,
    segments, deletes_begun, bytes}], not_asked, not_ready[].
    """  # noqa: D301 - click's own mark
    with asking(target) as client:
        answer = client.cleanup()
        if target.json:
            show_json(answer)
        else:
            _show(answer)
        if not answer["owned"]:
            require_log(client)
    if _is_trouble(answer):
        raise click.exceptions.Exit(Exit.TROUBLE)


def _is_trouble(answer: dict[str, Any]) -> bool:
    """Whether something waits for somebody: what `explain` calls trouble."""
    observation = answer["observation"] or {"trouble": None, "topics": []}
    return bool(
        answer["errors"]
        or any(row["held"] or row["error"] for row in answer["removals"])
        or any(row["step"] in _WAITING for row in answer["stuck"])
        or observation["trouble"]
        or answer.get("left")
        or answer.get("not_asked")
        or answer.get("not_ready")
        or any(row["clock"] in _FOR_A_PERSON for row in observation["topics"])
    )


def _show(answer: dict[str, Any]) -> None:
    if answer["removals"]:
        rows = [
            (
                row["partition"],
                row["step"].replace("_", " "),
                f"{row['segments_left']:,}",
                phrases.size(row["bytes_left"]),
                f"{row['segments_deleted']:,}",
                row["error"] or "",
            )
            for row in answer["removals"]
        ]
        show_table(("partition", "step", "left", "bytes", "deleted", "error"), rows)
    if answer["stuck"]:
        stuck = [
            (row["partition"], row["kind"], row["step"].replace("_", " "), row["segments"])
            for row in answer["stuck"]
        ]
        show_table(("partition", "stuck", "step", "segments"), stuck)
    for row in answer["errors"]:
        click.echo(f"{row['partition']}: {row['error']}; tried again and again")
    if answer["observation"] is not None:
        _show_observation(answer["observation"])
    if "left" in answer:
        _show_left(answer)
        return
    for order in answer["orders"]:
        click.echo(f"under way: {order}")
    owned = phrases.number(len(answer["owned"]), "metadata partition")
    click.echo(f"this daemon owns {owned}; what is removed in others, their owners' daemons tell")
    done = ", ".join(f"{why.replace('_', ' ')} {n:,}" for why, n in answer["deleted"].items())
    click.echo(f"deleted since the start: {done or 'nothing'}")


def _show_left(answer: dict[str, Any]) -> None:
    """Where nobody cleans: what is to be removed by hand."""
    if answer["left"]:
        rows = [
            (
                row["topic"],
                row["topic_id"],
                "gone" if row["gone"] else "unknown",
                f"{row['segments']:,}",
                f"{row['deletes_begun']:,}",
                phrases.size(row["bytes"]),
            )
            for row in answer["left"]
        ]
        show_table(("topic", "id", "is", "segments", "deletes begun", "bytes"), rows)
        click.echo("`rlmm segments ID` names them: delete their objects in the storage they are in")
    if answer["not_asked"]:
        click.echo(
            f"{answer['not_asked']:,} more topics that nobody announces were not asked about"
        )
    for number in answer["not_ready"]:
        click.echo(f"metadata partition {number} is not ready: what it holds is not known")
    click.echo('storage.kind is "none": this daemon removes nothing')


def _show_observation(observation: dict[str, Any]) -> None:
    if observation["trouble"]:
        click.echo(f"the last look at the cluster failed: {observation['trouble']}")
    if observation["topics"]:
        columns = ("unknown to every broker", "topic", "clock", "since", "marked at")
        rows = [
            (
                row["topic_id"],
                row.get("topic"),  # a daemon from before does not name it
                row["clock"].replace("_", " "),
                _at(row["since_ms"]),
                _at(row["due_ms"]),
            )
            for row in observation["topics"]
        ]
        show_table(columns, rows)


def _at(ms: int | None) -> str | None:
    return None if ms is None else phrases.moment(ms)
