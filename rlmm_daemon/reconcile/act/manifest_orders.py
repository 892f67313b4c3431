"""Orders of operators about one manifest: held back, released, let go past a night's share.

Pure: the commands write what comes of them (`quarantine.change`), and each of them is harmless when
it is given twice.
"""

import msgspec
from msgspec import UNSET

from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.reconcile.act.quarantine import Manifest, ManifestWord


def held(manifest: Manifest, word: ManifestWord) -> Manifest:
    """Return it held back: no run deletes its objects until it is released."""
    if manifest.held is not UNSET:
        return manifest
    return msgspec.structs.replace(manifest, held=word)


def released(manifest: Manifest, name: str) -> Manifest:
    """Return it held back no more.

    Raises:
        InvalidArgument: it was restored.
    """
    _require_in_force(manifest, name)
    return msgspec.structs.replace(manifest, held=UNSET)


def approved(manifest: Manifest, name: str, word: ManifestWord) -> Manifest:
    """Return it with leave to go whatever share of the storage it is, once it is due.

    Raises:
        InvalidArgument: it was restored.
    """
    _require_in_force(manifest, name)
    if manifest.approved is not UNSET:
        return manifest
    return msgspec.structs.replace(manifest, approved=word)


def _require_in_force(manifest: Manifest, name: str) -> None:
    if manifest.restored:
        raise InvalidArgument(f"manifest {name!r} was restored: its objects stay for good")
