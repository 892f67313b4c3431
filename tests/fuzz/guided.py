"""Coverage-guided fuzzing of every parser of foreign bytes, each for its share of the time.

    python -m tests.fuzz.guided --seconds 60            all of them, two at a time
    python -m tests.fuzz.guided records FILE            one input once more

What was found new stays in `var/fuzz/corpus`, so that the next run goes on from there; an input
that broke a promise is kept in `var/fuzz/found` and named. Exit code 1 then.
Needs atheris: `make fuzz` brings it.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rlmm_daemon.codec import api, batches, custom_metadata, frames, marker
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.codec.marker import Hold
from rlmm_daemon.codec.state_files import Lost, lost_head
from tests.fuzz.promises import JUDGES

ROOT: Final = Path(__file__).resolve().parents[2]
DATA: Final = ROOT / "tests" / "data"
VAR: Final = ROOT / "var" / "fuzz"
AT_ONCE: Final = 2
#: One input may take so long, and a process so much memory, before that is a finding.
INPUT_SECONDS: Final = 10
MEBIBYTES_MAX: Final = 1024
INPUT_BYTES_MAX: Final = 8192
#: What the fuzzer watches the branches of; what stands in C it can't see.
WATCHED: Final = ("rlmm_daemon.codec", "rlmm_daemon.core", "rlmm_daemon.adapters.kafka.event_log")


HOLDS: Final = (Hold(metadata_partition=None, before_ms=9, broker_id=1),)
MARKER: Final = marker.BucketMarker(
    cluster_id="a cluster",
    partition_count=3,
    metadata_topic_id="AAECAwQFBgcICQoLDA0ODw",
    layouts=(marker.LayoutRow(number=1, kind="LocalTieredStorage", prefix="tiered/{hash:16}"),),
    accepted_losses=(marker.AcceptedLoss(1, "AAECAwQFBgcICQoLDA0ODw", 7, 1),),
    accepted_gaps=(
        marker.AcceptedGap(metadata_partition=1, topic_id="AAECAwQFBgcICQoLDA0ODw", start=2, end=5),
    ),
    holds=HOLDS,
    ended_holds=HOLDS,
)
SEEN: Final = marker.PresencePartition(
    state="ready", topic_id="AAECAwQFBgcICQoLDA0ODw", leader_epoch=0, next_offset=4
)
PRESENCE: Final = marker.Presence(
    cluster_id="a cluster",
    broker_id=1,
    incarnation=None,
    started_at_ms=1,
    written_at_ms=2,
    copy_deadline_seconds=1200.5,
    lease_end_ms=None,
    metadata_manager="rlmm",
    partitions={0: SEEN},
    other=marker.OtherDaemon(who="elsewhere", met=True),
    holds=HOLDS,
)


def seeds(name: str) -> Iterator[bytes]:
    """Yield sound inputs of one parser, from which others are made."""
    golden = [
        bytes.fromhex(json.loads(line)["hex"])
        for file in ("records.jsonl", "tolerated.jsonl")
        for line in (DATA / "golden" / file).read_text("utf-8").splitlines()
    ]
    short = [value for value in golden if len(value) < 1000]
    if name == "records":
        yield from short
    elif name == "frames":
        for method in api.METHODS:
            yield frames.request_frame(1, method, [short[0], [1, [2]], None, "text"])
        yield frames.notification_frame("cancel", [1])
    elif name == "batches":
        yield from (
            batches.build(short[:count], base_offset=0, leader_epoch=1, timestamp_ms=2)
            for count in (1, 3, 7)
        )
        for path in sorted((DATA / "formats" / "state-1" / "log").rglob("*.log")):
            yield path.read_bytes().rstrip(b"\0")[:INPUT_BYTES_MAX]
    elif name == "state":
        yield from (path.read_bytes() for path in sorted((DATA / "formats").rglob("*.json")))
        lost = Lost(metadata_partition=1, reasons=["truncated"], records=short[:2])
        yield lost_head(0) + msgspec.msgpack.encode(lost)
    elif name == "bucket":
        yield from (marker.encode(each) for each in (MARKER, PRESENCE))
        facts = StoredFacts(layout_number=1, log_crc32c=2, sizes={".index": 3})
        yield from (custom_metadata.encode(facts), custom_metadata.ONLY_IF_STARTED)
    else:
        yield from (path.read_bytes() for path in sorted((DATA / "formats").rglob("snapshot.bin")))


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one parser in this process, which ends with it."""
    import atheris  # noqa: PLC0415 - it is only there where `make fuzz` put it

    with atheris.instrument_imports(include=WATCHED):
        for module in [each for each in sys.modules if each.startswith(("rlmm_daemon", "tests."))]:
            del sys.modules[module]
        from tests.fuzz.promises import JUDGES as judges  # noqa: PLC0415, N811 - watched by now

    corpus, planted = VAR / "corpus" / name, VAR / "seeds" / name
    for directory in (corpus, planted, VAR / "found"):
        directory.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (planted / str(number)).write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_SECONDS}",
        f"-rss_limit_mb={MEBIBYTES_MAX}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={VAR / 'found' / name}-",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus), str(planted)], judges[name])
    atheris.Fuzz()


def run_all(seconds: int) -> int:
    """Fuzz every parser, some at a time, `seconds` altogether; return the exit code."""
    names, code = list(JUDGES), 0
    rounds = -(-len(names) // AT_ONCE)
    share = max(1, seconds // rounds)
    for at in range(0, len(names), AT_ONCE):
        some = names[at : at + AT_ONCE]
        running = {name: _begin(name, share) for name in some}
        for name, process in running.items():
            told = process.communicate()[0]
            lines = told.splitlines()
            tried = [line.split()[-1] for line in lines if "number_of_executed_units" in line]
            word = "held" if process.returncode == 0 else "BROKE A PROMISE"
            print(f"{name:10} {word}: {tried[0] if tried else '?'} inputs in {share} s")  # noqa: T201
            if process.returncode:
                code = 1
                print("\n".join(lines[-60:]))  # noqa: T201
    return code


def _begin(name: str, seconds: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.guided", name, "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="?", choices=[*JUDGES])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    asked = parser.parse_args()
    if asked.name is None:
        return run_all(asked.seconds)
    if asked.file is None:
        fuzz(asked.name, asked.seconds)
    else:
        JUDGES[asked.name](asked.file.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
