"""`rlmm purge`: a topic's remote data, all of it."""

from typing import Any

import click

from rlmm_daemon.cli import completion
from rlmm_daemon.cli.asking import asking_log
from rlmm_daemon.cli.options import KAFKA_UUID, Target, daemon_options
from rlmm_daemon.cli.output import show_json, show_table
from rlmm_daemon.core import phrases
from rlmm_daemon.domain.ids import TopicId, uuid_bytes
from rlmm_daemon.observability.escape import escape


@click.command("purge")
@click.argument(
    "topic_id", metavar="TOPIC_ID", type=KAFKA_UUID, shell_complete=completion.topic_ids
)
@click.option("--execute", is_flag=True, help="Do it; without this, only say what there is.")
@click.option("--existing", is_flag=True, help="The topic exists, and that is meant.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@daemon_options
def command(topic_id: str, *, execute: bool, existing: bool, yes: bool, target: Target) -> None:
    """Have all remote data of a topic removed: marks for a topic that is gone.

    Nothing brings it back. A topic that still exists keeps its metadata; its remote segments are
    deleted one by one, and only with --existing. rlmm cleanup shows how far it came. A restart of
    the daemon forgets what is left of them: run the command again.

    --json: {topic_id, topic: gone|alive|unknown, executed, partitions[], segments, bytes}.
    """
    wanted = TopicId(uuid_bytes(topic_id))
    with asking_log(target) as client:
        answer = client.purge(wanted)
        if execute:
            if not yes:
                size = phrases.size(answer["bytes"])
                count = phrases.number(answer["segments"], "segment")
                click.confirm(
                    f"Remove {count} of topic {_named(answer)}, {size}, for good?",
                    abort=True,
                    err=True,
                )
            answer = client.purge(wanted, execute=True, existing=existing)
    if target.json:
        show_json(answer)
    else:
        _show(answer)


def _named(answer: dict[str, Any]) -> str:
    """Return the topic's name beside its id."""
    names = {row["partition"].partition(":")[2].rpartition("-")[0] for row in answer["partitions"]}
    return f"{' or '.join(sorted(map(escape, names)))} ({answer['topic_id']})"


def _show(answer: dict[str, Any]) -> None:
    rows = [
        (row["partition"], f"{row['segments']:,}", phrases.size(row["bytes"]), row["action"])
        for row in answer["partitions"]
    ]
    show_table(("partition", "segments", "bytes", "action"), rows)
    if not answer["executed"]:
        click.echo("nothing was done; --execute does it")
