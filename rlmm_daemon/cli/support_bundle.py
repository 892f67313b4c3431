"""`rlmm support-bundle`: everything that a maintainer would ask for, in one file."""

import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from rlmm_daemon.cli.audit import client_name, whoever
from rlmm_daemon.cli.options import config_option, find_socket, json_flag
from rlmm_daemon.cli.output import show_json
from rlmm_daemon.core import phrases
from rlmm_daemon.observability.escape import escape

#: Of each question to the daemon.
SECONDS = 10.0


@click.command("support-bundle")
@config_option
@click.option("-o", "--output", metavar="FILE", help="Where to; rlmm-support-HOST-TIME.tar.gz.")
@click.option("--log", metavar="FILE", help="A file that the daemon's log goes to, if one does.")
@click.option("--socket", metavar="PATH", help="RLMM_SOCKET, else as configured.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Of each question to the daemon.",
)
@json_flag
def command(
    file: str,
    *,
    output: str | None,
    log: str | None,
    socket: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Gather what a maintainer would ask for into one tar.gz, without secrets.

    Configuration, status, explain, partitions, metrics, doctor, units, the last log lines, the
    process, and a listing of the state directory with its small files; index.txt says what each
    is, and what is missing and why. It changes nothing, works beside a daemon that does not answer
    or is down, and takes at most 32 MiB before it is packed. Run it as root, or as the daemon's
    user. What is or looks like a secret is hidden; names of topics, hosts and users are in it:
    look through it before you hand it on.

    \b
    --json: {path, bytes, files[{name, about, bytes, trouble}]}; bytes is null where there is none.
    """  # noqa: D301 - click's own mark
    # Imported late: they bring the client and the configuration along.
    from rlmm_daemon.offline.support import bundle
    from rlmm_daemon.offline.support.asked import AskedDaemon
    from rlmm_daemon.offline.support.steps import config_or_none, known_secrets, steps

    at_seconds = time.time_ns() / 1e9
    moment = datetime.fromtimestamp(at_seconds, UTC)
    stamp = f"{platform.node()}-{moment:%Y%m%dT%H%M%SZ}"
    path = Path(output or f"rlmm-support-{stamp}.tar.gz")
    if path.exists():
        raise click.UsageError(f"{path} is there already")
    config = config_or_none(file)
    configured = config.socket.path if config else None
    where = find_socket(socket or os.environ.get("RLMM_SOCKET") or configured, os.environ)
    asked = AskedDaemon(where, client_name(), timeout)
    entries = bundle.gather(
        list(steps(config, file, asked, where, log=log)), known_secrets(config, os.environ)
    )
    head = (
        f"rlmm support bundle of {moment.isoformat(timespec='seconds')}, made by {whoever()}.\n"
        "What is, or looks like, a secret is [hidden]. Names of topics, hosts and users are in it."
    )
    try:
        size = bundle.write(path, entries, head, at_seconds=at_seconds)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error
    if as_json:
        files = [
            {
                "name": each.name,
                "about": each.about,
                "bytes": None if each.text is None else each.size,
                "trouble": each.trouble,
            }
            for each in entries
        ]
        show_json({"path": str(path), "bytes": size, "files": files})
        return
    for each in entries:
        if each.trouble:
            click.echo(f"{each.name}: {each.trouble}", err=True)
    count = phrases.number(sum(each.text is not None for each in entries), "file")
    click.echo(f"{escape(str(path))}: {count}, {phrases.size(size)}")
    click.echo("names of topics, hosts and users are in it: look through it before you hand it on")
