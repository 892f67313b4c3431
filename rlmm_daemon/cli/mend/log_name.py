"""`rlmm log name`: the damaged or lost name of an embedded log, made again."""

from contextlib import nullcontext

import click
from msgspec.structs import asdict

from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.options import config_option, json_option
from rlmm_daemon.cli.output import show_facts, show_json
from rlmm_daemon.config import load
from rlmm_daemon.domain.ids import uuid_text


@click.command("name", short_help="Give an embedded log its identity.json back.")
@config_option
@click.option("--execute", is_flag=True, help="Write it; without this, only say what there is.")
@json_option
def name(file: str, *, execute: bool, as_json: bool) -> None:
    """Give an embedded log its identity.json back, as the state directory remembers it.

    For the failure log_unnamed; beside a daemon or without one. It is refused unless the log holds
    what had been read of it, as the state directory says, in one metadata partition at least; where
    another one does not, the daemon says so and keeps that one failed. A damaged file is kept
    as .corrupt. A daemon that runs takes the log up by itself.

    --json: {file, topic_id, cluster_id, partition_count, present, confirmed[], unconfirmed[],
    written, set_aside}.
    """
    config = load(file)
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.offline.log_naming import name_log

    with order() if execute else nullcontext():
        naming = name_log(config, execute=execute)
    identity = naming.identity
    names = {
        "topic_id": uuid_text(identity.topic_id),
        "cluster_id": identity.cluster_id,
        "partition_count": identity.partition_count,
    }
    if as_json:
        rest = {key: value for key, value in asdict(naming).items() if key != "identity"}
        show_json(rest | names)
        return
    show_facts(
        {
            "file": naming.file,
            "log": f"{names['topic_id']} of cluster {identity.cluster_id or '-'}, "
            f"{identity.partition_count} partitions",
            **({} if naming.present else {"read of it, and there": _numbers(naming.confirmed)}),
            **(
                {"read of it, and not there": _numbers(naming.unconfirmed)}
                if naming.unconfirmed
                else {}
            ),
            **({"kept aside": naming.set_aside} if naming.set_aside else {}),
        }
    )
    if naming.present:
        click.echo("the log is named already: nothing is to be done")
    elif naming.written:
        click.echo("written; a daemon that runs takes the log up within seconds")
    else:
        click.echo("nothing was done; --execute does it")


def _numbers(partitions: list[int]) -> str:
    return "metadata partition " + ", ".join(map(str, partitions))
