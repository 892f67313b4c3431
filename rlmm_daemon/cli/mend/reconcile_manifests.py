"""`rlmm reconcile manifests`, and what an operator may say of one: restore, hold, approve."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec import UNSET

from rlmm_daemon.cli.audit import whoever
from rlmm_daemon.cli.mend.reconcile_options import (
    config_options,
    execute_option,
    reason_option,
)
from rlmm_daemon.cli.output import show_json, show_table
from rlmm_daemon.config import Config, load
from rlmm_daemon.config.loading import load_reconcile

if TYPE_CHECKING:
    from rlmm_daemon.reconcile.act.quarantine import Manifest, ManifestWord

#: Keys of objects that are gone, as many as are worth naming.
_NAMED_MAX: Final = 20


@click.command("manifests", short_help="List what earlier runs quarantined, and when it may go.")
@config_options
def manifests(*, file: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """List what earlier runs have quarantined, and from when on a run may delete it.

    Exit code 1 if one can't be read: then no run quarantines or deletes anything.
    """
    config = load_reconcile(file, overrides)
    found, damaged = asyncio.run(_read(load(config.daemon_config)))
    if as_json:
        show_json(
            {name: msgspec.to_builtins(each) for name, each in sorted(found.items())}
            | {name: {"damaged": reason} for name, reason in damaged.items()}
        )
    else:
        wait_ms = config.safety.quarantine_hours * 3_600_000
        show_table(
            ("manifest", "objects", "bytes", "restored", "state", "deleted from"),
            [
                (
                    name,
                    len(m.entries),
                    sum(e.size for e in m.entries),
                    m.restored,
                    *_state(m, wait_ms),
                )
                for name, m in sorted(found.items())
            ]
            + [(name, "-", "-", "-", "damaged", "-") for name in sorted(damaged)],
        )
        for reason in damaged.values():
            click.echo(f"{reason}: nothing is quarantined or deleted beside it", err=True)
    if damaged:
        raise click.exceptions.Exit(1)


@click.command("restore", short_help="Take a manifest out of force: its objects stay.")
@click.argument("manifest")
@config_options
def restore(manifest: str, *, file: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Take a manifest out of force: its objects stay, and are not quarantined again.

    A run that deletes right now may not have seen it yet, so this waits until it must have; then
    each object is looked at. Exit code 1 if any of them is gone.

    --json: {manifest, objects, left, gone: {key: what became of it}}.
    """
    from rlmm_daemon.reconcile.act import object_tags, quarantine

    daemon = load(load_reconcile(file, overrides).daemon_config)
    word = _word("")
    restored = asyncio.run(
        _kept(daemon, lambda storage: quarantine.restore(storage, manifest, word), as_json=as_json)
    )
    object_tags.tag_all(daemon, [e.key for e in restored.entries if e.upload_id is None], None)
    _look(daemon, manifest, restored, "restored", as_json=as_json)


@click.command("hold")
@click.argument("manifest")
@reason_option
@execute_option
@config_options
def hold(
    manifest: str,
    reason: str,
    *,
    execute: bool,
    file: str,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Leave a manifest's objects alone until it is released.

    Waits for a run that deletes right now, and looks at each object, as restore does.
    """
    from rlmm_daemon.reconcile.act import manifest_orders, quarantine

    daemon = load(load_reconcile(file, overrides).daemon_config)
    word = _word(reason)
    if not execute:
        _would(daemon, manifest, "be held back: no run deletes its objects", as_json=as_json)
        return

    def held(known: "Manifest") -> "Manifest":
        return manifest_orders.held(known, word)

    changed = asyncio.run(
        _kept(daemon, lambda storage: quarantine.change(storage, manifest, held), as_json=as_json)
    )
    _look(daemon, manifest, changed, "held back", as_json=as_json)


@click.command("release", short_help="Let a manifest that was held back go when it is due.")
@click.argument("manifest")
@execute_option
@config_options
def release(
    manifest: str, *, execute: bool, file: str, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Let a manifest that was held back be deleted when its quarantine is over."""
    from rlmm_daemon.reconcile.act import manifest_orders

    def released(known: "Manifest") -> "Manifest":
        return manifest_orders.released(known, manifest)

    daemon = load(load_reconcile(file, overrides).daemon_config)
    _say(daemon, manifest, "released", released, execute=execute, as_json=as_json)


@click.command("approve", short_help="Let a manifest go although it is above the bounds.")
@click.argument("manifest")
@reason_option
@execute_option
@config_options
def approve(
    manifest: str,
    reason: str,
    *,
    execute: bool,
    file: str,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Let a manifest's objects go although they are more than a run may delete of the storage.

    Only that share is lifted. They still have to be condemned again, to be what they were, and to
    have been listed for the whole quarantine. Look at them first: rlmm reconcile findings.
    """
    from rlmm_daemon.reconcile.act import manifest_orders

    word = _word(reason)

    def approved(known: "Manifest") -> "Manifest":
        return manifest_orders.approved(known, manifest, word)

    daemon = load(load_reconcile(file, overrides).daemon_config)
    _say(daemon, manifest, "approved", approved, execute=execute, as_json=as_json)


COMMANDS: Final = (manifests, restore, hold, release, approve)


async def _read(daemon: Config) -> "tuple[Mapping[str, Manifest], Mapping[str, str]]":
    from rlmm_daemon.reconcile import control
    from rlmm_daemon.reconcile.act import quarantine

    async with control.opened(daemon, reads_only=True) as storage:
        return await quarantine.Manifests(storage).look()


async def _kept(daemon: Config, change: Callable[[Any], Any], *, as_json: bool) -> Any:
    """Change a manifest, and wait until every run must have seen it."""
    from rlmm_daemon.reconcile import control, storage_time
    from rlmm_daemon.reconcile.act import lease

    async with control.opened(daemon) as storage:
        changed = await change(storage)
        clock = await storage_time.read(storage)
        found = await lease.look(storage)
        if not as_json and found is not None and (left_ms := found.late_ms - clock.now_ms()) > 0:
            click.echo(
                f"{found.owner} may be deleting: waiting until it has seen this,"
                f" or for {left_ms // 1000:,} s should it be gone",
                err=True,
            )
        await lease.wait_out(storage, clock.now_ms)
        return changed


def _say(
    daemon: Config,
    name: str,
    verb: str,
    change: "Callable[[Manifest], Manifest]",
    *,
    execute: bool,
    as_json: bool,
) -> None:
    from rlmm_daemon.reconcile import control
    from rlmm_daemon.reconcile.act import quarantine

    if not execute:
        _would(daemon, name, f"be {verb}", as_json=as_json)
        return

    async def work() -> "Manifest":
        async with control.opened(daemon) as storage:
            return await quarantine.change(storage, name, change)

    changed = asyncio.run(work())
    if as_json:
        show_json({"manifest": name, verb: True, "objects": len(changed.entries)})
    else:
        click.echo(f"{verb} {name} with its {len(changed.entries):,} objects")


def _would(daemon: Config, name: str, what: str, *, as_json: bool) -> None:
    """Say what a command would do with a manifest that is there."""
    from rlmm_daemon.reconcile import control
    from rlmm_daemon.reconcile.act import quarantine

    async def work() -> "Manifest":
        async with control.opened(daemon, reads_only=True) as storage:
            return (await quarantine.one(storage, name))[0]

    found = asyncio.run(work())
    size = sum(entry.size for entry in found.entries)
    if as_json:
        show_json({"manifest": name, "objects": len(found.entries), "bytes": size, "dry": True})
    else:
        click.echo(
            f"{name} with its {len(found.entries):,} objects ({size:,} bytes) would {what}"
            " (--execute does it)"
        )


def _look(daemon: Config, name: str, manifest: "Manifest", verb: str, *, as_json: bool) -> None:
    """Say which of a manifest's objects are there now; exit code 1 if one is not."""
    from rlmm_daemon.reconcile.act import deletions

    changes = deletions.changes(daemon, manifest.entries)
    gone = {key: change for key, change in changes.items() if change}
    left = len(changes) - len(gone)
    if as_json:
        show_json({"manifest": name, "objects": len(changes), "left": left, "gone": gone})
    else:
        click.echo(f"{verb} {name}: {left:,} of its {len(changes):,} objects are still there")
        if gone:
            rows = sorted(gone.items())[:_NAMED_MAX]
            show_table(("object", "what became of it"), rows)
            if len(gone) > len(rows):
                click.echo(f"and {len(gone) - len(rows):,} more (--json names them all)")
    if gone:
        raise click.exceptions.Exit(1)


def _state(manifest: "Manifest", wait_ms: int) -> tuple[str, str]:
    if manifest.restored:
        return "restored", "never"
    if manifest.held is not UNSET:
        return f"held by {manifest.held.by}", "never"
    from_ms = manifest.created_ms + wait_ms
    state = "quarantined" if manifest.approved is UNSET else f"approved by {manifest.approved.by}"
    return state, f"{datetime.fromtimestamp(from_ms / 1000, tz=UTC):%Y-%m-%d %H:%M} UTC"


def _word(reason: str) -> "ManifestWord":
    from rlmm_daemon.reconcile import storage_time
    from rlmm_daemon.reconcile.act import quarantine

    return quarantine.ManifestWord(by=whoever(), at_ms=storage_time.wall_ms(), reason=reason)
