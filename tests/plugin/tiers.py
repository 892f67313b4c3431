"""Where a fleet's daemons store segments: one directory of all, or a bucket of a real S3 server."""

from abc import ABC, abstractmethod
from pathlib import Path, PurePath, PurePosixPath
from typing import Final, final

from deploy.dev.stack.s3 import IDENTITIES, S3Server
from tests.support.proxy_process import ProxyProcess
from tests.support.s3_daemon import Tier as Bucket

#: It soon ends what a broker that was killed had begun to delete.
QUICK_CLEANER: Final = """
[cleaner]
interval_seconds = 1
stuck_delete_seconds = 10
"""


class Tier(ABC):
    """What a daemon is told of the storage, and what is there, looked at past every daemon."""

    @abstractmethod
    def configure(self, directory: Path) -> str:
        """Return the lines of a daemon's configuration; `directory` is the daemon's own."""

    @abstractmethod
    def files(self, topic: str, suffix: str) -> list[PurePath]:
        """Return a topic's objects, as `<topic>-<partition>-<id>/<file>` below something."""

    @abstractmethod
    def text(self, file: PurePath) -> str:
        """Return what an object holds."""

    def heal(self) -> None:  # noqa: B027 - most have nothing that breaks
        """Mend what a test broke."""

    def end(self) -> None:  # noqa: B027 - some hold nothing
        """Free everything."""


@final
class DirectoryTier(Tier):
    """A directory that all daemons of the fleet reach."""

    def __init__(self, directory: Path, cleaner: str = "") -> None:
        """`cleaner` is for the daemons' configurations."""
        self.directory, self._cleaner = directory, cleaner

    def configure(self, directory: Path) -> str:  # noqa: ARG002 - the same for all
        return f"""
[storage]
kind = "local"
directory = "{self.directory}"
shared = true
{self._cleaner}
"""

    def files(self, topic: str, suffix: str) -> list[PurePath]:
        return sorted(
            path
            for directory in self.directory.glob(f"{topic}-*")
            for path in directory.glob(f"*{suffix}")
        )

    def text(self, file: PurePath) -> str:
        return Path(file).read_text()


@final
class S3Tier(Tier):
    """A bucket of its own, behind a proxy that can be killed."""

    def __init__(self, server: S3Server) -> None:
        self._bucket = Bucket(server)
        self.proxy = ProxyProcess(server.port).start()

    def configure(self, directory: Path) -> str:
        key, secret, _ = IDENTITIES["daemon"]
        for name, value in (("s3.key", key), ("s3.secret", secret)):
            (directory / name).write_text(value)
        return f"""
[storage]
kind = "s3"
bucket = "{self._bucket.bucket}"
endpoint = "{self.proxy.endpoint}"
addressing = "path"
access_key_id_file = "s3.key"
secret_access_key_file = "s3.secret"
read_timeout_ms = 10000
[read]
cache_free_bytes_min = 0
{QUICK_CLEANER}
"""

    def files(self, topic: str, suffix: str) -> list[PurePath]:
        return sorted(
            path
            for path in map(PurePosixPath, self._bucket.keys_there())
            if path.parent.name.startswith(f"{topic}-") and path.name.endswith(suffix)
        )

    def text(self, file: PurePath) -> str:
        answer = self._bucket.admin.get_object(Bucket=self._bucket.bucket, Key=str(file))
        return str(answer["Body"].read().decode())

    def heal(self) -> None:
        self.proxy.start()

    def end(self) -> None:
        self.proxy.end()
