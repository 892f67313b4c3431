"""`rlmm reconcile`: hold the remote storage against the metadata log; clean what belongs to nobody.

Exit codes of `run`: 0 storage and log agree, 1 findings, 2 usage, 4 a guard refused to condemn
anything (or the storage is another plugin's), 5 not all could be read.
"""

import asyncio
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
import msgspec

from rlmm_daemon.cli.audit import whoever
from rlmm_daemon.cli.mend import reconcile_lease, reconcile_manifests
from rlmm_daemon.cli.mend.reconcile_findings import findings
from rlmm_daemon.cli.mend.reconcile_options import config_options
from rlmm_daemon.cli.output import show_error, show_facts, show_json, show_table
from rlmm_daemon.config import load
from rlmm_daemon.config.loading import load_reconcile
from rlmm_daemon.domain.errors import ConfigError, StorageNotConfigured
from rlmm_daemon.reconcile.errors import RunStopped, plain
from rlmm_daemon.reconcile.read import lives

CLEAN: Final = 0
FINDINGS: Final = 1
REFUSED: Final = 4
INCOMPLETE: Final = 5
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_REASONS_MAX: Final = 10


@click.group("reconcile")
def command() -> None:
    """Hold the remote storage against the metadata log. Needs the extra [spark]."""


for _more in (findings, *reconcile_manifests.COMMANDS, *reconcile_lease.COMMANDS):
    command.add_command(_more)


@command.command("run")
@click.option(
    "--execute", is_flag=True, help="Quarantine what is condemned; delete what was long enough."
)
@config_options
def run(file: str, overrides: tuple[str, ...], *, execute: bool, as_json: bool) -> None:
    """List the storage, read the log, report what disagrees. Without --execute nothing is touched.

    Findings, summary.json and report.html go to [output] directory, the last run's to `latest`.
    """
    config = load_reconcile(file, overrides)
    daemon = load(config.daemon_config)
    with _stoppable(), _incomplete(as_json=as_json):
        # Imported late: Spark takes seconds, and a wrong configuration is told before.
        from rlmm_daemon.reconcile.night import Run
        from rlmm_daemon.reconcile.report import outputs
        from rlmm_daemon.reconcile.session import session

        with _progress() as progress, session(config.spark) as spark:
            job = Run(
                spark,
                config,
                daemon,
                execute=execute,
                now_ms=time.time_ns() // 1_000_000,
                progress=progress,
            )
            try:
                night = job.whole()
            finally:
                if job.judged:  # also where it was broken off among its deletions
                    outputs.write(job.night, job.directory, config.output)
    if as_json:
        show_json(night)
    else:
        _show(night, outputs.rows(night), str(job.directory), outputs.ahead(night))
    code = REFUSED if night.refused else FINDINGS if night.findings else CLEAN
    raise click.exceptions.Exit(code)


# A record within a snapshot has an offset below 0, which is no option.
@command.command(
    "accept-record",
    short_help="Say that a record that is no event hides nothing.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=lives.BEGUN))
@click.argument("sha256")
@click.option("--reason", required=True, help="Why no event is lost by it; kept beside it.")
@config_options
def accept_record(
    partition: int,
    offset: int,
    sha256: str,
    reason: str,
    *,
    file: str,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say that a record of the log, which is no event, hides nothing; runs then pass it."""
    if not _SHA256.fullmatch(sha256):
        said = "SHA256 is 64 hexadecimal digits, as the refused run printed it"
        raise click.BadParameter(said, param_hint="SHA256")
    from rlmm_daemon.reconcile import control

    record = control.AcceptedRecord(
        metadata_partition=partition,
        offset=offset,
        sha256=sha256,
        reason=reason,
        accepted_at_ms=time.time_ns() // 1_000_000,
        accepted_by=whoever(),
    )

    async def work() -> None:
        async with control.opened(load(load_reconcile(file, overrides).daemon_config)) as storage:
            await control.accept(storage, record)

    asyncio.run(work())
    if as_json:
        show_json(msgspec.to_builtins(record))
    else:
        click.echo(f"accepted the record at offset {offset} of metadata partition {partition}")


@contextmanager
def _incomplete(*, as_json: bool) -> Iterator[None]:
    """Turn what kept a run from its end into exit code 5, its reason told."""
    try:
        yield
    except ConfigError:
        raise
    except StorageNotConfigured as error:  # another plugin's segments: read, and not ours to judge
        show_error(error, as_json=as_json)
        raise click.exceptions.Exit(REFUSED) from error
    except ImportError as error:
        click.echo(f"rlmm: {error}; install the extra: pip install 'rlmm-daemon[spark]'", err=True)
        raise click.exceptions.Exit(INCOMPLETE) from error
    except (Exception, RunStopped) as error:
        # Whatever it was: Python's own exit code for it is 1, which says "findings" here.
        show_error(plain(error), as_json=as_json)
        raise click.exceptions.Exit(INCOMPLETE) from error


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM, systemd's when a run takes too long, end it with a report of what was done."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise RunStopped(INCOMPLETE)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield what shows the stage on a terminal; elsewhere nothing is shown."""
    if not sys.stderr.isatty():
        yield lambda stage: None  # noqa: ARG005 - nobody watches
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<12}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=8)

        def show(stage: str) -> None:
            bar.update(task, description=stage, advance=1)

        yield show


def _show(
    night: Any,
    kinds: list[tuple[str, str, int, int, str]],
    directory: str,
    ahead: Sequence[str] = (),
) -> None:
    show_facts(
        {
            "cluster": night.cluster,
            "objects": night.objects,
            "bytes": night.object_bytes,
            "events": night.events,
            "seconds": round(sum(night.seconds.values())),
            "report": f"{directory}/report.html",
        }
    )
    click.echo()
    if kinds:
        show_table(("severity", "kind", "number", "bytes", "what to do"), kinds)
    else:
        click.echo("storage and log agree")
    for note in night.notes:
        show_facts({"note": note})
    for reason in night.refused[:_REASONS_MAX]:
        show_facts({"refused": reason})
    if len(night.refused) > _REASONS_MAX:
        click.echo(f"and {len(night.refused) - _REASONS_MAX} reasons more, in summary.json")
    # It may be refused in the middle: then some of it is done.
    if night.execute and (not night.refused or night.quarantined or night.deleted):
        show_facts(
            {
                "quarantined": night.quarantined,
                "deleted": night.deleted,
                "failed": night.failed,
                "left for another night": night.left,
            }
        )
    for line in ahead:
        show_facts({"ahead": line})
