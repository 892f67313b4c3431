"""`rlmm setup`: everything that a daemon beside a broker needs, from the broker's own files."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.doctor import report
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.quorum.addresses import ADDRESS, DRAWN_VOTER, endpoint_of
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.observability.escape import escape_lines

if TYPE_CHECKING:  # imported when it runs: it brings half of the daemon along
    from rlmm_daemon.offline.setup.plan import SetupPlan
    from rlmm_daemon.offline.setup.quorum import Replica

_STORAGES = ("local", "s3", "none")
_LOGS: Final[tuple[Literal["kafka", "embedded", "quorum"], ...]] = ("kafka", "embedded", "quorum")


@click.command("setup")
@click.option("--properties", metavar="FILE", help="The broker's server.properties.")
@click.option(
    "--config",
    "file",
    envvar="RLMM_CONFIG",
    default="/etc/rlmm/rlmm.toml",
    show_default=True,
    metavar="FILE",
    help="The daemon's TOML file to be; else RLMM_CONFIG.",
)
@click.option("--storage", type=click.Choice(_STORAGES), help="Where segments go.")
@click.option("--directory", metavar="DIR", help="Of --storage local.")
@click.option("--shared", is_flag=True, help="Every broker sees that same directory.")
@click.option("--bucket", metavar="NAME", help="Of --storage s3.")
@click.option("--region", metavar="NAME", help="The bucket's.")
@click.option("--endpoint", metavar="URL", help="Of a server that is not AWS.")
@click.option("--prefix", metavar="TEXT", help="In front of the segments' keys.")
@click.option(
    "--event-log",
    type=click.Choice(_LOGS),
    help="Kafka's own topic, a log of this daemon's for a cluster of one broker, or a quorum's.",
)
@click.option(
    "--listen",
    type=ADDRESS,
    metavar="HOST:PORT",
    help="Of --event-log quorum: where this replica listens, if it is none of --voter.",
)
@click.option(
    "--voter",
    "voters",
    type=DRAWN_VOTER,
    multiple=True,
    metavar="ID@HOST:PORT[:DIRECTORY_ID]",
    help="Of --event-log quorum: each first voter, by its broker's id. Ids that are left out are "
    "drawn, and said.",
)
@click.option("--quorum-ca", metavar="FILE", help="The quorum's authority, in PEM.")
@click.option("--quorum-certificate", metavar="FILE", help="This replica's.")
@click.option("--quorum-key", metavar="FILE", help="Of the certificate.")
@click.option(
    "--bootstrap", multiple=True, metavar="HOST:PORT", help="More brokers, beside this one."
)
@click.option("--principal", default="rlmm", show_default=True, help="The daemon's name in Kafka.")
@click.option("--broker-user", metavar="USER", help="By default whoever owns log.dirs.")
@click.option(
    "--broker-unit", default="kafka", show_default=True, metavar="NAME", help="In systemd."
)
@click.option("--socket", metavar="PATH", help="If not /run/rlmm/rlmm.sock.")
@click.option("--state-dir", metavar="DIR", help="If not /var/lib/rlmm.")
@click.option("--jar", metavar="FILE", help="The plugin's, if it lies elsewhere.")
@click.option(
    "--units",
    default="/etc/systemd/system",
    show_default=True,
    metavar="DIR",
    help="Where drop-ins go.",
)
@click.option("--leave-properties", is_flag=True, help="Only say the lines of server.properties.")
@click.option("--execute", is_flag=True, help="Write without asking.")
def command(file: str, *, execute: bool, **given: Any) -> None:
    """Set a daemon up beside a broker, or say what would change.

    Reads the broker's server.properties and the meta.properties of its log.dirs: node id, cluster
    id, directories, listener, user. Writes the daemon's configuration, the broker's lines, drop-ins
    that the packages' units need, and beside the configuration what others have to carry out: ACL
    commands, IAM policy, lifecycle rule. Keys of an existing configuration that it does not know
    better stay, comments too; said again, it changes nothing.

    Shows the differences first. On a terminal it asks for what no file says, and before it writes;
    elsewhere nothing is written without --execute. Then it runs rlmm doctor and says what is left.
    A file that it changes is kept as FILE.before-rlmm. It restarts nothing.

    Exit code 1 if a check of the doctor failed; that is so until everything that is left is done.
    """
    from rlmm_daemon.offline.setup import plan as planning
    from rlmm_daemon.offline.setup.settings import Choices

    properties = given["properties"] or planning.find_properties()
    properties = properties or _asked("The broker's server.properties", "--properties")
    broker = planning.read_broker(properties, given["broker_user"])
    present = planning.present(file)
    kept = given["event_log"] or present.get("event_log") or "kafka"
    log = next((each for each in _LOGS if each == kept), None)
    if log is None:
        raise ConfigError(f"{file}: event_log.kind = {kept!r} is none that setup knows")
    choices = Choices(
        event_log=log,
        replica=_replica(given, broker.node_id, asked=log == "quorum" != present.get("event_log")),
        storage=_storage(given, present.get("storage")),
        bootstrap=given["bootstrap"],
        principal=given["principal"],
        socket=given["socket"] or "",
        state_dir=given["state_dir"] or "",
        home=str(Path(file).absolute().parent),
    )
    places = planning.Places(
        properties=properties,
        config=file,
        units=given["units"],
        broker_unit=given["broker_unit"].removesuffix(".service"),
        writes_properties=not given["leave_properties"],
        **({"jar": given["jar"]} if given["jar"] else {}),
    )
    plan = planning.plan(broker, choices, places)
    _show(plan)
    if plan.changes or plan.directory:
        if not execute and not _yes():
            click.echo("nothing is written; --execute writes it")
            return
        with order(files=[each.path for each in plan.changes]):
            planning.carry_out(plan)
        click.echo("written")
    failed = report(file)
    click.echo("\nleft to do:" if plan.left else "")
    for number, each in enumerate(plan.left, 1):
        click.echo(f"  {number}. {escape_lines(each)}")
    if failed:
        raise click.exceptions.Exit(Exit.TROUBLE)


def _storage(given: dict[str, Any], present: str | None) -> dict[str, Any]:
    """Return the keys of `[storage]` that are given; none where what is there stands."""
    kind = given["storage"]
    keys = {
        key: given[key]
        for key in ("directory", "bucket", "region", "endpoint", "prefix")
        if given[key] is not None
    } | ({"shared": True} if given["shared"] else {})
    if kind is None and present is not None:
        return keys
    if kind is None and (keys.keys() & {"bucket", "directory"}):
        kind = "s3" if "bucket" in keys else "local"
    kind = kind or _asked("Where segments go", "--storage", click.Choice(_STORAGES))
    for of, key, flag in (("local", "directory", "--directory"), ("s3", "bucket", "--bucket")):
        if kind == of and key not in keys and present != kind:
            keys[key] = _asked(key.capitalize(), flag)
    return {"kind": kind} | keys


def _replica(given: dict[str, Any], node_id: int, *, asked: bool) -> "Replica":
    """Return what is said of a quorum's replica; `asked`: it has to listen somewhere."""
    from rlmm_daemon.offline.setup.quorum import Replica

    voters = tuple(voter for voter, _ in given["voters"])
    ids = {voter.key.id for voter in voters}
    if len(ids) < len(voters):
        raise click.UsageError("two --voter have one id")
    listen = given["listen"]
    if asked and listen is None and node_id not in ids:
        listen = endpoint_of(_asked("Where this replica listens, as others reach it", "--listen"))
    proof = {
        f"{key}_file": given[f"quorum_{key}"]
        for key in ("ca", "certificate", "key")
        if given[f"quorum_{key}"] is not None
    }
    return Replica(
        listen=listen,
        voters=voters,
        drawn=any(drawn for _, drawn in given["voters"]),
        proof=proof,
    )


def _on_terminal() -> bool:
    return sys.stdin.isatty()


def _asked(question: str, flag: str, kind: click.Choice[str] | None = None) -> str:
    if not _on_terminal():
        raise click.UsageError(f"{flag} is missing, and there is no terminal to ask at")
    return str(click.prompt(question, type=kind))


def _yes() -> bool:
    return _on_terminal() and click.confirm("write this?")


def _show(plan: "SetupPlan") -> None:
    broker = plan.broker
    click.echo(
        escape_lines(
            f"broker {broker.node_id} of cluster {broker.cluster_id or '(not formatted yet)'}, "
            f"{broker.protocol} at {broker.address}, "
            f"run by {broker.account.user if broker.account else '(unknown: --broker-user)'}"
        )
    )
    for each in plan.changes:
        click.echo(escape_lines(each.diff()), nl=False)
    if plan.directory is not None:
        click.echo(escape_lines(f"new directory {plan.directory}"))
    if not plan.changes and plan.directory is None:
        click.echo("nothing to change")
