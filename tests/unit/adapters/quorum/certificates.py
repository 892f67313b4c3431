"""Certificates of a quorum for tests: authorities, and members that they sign (openssl, P-256)."""

import shutil
import subprocess
from pathlib import Path

from tests.unit.adapters.quorum.three import CLUSTER

OTHER_CLUSTER = "b3RoZXItY2x1c3Rlci0tLS"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(directory: Path, *arguments: str) -> None:
    """Run it there."""
    program = shutil.which("openssl")
    assert program is not None, "these tests need openssl"
    done = subprocess.run(
        [program, *arguments], cwd=directory, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


class Authority:
    """Signs members; its own certificate is `ca`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        self.name = name
        self.ca = directory / f"{name}.crt"
        if not self.ca.exists():
            directory.mkdir(parents=True, exist_ok=True)
            openssl(
                directory,
                *("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}"),
                *("-keyout", f"{name}.key", "-out", f"{name}.crt"),
                *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            )

    def sign(
        self, member: str, *, cluster: str = CLUSTER, sans: str | None = None, expired: bool = False
    ) -> tuple[Path, Path]:
        """Return the certificate and the key of a member; `sans` takes the place of its URI."""
        sans = f"URI:rlmm://{cluster}/{member}" if sans is None else sans
        number = sum(1 for _ in self.directory.glob("*.crt"))
        name = f"{member.replace('/', '-')}-{number}"
        openssl(
            self.directory,
            *("req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key"),
            *("-out", f"{name}.csr", "-addext", "basicConstraints=critical,CA:FALSE"),
            *(("-addext", f"subjectAltName={sans}") if sans else ()),
        )
        openssl(
            self.directory,
            *("x509", "-req", "-in", f"{name}.csr", "-copy_extensions", "copyall"),
            *("-CA", f"{self.name}.crt", "-CAkey", f"{self.name}.key", "-CAcreateserial"),
            *("-days", "-1" if expired else "2", "-out", f"{name}.crt"),
        )
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"
