"""`rlmm quorum format`: the directory of a new replica."""

from contextlib import nullcontext

import click

from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.options import json_option
from rlmm_daemon.cli.output import show_facts, show_json
from rlmm_daemon.cli.quorum.addresses import ADDRESS, UUID, VOTER
from rlmm_daemon.core.raft.voters import Endpoint, Voter, VoterSet
from rlmm_daemon.domain.ids import uuid_text


@click.command("format", short_help="Make the directory of a new replica.")
@click.argument("directory", metavar="DIR")
@click.option("--cluster-id", required=True, metavar="ID", help="The Kafka cluster's id.")
@click.option(
    "--node-id",
    type=click.IntRange(min=0),
    required=True,
    metavar="N",
    help="This replica's number, its own in the quorum.",
)
@click.option(
    "--directory-id",
    type=UUID,
    metavar="ID",
    help="This directory's id; a random one by default. Never one that was used before.",
)
@click.option(
    "--topic-id",
    type=UUID,
    metavar="ID",
    help="The log's id; only --join needs it: format printed it for the first voters.",
)
@click.option("--standalone", is_flag=True, help="The first voter, alone; others join later.")
@click.option("--listen", type=ADDRESS, metavar="HOST:PORT", help="Where --standalone listens.")
@click.option(
    "--voter",
    "voters",
    type=VOTER,
    multiple=True,
    metavar="ID@HOST:PORT:DIRECTORY_ID",
    help="Each first voter, this one included; the same list on each machine.",
)
@click.option("--join", is_flag=True, help="Join a quorum that is there, as an observer.")
@click.option("--execute", is_flag=True, help="Write it; without this, only say what would be.")
@json_option
def format_command(
    directory: str,
    *,
    cluster_id: str,
    node_id: int,
    directory_id: bytes | None,
    topic_id: bytes | None,
    standalone: bool,
    listen: Endpoint | None,
    voters: tuple[Voter, ...],
    join: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Make DIR the directory of a new replica of a quorum.

    How the quorum begins: --standalone on one machine, then the others --join and are added; or
    the same --voter list on each of the first machines. A directory that is formatted already, or
    holds a log, is refused.

    Replicas speak to each other only if their logs have one id. It is made of the list of voters,
    so that lists that differ between machines make no second quorum: nobody is elected.

    --json: {directory, cluster_id, node_id, directory_id, topic_id, voters[{id, directory_id,
    listeners[]}], files[], written}.
    """
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.offline import quorum_format

    ways = [standalone, bool(voters), join]
    if sum(ways) != 1:
        raise click.UsageError("one of --standalone, --voter ... and --join says how it begins")
    if standalone and listen is None:
        raise click.UsageError("--standalone needs --listen: others have to know where it is")
    if not standalone and listen is not None:
        raise click.UsageError("--listen goes with --standalone; rlmm quorum run takes it else")
    with order(directory=directory, node_id=node_id) if execute else nullcontext():
        plan = quorum_format.plan(
            directory,
            cluster_id=cluster_id,
            node_id=node_id,
            directory_id=directory_id,
            topic_id=topic_id,
            first=quorum_format.Alone(listen) if listen is not None else _set_of(voters),
        )
        if execute:
            quorum_format.write(plan)
    if as_json:
        show_json(plan.told() | {"written": execute})
        return
    first = plan.voters
    show_facts(
        {
            "directory": plan.directory,
            "cluster": plan.cluster_id,
            "replica": plan.key.id,
            "directory id": uuid_text(plan.key.directory),
            "log": f"{plan.topic}, topic id {uuid_text(plan.topic_id)}",
            "first voters": "none: it joins as an observer" if first is None else _named(first),
            "files": ", ".join(plan.files),
        }
    )
    if not execute:
        click.echo("nothing was written; --execute does it")
        if directory_id is None:
            click.echo(f"keep the id that was drawn: --directory-id {plan.told()['directory_id']}")
    else:
        click.echo(
            f"written; next: rlmm quorum run {plan.directory} --listen HOST:PORT --server ..., or "
            f"a daemon with event_log.quorum.directory = {plan.directory}"
        )


def _set_of(voters: tuple[Voter, ...]) -> VoterSet | None:
    if not voters:
        return None
    ids = [voter.key.id for voter in voters]
    if len(set(ids)) < len(ids):
        raise click.UsageError("two --voter have one id")
    return VoterSet.of(voters)


def _named(voters: VoterSet) -> str:
    return ", ".join(
        f"{voter.key.id}@{at.host}:{at.port}" for voter in voters.voters for at in voter.endpoints
    )
