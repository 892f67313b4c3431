"""The manifests of deploy/kubernetes, read."""

from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.daemon_process import REPOSITORY

HOME: Final = REPOSITORY / "deploy" / "kubernetes"


@cache
def resources(file: Path) -> list[dict[str, Any]]:
    """Return the resources of a file."""
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


def manifests() -> list[Path]:
    """Return all files, optional ones too."""
    return sorted(HOME.rglob("*.yaml"))


def named(kind: str, name: str) -> dict[str, Any]:
    """Return a resource."""
    [found] = [
        each
        for file in manifests()
        for each in resources(file)
        if each["kind"] == kind and each["metadata"]["name"] == name
    ]
    return found


def configuration(directory: Path) -> Path:
    """Write the files of the daemon's ConfigMap there; returns the daemon's own."""
    for name, text in named("ConfigMap", "rlmm")["data"].items():
        (directory / name).write_text(text)
    return directory / "rlmm.toml"
