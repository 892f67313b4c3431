"""Manifests as an earlier night has left them."""

from collections.abc import Iterable

from rlmm_daemon.ports.storage import RemoteStorage
from rlmm_daemon.reconcile.act import quarantine
from rlmm_daemon.reconcile.act.quarantine import Manifest


async def write_manifests(storage: RemoteStorage, manifests: Iterable[Manifest]) -> list[str]:
    """Write them all and return their names."""
    named = quarantine.named(manifests)
    for name, manifest in named.items():
        await quarantine.write_manifest(storage, name, manifest)
    return [*named]
