"""`make bench-s3`: copies to and reads from a real S3 server beside the peers, in the same run.

On a small machine the wall time of an upload is the server's, so what counts is the client's CPU
and memory. Every piece of work runs in a fresh process, clients taking turns.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace
from rich.console import Console

from deploy.dev.stack.s3 import BUCKET, IDENTITIES, S3Server, running
from tests.benchmarks.rows import Row, median, table
from tests.benchmarks.run import RESULTS, keep
from tests.benchmarks.s3_beside import Found, measured
from tests.benchmarks.s3_profile import show
from tests.benchmarks.stolen import Calm
from tests.support.daemon_process import REPOSITORY

MIB: Final = 1024 * 1024
#: As `read.chunk_bytes`.
CHUNK_BYTES: Final = 4 * MIB
PARTS_IN_FLIGHT: Final = 4
PART_MIB: Final = 16
#: Ours, with `storage.transport = "aiobotocore"`, which all but reads goes through anyway.
SDK: Final = "ours through aiobotocore"
HERE: Final = Path(__file__).parent
Figures = Mapping[str, float]


class Bench:
    """One server, one directory of files, and the peers' environment."""

    def __init__(self, server: S3Server, home: Path, peers: Path, size: int) -> None:
        self.server, self.home, self.peers = server, home, peers
        self.size, self.calm = size, Calm()
        key, secret, _ = IDENTITIES["daemon"]
        self.base = {
            "endpoint": server.endpoint, "bucket": BUCKET, "key": key, "secret": secret,
        }  # fmt: skip
        self.big = home / "big"
        _fill(self.big, size)
        self.small = []
        for number in range(size // (16 * MIB)):
            path = home / f"small-{number}"
            _fill(path, 16 * MIB)
            self.small.append(path)

    # Each client's form of one piece of work.

    def python(self, client: str, job: dict[str, Any]) -> Figures:
        """Run ours or a Python peer in a fresh process."""
        module = {"ours": "s3_ours", SDK: "s3_ours", "aiobotocore": "s3_plain"}.get(client)
        if client == SDK:
            job = job | {"transport": "aiobotocore"}
        command = (
            [sys.executable, "-m", f"tests.benchmarks.{module}"]
            if module
            else [str(self.peers / "bin/python"), "-P", str(HERE / "s3_peer.py")]
        )
        run = subprocess.run(
            [*command, json.dumps(self.base | {"peer": client} | job)],
            cwd=REPOSITORY if module else self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if run.returncode:
            raise RuntimeError(f"{client}: {run.stderr[:4_000]} ... {run.stderr[-2_000:]}")
        found: dict[str, float] = json.loads(run.stdout)
        return found

    def cached(self, client: str, job: dict[str, Any]) -> Figures:
        """The same with a cache that is empty before and gone afterwards."""
        try:
            return self.python(client, job)
        finally:
            shutil.rmtree(job["cache"], ignore_errors=True)

    def tool(self, command: Sequence[str]) -> Figures:
        """Run a command line tool; its start is in its figures."""
        environment = os.environ | {
            "AWS_ACCESS_KEY_ID": self.base["key"],
            "AWS_SECRET_ACCESS_KEY": self.base["secret"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "S3_ENDPOINT_URL": self.base["endpoint"],
        }
        begun = time.perf_counter()
        with subprocess.Popen(
            [str(self.peers / "bin" / command[0]), *command[1:]],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                assert process.stderr is not None
                raise RuntimeError(f"{command}: {process.stderr.read()[-2_000:]!r}")
        return {
            "seconds": time.perf_counter() - begun,
            "cpu": usage.ru_utime + usage.ru_stime,
            "extra_mib": usage.ru_maxrss / 1024,
        }


def _fill(path: Path, size: int) -> None:
    block = os.urandom(MIB)
    with path.open("wb") as file:
        for number in range(size // MIB):
            file.write(number.to_bytes(8, "big") + block[8:])
        file.flush()
        os.fsync(file.fileno())


def upload(bench: Bench, rounds: int) -> list[Row]:
    files = [[str(bench.big), "bench/big"]]
    tools = {
        "awscli": ["aws", "--endpoint-url", bench.server.endpoint, "s3", "cp", "--quiet",
                   str(bench.big), f"s3://{BUCKET}/bench/big-aws"],
        "s5cmd": ["s5cmd", "cp", "-c", "8", "-p", "16", str(bench.big), f"s3://{BUCKET}/bench/big-s5"],
    }  # fmt: skip
    found = _rounds(bench, rounds, {"work": "upload", "files": files}, tools)
    return _transfer_rows(
        "upload", f"upload of {bench.size // MIB:,} MiB", bench, found, cpu_max=1.1
    )


def small(bench: Bench, rounds: int) -> list[Row]:
    files = [[str(path), f"bench/many/{path.name}"] for path in bench.small]
    pattern = f"{bench.home}/small-*"
    tools = {
        "awscli": ["aws", "--endpoint-url", bench.server.endpoint, "s3", "cp", "--quiet",
                   "--recursive", "--exclude", "*", "--include", "small-*", str(bench.home),
                   f"s3://{BUCKET}/bench/aws"],
        "s5cmd": ["s5cmd", "cp", "-c", "4", "-p", "16", pattern, f"s3://{BUCKET}/bench/s5/"],
    }  # fmt: skip
    found = _rounds(bench, rounds, {"work": "upload", "files": files}, tools)
    what = f"upload of {len(files)} x 16 MiB"
    return _transfer_rows("small", what, bench, found, cpu_max=1.1)


def download(bench: Bench, rounds: int) -> list[Row]:
    _ensure(bench)
    target = bench.home / "got"
    tools = {
        "awscli": ["aws", "--endpoint-url", bench.server.endpoint, "s3", "cp", "--quiet",
                   f"s3://{BUCKET}/bench/big", str(target)],
        "s5cmd": ["s5cmd", "cp", "-c", "8", "-p", "16", f"s3://{BUCKET}/bench/big", str(target)],
    }  # fmt: skip
    job = {"work": "download", "files": [[str(target), "bench/big", str(bench.big)]]}
    found, what = _rounds(bench, rounds, job, tools), f"fetch of {bench.size // MIB:,} MiB"
    return [
        *_transfer_rows("download", what, bench, found, cpu_max=0.8),
        *_transfer_rows(
            "download", f"{what}, through aiobotocore", bench, found, cpu_max=0.8, client=SDK
        ),
    ]


def ranges(bench: Bench, rounds: int) -> list[Row]:
    _ensure(bench)
    luck = random.Random(5)
    # Never two in one chunk: the first read of each must find nothing cached.
    chunks = list(range(bench.size // CHUNK_BYTES))
    luck.shuffle(chunks)
    starts = [each * CHUNK_BYTES + luck.randrange(CHUNK_BYTES - MIB) for each in chunks[:200]]
    job = {"work": "ranges", "object": "bench/big", "size": bench.size, "starts": starts}
    figures: dict[str, list[Figures]] = defaultdict(list)
    for number in range(rounds):
        for peer in ("boto3", "obstore"):
            figures[peer].append(bench.calm.measure(partial(bench.python, peer, job)))
        for name, client, warm in (
            ("ours", "ours", False),
            (SDK, SDK, False),
            ("ours warm", "ours", True),
        ):
            cache = bench.home / f"cache-{number}-{name.replace(' ', '-')}"
            ours = partial(bench.cached, client, job | {"cache": str(cache), "warm": warm})
            figures[name].append(bench.calm.measure(ours))
    p50 = {
        name: median([each["p50"] for each in several]) * 1000 for name, several in figures.items()
    }
    rows = []
    for name, most in (("ours", 1.1), (SDK, 1.1), ("ours warm", 0.25)):
        rows.append(
            Row(
                group="ranges",
                what=f"random 1 MiB read, p50, {'warm' if 'warm' in name else 'cold'}"
                + (", through aiobotocore" if name == SDK else ""),
                value=p50[name],
                unit="ms",
                peer="boto3",
                peer_value=p50["boto3"],
                ratio=p50[name] / p50["boto3"],
                at_most=most,
                note=f"obstore {p50['obstore']:.1f} ms",
            )
        )
    return rows


def beside(bench: Bench, rounds: int) -> list[Row]:
    """Look-ups during a copy at full rate, beside look-ups without one."""

    def other(file: Path) -> None:
        bench.python("boto3", {"work": "upload", "files": [[str(file), "bench/beside"]]})

    def once() -> Found:
        with tempfile.TemporaryDirectory(prefix="beside-", dir=bench.home) as home:
            return measured(bench.server, Path(home) / "d", other)

    found = [bench.calm.measure(once) for _ in range(rounds)]
    idle = median([each.idle_ms for each in found])
    during = median([each.copying_ms for each in found])
    speed = median([each.copy_mb_per_second for each in found])
    # What the machine has left for a daemon that does nothing while another process copies.
    left = median([each.beside_ms for each in found])
    return [
        Row(
            group="beside",
            what="look-up p99 during a full-rate copy",
            value=during,
            unit="ms",
            peer="without a copy",
            peer_value=idle,
            ratio=during / idle,
            at_most=2.0,
            note=f"the copy ran at {speed:.0f} MB/s; while boto3 copied beside it {left:.2f} ms",
        )
    ]


def _ensure(bench: Bench) -> None:
    bench.python("ours", {"work": "upload", "files": [[str(bench.big), "bench/big"]]})


def _rounds(
    bench: Bench, rounds: int, job: dict[str, Any], tools: Mapping[str, Sequence[str]]
) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = defaultdict(list)
    for _ in range(rounds):
        # What the library costs by itself, where it is asked for whole parts.
        plain = ("aiobotocore",) if job["work"] == "upload" else ()
        other = (SDK,) if job["work"] == "download" else ()
        for client in ("ours", *other, "boto3", "obstore", *plain):
            found[client].append(bench.calm.measure(partial(bench.python, client, job)))
        for name, command in tools.items():
            found[name].append(bench.calm.measure(partial(bench.tool, command)))
    return found


def _transfer_rows(
    group: str,
    what: str,
    bench: Bench,
    found: Mapping[str, list[Figures]],
    *,
    cpu_max: float,
    client: str = "ours",
) -> list[Row]:
    gib = bench.size / (1024 * MIB)

    def of(name: str, figure: str) -> float:
        return median([each[figure] for each in found[name]])

    speed = {name: bench.size / of(name, "seconds") / 1e6 for name in found}
    best = max(("boto3", "obstore", "awscli"), key=lambda name: speed[name])
    peers = [name for name in found if name not in {"ours", SDK}]
    others = ", ".join(f"{name} {of(name, 'cpu') / gib:.2f}" for name in peers)
    walls = ", ".join(f"{name} {speed[name]:.0f}" for name in peers)
    memory = ", ".join(f"{name} {of(name, 'extra_mib'):.0f}" for name in peers)
    most = PARTS_IN_FLIGHT * PART_MIB + 32
    extra = of(client, "extra_mib")
    return [
        Row(
            group=group, what=f"{what}: client CPU", value=of(client, "cpu") / gib, unit="s/GiB",
            peer="boto3", peer_value=of("boto3", "cpu") / gib,
            ratio=of(client, "cpu") / of("boto3", "cpu"), at_most=cpu_max, note=others,
        ),
        Row(
            group=group, what=f"{what}: speed", value=speed[client], unit="MB/s", peer=best,
            peer_value=speed[best], ratio=speed[client] / speed[best], at_least=1.0, note=walls,
        ),
        Row(
            group=group, what=f"{what}: peak extra memory", value=extra, unit="MiB",
            peer="allowed", peer_value=most, ratio=extra / most, at_most=1.0, note=memory,
        ),
    ]  # fmt: skip


GROUPS: Final[Mapping[str, Callable[[Bench, int], list[Row]]]] = {
    "upload": upload, "small": small, "download": download, "ranges": ranges,
    "beside": beside,
}  # fmt: skip


def profiles(bench: Bench, console: Console) -> None:
    """Print where our transfers' processor time goes, and that of aiobotocore by itself."""
    big = [[str(bench.big), "bench/big"]]
    small = [[str(path), f"bench/many/{path.name}"] for path in bench.small]
    target = bench.home / "got"
    starts = random.Random(5).sample(range(bench.size // CHUNK_BYTES), min(200, len(small) * 4))
    rows: list[tuple[str, dict[str, Any], tuple[str, ...], float, str]] = [
        (f"upload of {len(small)} x 16 MiB", {"work": "upload", "files": small},
         ("ours", "aiobotocore"), len(small), "file"),
        (f"upload of {bench.size // MIB:,} MiB", {"work": "upload", "files": big},
         ("ours", "aiobotocore"), len(small), "16 MiB"),
        (f"fetch of {bench.size // MIB:,} MiB",
         {"work": "download", "files": [[str(target), "bench/big", str(bench.big)]]},
         ("ours", SDK), len(small), "16 MiB"),
        (f"{len(starts)} random reads of 1 MiB, nothing cached",
         {"work": "ranges", "object": "bench/big", "size": bench.size,
          "starts": [each * CHUNK_BYTES + 4711 for each in starts],
          "cache": str(bench.home / "cache")},
         ("ours", SDK), len(starts), "read"),
    ]  # fmt: skip
    for title, job, clients, times, each in rows:
        run = bench.cached if job["work"] == "ranges" else bench.python
        found = {client: run(client, job | {"profile": True}) for client in clients}
        show(console, title, found, times=times, each=each)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.s3", description=__doc__)
    options.add_argument("--peers", type=Path, help="a venv with s3_peers.txt")
    options.add_argument("--only", action="append", choices=list(GROUPS), help="repeatable")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--mib", type=int, default=1024, help="size of the large object")
    options.add_argument(
        "--profile", action="store_true", help="show where our time goes instead; needs no peers"
    )
    chosen = options.parse_args()
    if not chosen.peers and not chosen.profile:
        options.error("--peers is required, unless --profile")
    console = Console(width=None if sys.stdout.isatty() else 200)
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="s3-", dir=RESULTS) as work,
        running() as server,
    ):
        bench = Bench(server, Path(work), (chosen.peers or Path()).absolute(), chosen.mib * MIB)
        if chosen.profile:
            profiles(bench, console)
            return 0
        rows: list[Row] = []
        for name in chosen.only or GROUPS:
            bench.calm = Calm()
            of_group = [
                replace(row, stolen=bench.calm.share) for row in GROUPS[name](bench, chosen.rounds)
            ]
            console.print(table(of_group))  # at once: a later group may end the run
            rows += of_group
    console.print(f"kept in {keep(rows, RESULTS).relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
