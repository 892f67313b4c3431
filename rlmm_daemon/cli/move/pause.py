"""`rlmm pause` and `rlmm resume`: a topic's copies, held back and let go on."""

from typing import Any

import click

from rlmm_daemon.cli import completion
from rlmm_daemon.cli.asking import asking
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_json
from rlmm_daemon.core import phrases
from rlmm_daemon.observability.escape import escape


@click.command("pause")
@click.argument("topic", metavar="TOPIC", shell_complete=completion.topics)
@click.option("--execute", is_flag=True, help="Do it; without this, only say what it is about.")
@daemon_options
def pause(topic: str, *, execute: bool, target: Target) -> None:
    """Let no copy of a topic begin at this daemon, until rlmm resume.

    TOPIC is a name or an id; the pause goes by the name, and survives a restart. Copies that have
    begun go on, and so do reads, deletes and retention. The broker asks again about every 30 s for
    each partition that it leads, and logs and counts each refusal as a failed copy; on its disk it
    keeps whatever is not copied, also beyond local.retention. Each broker's daemon pauses for
    itself: say it to all of them. rlmm status, rlmm explain and the page show what is paused.

    --json: {topic, paused_since_ms, partitions, leads, trouble, executed,
    paused[{topic, since_ms}]}; all but executed and paused as before.
    """
    with asking(target) as client:
        answer = client.topic_pause(topic, execute=execute)
        copies = [] if target.json else _copies(client.status(), answer["topic"])
    if target.json:
        show_json(answer)
        return
    name = _show_topic(answer)
    if answer["paused_since_ms"] is not None:
        click.echo("it is paused already")
    if copies:
        click.echo(f"{phrases.number(len(copies), 'copy', 'copies')} under way: they go on")
    click.echo(
        f"no copy of {name} {'begins' if execute else 'would begin'} at this daemon; the broker "
        "keeps on its own disk what is not copied"
    )
    click.echo(f"rlmm resume {name} --execute ends it" if execute else _DRY)


@click.command("resume")
@click.argument("topic", metavar="TOPIC", shell_complete=completion.paused)
@click.option("--execute", is_flag=True, help="Do it; without this, only say what it is about.")
@daemon_options
def resume(topic: str, *, execute: bool, target: Target) -> None:
    """Let copies of a topic begin again that rlmm pause held back.

    The broker comes back by itself, within about 30 s. A topic that is not paused stays as it is.

    --json: as rlmm pause.
    """
    with asking(target) as client:
        answer = client.topic_resume(topic, execute=execute)
    if target.json:
        show_json(answer)
        return
    name = _show_topic(answer)
    if answer["paused_since_ms"] is None and answer["trouble"] is None:
        click.echo("it is not paused: there is nothing to end")
        return
    click.echo(f"copies of {name} {'begin again' if execute else 'would begin again'}")
    if not execute:
        click.echo(_DRY)


_DRY = "nothing was done; --execute does it"


def _show_topic(answer: dict[str, Any]) -> str:
    """Print what is known of the topic; return its name as it may be shown."""
    name = escape(answer["topic"])
    if answer["partitions"]:
        known = phrases.number(answer["partitions"], "partition")
        click.echo(f"topic {name}: {known} known here, the broker leads {answer['leads']:,}")
    else:
        click.echo(f"topic {name}: this daemon knows none of that name; is it spelled right?")
    if answer["trouble"]:
        click.echo(f"{escape(answer['trouble'])}; with --execute nothing else stays paused")
    return name


def _copies(status: dict[str, Any], topic: str) -> list[dict[str, Any]]:
    return [
        job
        for job in status["copies"]
        if job["partition"].partition(":")[2].rpartition("-")[0] == topic
    ]
