"""Bill of materials of a package (CycloneDX 1.5): each distribution in it, by its own files."""  # noqa: INP001 - a script, no package

import hashlib
import uuid
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final

#: Of the serial numbers: the same contents have the same one.
_NAMESPACE: Final = uuid.UUID("5b0d3b64-6a0c-4f5e-9d7a-2f4d6f2b8c11")


def of_distributions(name: str, version: str, site_packages: Path) -> dict[str, Any]:
    """Return it for what is installed in a directory."""
    found = [_component(each) for each in sorted(site_packages.glob("*.dist-info"))]
    return _document(name, version, [each for each in found if each["name"] != name])


def of_file(name: str, version: str, file: Path) -> dict[str, Any]:
    """Return it for a file that contains nothing of others."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    component = {
        "type": "file",
        "bom-ref": file.name,
        "name": file.name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }
    return _document(name, version, [component])


def _component(directory: Path) -> dict[str, Any]:
    said = HeaderParser().parsestr((directory / "METADATA").read_text(encoding="utf-8"))
    name, version = said["Name"], said["Version"]
    canonical = name.lower().replace("_", "-").replace(".", "-")
    url = f"pkg:pypi/{canonical}@{version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": url,
        "name": canonical,
        "version": version,
        "purl": url,
    }
    expression = said.get("License-Expression")
    if expression:
        component["licenses"] = [{"expression": expression}]
    elif said.get("License"):
        component["licenses"] = [{"license": {"name": said["License"].splitlines()[0][:100]}}]
    return component


def _document(name: str, version: str, components: list[dict[str, Any]]) -> dict[str, Any]:
    described = ";".join([name, version, *(each["bom-ref"] for each in components)])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, described)}",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": name, "name": name, "version": version}
        },
        "components": components,
    }
