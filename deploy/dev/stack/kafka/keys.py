"""Key material for the TLS listeners: an authority, the brokers' certificate, and rlmm's."""  # noqa: INP001 - scripts, no package

import shutil
import subprocess
from pathlib import Path
from typing import Final

_SANS: Final = "subjectAltName=IP:127.0.0.1,DNS:localhost"
#: The principal of the client's certificate is User:CN=rlmm.
_CLIENT: Final = "rlmm"


def make(directory: Path) -> None:
    """Fill `directory` once: ca.pem, server.pem, client.crt and client.key (PEM, P-256).

    Raises:
        RuntimeError: there is no openssl.
    """
    if (directory / "client.crt").exists():
        return
    openssl = shutil.which("openssl")
    if openssl is None:
        raise RuntimeError("missing: openssl (apt-get install openssl)")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650"]

    def request(name: str, common_name: str, *more: str) -> None:
        output = ["-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={common_name}"]
        subprocess.run(  # noqa: S603 - our own arguments
            [openssl, "req", "-x509", *key, *output, *more],
            cwd=directory,
            check=True,
            capture_output=True,
            timeout=60,
        )

    request("ca", "rlmm dev authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    request("server", "127.0.0.1", *signed, "-addext", _SANS)
    request("client", _CLIENT, *signed)
    (directory / "ca.crt").rename(directory / "ca.pem")
    both = (directory / "server.key").read_text() + (directory / "server.crt").read_text()
    (directory / "server.pem").write_text(both)
