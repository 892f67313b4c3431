"""Contents, dependencies and scripts of each package, as nfpm's configuration."""  # noqa: INP001 - a script, no package

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SCRIPTS: Final = REPOSITORY / "deploy" / "packages" / "scripts"
#: A key without a passphrase, or with it in NFPM_PASSPHRASE; unsigned without one.
KEY_VARIABLE: Final = "RLMM_SIGNING_KEY"
_SUMMARIES: Final[Mapping[str, str]] = {
    "rlmm-daemon": "Sidecar of a Kafka broker: remote log metadata (KIP-405) and segment mover",
    "rlmm-reconcile": "Nightly Spark job that holds remote storage against Kafka's metadata log",
    "rlmm-kafka-plugin": "Plugin of a Kafka broker that speaks to the RLMM daemon beside it",
}
NAMES: Final = tuple(_SUMMARIES)
#: Which of them are of one processor's kind: they hold compiled modules.
_COMPILED: Final = ("rlmm-daemon", "rlmm-reconcile")


def configuration(
    name: str, tree: Path, *, version: str, architecture: str, packager: str
) -> dict[str, Any]:
    """Return nfpm's configuration of a package with this tree; `packager` is deb or rpm."""
    found = {
        "name": name,
        "arch": architecture if name in _COMPILED else "all",
        "platform": "linux",
        "version": version,
        "version_schema": "semver",
        "release": "1",
        "section": "net",
        "maintainer": "RLMM daemon <rlmm@localhost>",
        "description": _SUMMARIES[name],
        "license": "Apache-2.0",
        "mtime": os.environ.get("SOURCE_DATE_EPOCH_RFC3339", "2026-01-01T00:00:00Z"),
        "depends": _depends(name, version, packager),
        "contents": [{"src": str(tree), "dst": "/", "type": "tree"}],
        "deb": {"compression": "zstd"},
        "rpm": {"compression": "zstd", "group": "System Environment/Daemons"},
    }
    if name == "rlmm-daemon":
        found["scripts"] = {
            each: str(SCRIPTS / f"{each}.sh") for each in ("postinstall", "preremove", "postremove")
        }
    elif name == "rlmm-kafka-plugin":
        found["scripts"] = {
            each: str(SCRIPTS / "reload.sh") for each in ("postinstall", "postremove")
        }
    key = os.environ.get(KEY_VARIABLE)
    if key:
        found[packager] |= {"signature": {"key_file": key}}
    return found


def _depends(name: str, version: str, packager: str) -> list[str]:
    if name == "rlmm-daemon":
        return ["python3.11", "passwd" if packager == "deb" else "shadow-utils"]
    if name == "rlmm-reconcile":  # modules for the very same interpreter and the same code
        same = f"rlmm-daemon (= {version}-1)" if packager == "deb" else f"rlmm-daemon = {version}-1"
        return [same]
    return ["rlmm-daemon"]
