"""`make demo-s3`: the demo on a real S3 server, with faults on the way to it.

SeaweedFS runs on the loopback, and in front of it a proxy that resets connections, cuts answers,
asks for fewer requests and loses an answer. Every check of `make demo` has to hold all the same,
and at the end no multipart upload is left.
"""  # noqa: INP001 - a script, no package

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from deploy.dev.demos import local as plain
from deploy.dev.demos.local import CheckFailed, Demo, check
from deploy.dev.stack.fault_proxy import Fault, Kind
from deploy.dev.stack.s3 import running
from rlmm_daemon.client import Client
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import SegmentId
from tests.support.daemon_process import DaemonProcess
from tests.support.fork_server import Launch
from tests.support.s3_daemon import ProxyThread, Tier, configure

MIB = 1024 * 1024


def answer(status: int, code: str, operation: str, times: int) -> Fault:
    """Return a fault that is an answer of S3's."""
    return Fault(kind=Kind.ANSWER, operation=operation, times=times, status=status, code=code)


#: What goes wrong, by the step on whose way it is.
FAULTS = {
    "copies": [
        answer(503, "SlowDown", "PutObject", 3),
        answer(500, "InternalError", "PutObject", 2),
        Fault(kind=Kind.RESET, operation="PutObject", times=2),
        Fault(kind=Kind.DAMAGE_REQUEST, operation="PutObject", key=r"\.log$", times=1),
        Fault(kind=Kind.LOSE_ANSWER, operation="PutObject", key=r"\.log$", times=1),
    ],
    "reads": [
        Fault(kind=Kind.RESET, operation="GetObject", times=1),
        Fault(kind=Kind.CUT_ANSWER, operation="GetObject", times=2, after=10_000),
        answer(200, "InternalError", "GetObject", 1),
    ],
    "parts": [
        Fault(kind=Kind.CUT_REQUEST, operation="UploadPart", times=2, after=2 * MIB),
        answer(503, "SlowDown", "UploadPart", 2),
        answer(200, "InternalError", "UploadPart", 1),
        Fault(kind=Kind.LOSE_ANSWER, operation="CompleteMultipartUpload", times=1),
    ],
}


class DaemonOnS3(DaemonProcess):
    """`rlmm run` with its segments in a bucket."""

    file = Path()

    def _launch(self, notify: str) -> Launch:
        launch = super()._launch(notify)
        return replace(launch, arguments=["run", "--config", str(self.file)])


@dataclass(slots=True)
class S3Demo(Demo):
    """The demo, the way to its bucket, and the bucket itself."""

    proxy: ProxyThread = field(kw_only=True)
    tier: Tier = field(kw_only=True)
    met: list[Fault] = field(default_factory=list)

    def objects_of(self, segment_id: SegmentId) -> Sequence[object]:
        """Ask the server itself."""
        return self.tier.keys_there(segment_id)

    @contextmanager
    def under(self, name: str) -> Iterator[None]:
        """Put the faults of this name on the way; each must have been met."""
        planted = [self.proxy.plant(copy(each)) for each in FAULTS[name]]
        yield
        self.proxy.lift()
        unmet = [each for each in planted if not each.hits]
        check(not unmet, f"these faults met nothing: {unmet}")
        self.met += planted
        told = ", ".join(f"{each.hits} x {_named(each)}" for each in planted)
        self.console.print(f"  [yellow]on the way:[/] [dim]{told}[/]", soft_wrap=True)


def _named(fault: Fault) -> str:
    what = f"{fault.status} {fault.code}" if fault.kind is Kind.ANSWER else fault.kind.name.lower()
    return f"{what.replace('_', ' ')} of {fault.operation}"


def doctor(demo: S3Demo) -> None:
    """Ask what the bucket allows."""
    with demo.step("rlmm storage doctor") as step:
        run = demo.daemon.rlmm("storage", "doctor", "--config", str(_file(demo)), "--json")
        check(run.returncode == 0, run.stdout + run.stderr)
        step.count = len(json.loads(run.stdout)["steps"])
        step.note = "put, head, ranges, lists, parts and deletes of a canary: all allowed"


def leaves_nothing(demo: S3Demo) -> None:
    """See that every object belongs to a segment, and no upload is left."""
    with demo.step("look into the bucket") as step:
        check(demo.tier.uploads() == [], f"uploads are left: {demo.tier.uploads()}")
        ours = [key for key in demo.tier.keys_there() if not key.startswith("_rlmm/")]
        for segment_id in demo.finished:
            step.count += len(demo.tier.keys_there(segment_id))
        check(step.count == len(ours), f"{step.count} of {len(ours)} objects are segments'")
        step.note = "an object for each file of a live segment, no multipart upload left"


def _file(demo: S3Demo) -> Path:
    assert isinstance(demo.daemon, DaemonOnS3)
    return demo.daemon.file


def run(demo: S3Demo) -> None:
    """Do everything, in order."""
    plain.start(demo)
    doctor(demo)
    with demo.daemon.client() as client:
        plain.announce(demo, client)
        with demo.under("copies"):
            plain.copy(demo, client)
        plain.look_up(demo, client)
        with demo.under("reads"):
            plain.fetch_ranges(demo, client)
            plain.fetch_indexes(demo, client)
        big = plain.kill_in_the_middle(demo, client)
    plain.restart(demo, big)
    with demo.daemon.client() as client:
        with demo.under("parts"):
            plain.clean_up(demo, client, big)
        again(demo, client)
        plain.delete(demo, client)
    leaves_nothing(demo)
    plain.stop(demo)


def again(demo: S3Demo, client: Client) -> None:
    """Fetch everything again: from the chunk cache on the disk, without a request to S3."""
    before = demo.proxy.proxy.calls["GetObject"]
    with demo.step("fetch every log again") as step:
        for segment in demo.finished.values():
            with client.fetch_log_segment(segment) as log:
                step.size_bytes += len(log.readall())
            step.count += 1
        asked = demo.proxy.proxy.calls["GetObject"] - before
        check(asked == 0, f"{asked} requests for what had been read before")
        step.note = "from the cache on the disk: no request to the storage"


def main() -> int:
    """Return the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--keep", action="store_true", help="leave the directory behind")
    keep = options.parse_args().keep
    directory = Path(tempfile.mkdtemp(prefix="rlmm-demo-s3-"))
    console, begun = Console(highlight=False), time.perf_counter()
    daemon = DaemonOnS3(directory)
    try:
        with running() as server, ProxyThread(server) as proxy:
            tier = Tier(server)
            daemon.file = configure(directory, proxy.endpoint, tier.bucket, "{hash:8}/demo")
            demo = S3Demo(daemon, console, proxy=proxy, tier=tier)
            console.print(f"SeaweedFS at {server.endpoint}, our faults at {proxy.endpoint}")
            try:
                run(demo)
            finally:
                daemon.kill()
    except (CheckFailed, RlmmError, RuntimeError) as error:
        keep = True
        console.print(f"[bold red]✗ {type(error).__name__}[/]: {error}", markup=True)
        console.print("The daemon's last words:", daemon.last_words(), markup=False)
        return 1
    else:
        plain.show(demo, time.perf_counter() - begun)
        return 0
    finally:
        if keep:
            console.print(f"Everything is left in {directory}")
        else:
            shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
