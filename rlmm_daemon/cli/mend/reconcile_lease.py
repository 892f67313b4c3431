"""`rlmm reconcile lease` and `break-lease`: who may delete now, and how to end that."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from rlmm_daemon.cli.audit import whoever
from rlmm_daemon.cli.mend.reconcile_options import config_options, execute_option
from rlmm_daemon.cli.output import show_facts, show_json
from rlmm_daemon.config import Config, load
from rlmm_daemon.config.loading import load_reconcile

if TYPE_CHECKING:
    from rlmm_daemon.reconcile.act.lease import FoundLease
    from rlmm_daemon.reconcile.storage_time import StorageClock


@click.command("lease")
@config_options
def lease(*, file: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show which run may delete now, and until when.

    Exit code 1 if the lease can't be read: then no run may delete.

    --json: {owner, fence, ends_at_ms, damage}; null if no run ever took it.
    """
    daemon = load(load_reconcile(file, overrides).daemon_config)
    found = asyncio.run(_look(daemon))
    _show(found, as_json=as_json)
    if found is not None and found.damage:
        raise click.exceptions.Exit(1)


@click.command("break-lease", short_help="Take the lease from a run that does not live any more.")
@execute_option
@config_options
def break_lease(*, execute: bool, file: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Take the lease from a run that does not live any more, so that the next one may delete.

    A run that lives, paused or cut off, may still delete what it had just checked: end it first.
    So nobody gets the lease before it would have run out; this command waits for that.

    --json: {broken, owner, fence, ends_at_ms}.
    """
    daemon = load(load_reconcile(file, overrides).daemon_config)
    found, broken = asyncio.run(_break(daemon, execute=execute, as_json=as_json))
    if as_json:
        show_json({"broken": broken, **(_facts(found) or {})})
    elif not broken and found is None:
        click.echo("nobody holds the lease: there is nothing to break")
    elif not broken:
        _show(found, as_json=False)
        click.echo("this would break it (--execute). First make sure that its run is gone:")
        click.echo("one that is only paused still deletes what it has just checked.")
    else:
        click.echo("broken: the next run may take it")


COMMANDS: Final = (lease, break_lease)


async def _look(daemon: Config) -> "FoundLease | None":
    from rlmm_daemon.reconcile import control
    from rlmm_daemon.reconcile.act import lease

    async with control.opened(daemon, reads_only=True) as storage:
        return await lease.look(storage)


async def _break(
    daemon: Config, *, execute: bool, as_json: bool
) -> "tuple[FoundLease | None, bool]":
    """Return the lease as it was, None if nobody holds it, and whether it was broken."""
    from rlmm_daemon.reconcile import control, storage_time
    from rlmm_daemon.reconcile.act import lease, quarantine

    async with control.opened(daemon, reads_only=not execute) as storage:
        found = await lease.look(storage)
        if found is None:
            return None, False
        if not execute:
            over = found.lease is not None and found.ends_ms <= storage_time.wall_ms()
            return None if over else found, False
        clock: StorageClock = await storage_time.read(storage)
        if found.lease is not None and found.ends_ms <= clock.now_ms():
            return None, False
        manifests, _ = await quarantine.Manifests(storage).look()
        fences = [each.fence for each in manifests.values()]
        fence = max([found.lease.fence if found.lease else 0, *fences]) + 1
        seconds = max(found.ends_ms - clock.now_ms(), 0) // 1000
        if not as_json:
            click.echo(
                f"breaking the lease of {found.owner}: waiting {seconds} s for what it may do"
            )
        await lease.take_away(storage, found, by=whoever(), fence=fence, now_ms=clock.now_ms)
        return found, True


def _show(found: "FoundLease | None", *, as_json: bool) -> None:
    facts = _facts(found)
    if as_json:
        show_json(facts)
    elif facts is None:
        click.echo("no run ever took the lease")
    else:
        ends = datetime.fromtimestamp(facts["ends_at_ms"] / 1000, tz=UTC)
        until = "given back" if not facts["ends_at_ms"] else f"{ends:%Y-%m-%d %H:%M:%S} UTC"
        shown = {"owner": facts["owner"], "fence": facts["fence"], "until": until}
        show_facts(shown | ({"damaged": facts["damage"]} if facts["damage"] else {}))


def _facts(found: "FoundLease | None") -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "owner": found.owner,
        "fence": found.lease.fence if found.lease else None,
        "ends_at_ms": found.ends_ms,
        "damage": found.damage,
    }
