"""The second part of `make bench-reconcile`: how fast a real S3 server's keys come in.

Small objects are put on a SeaweedFS of our own, spread over a few partitions; then they are listed
in one stream by obstore alone, in one stream as a task does it, and by the job's DataSource on two
tasks into Parquet files, as a night begins. Medians over the runs.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import obstore

from deploy.dev.stack import s3
from rlmm_daemon.config import Config, load
from rlmm_daemon.config.reconcile import Spark
from rlmm_daemon.reconcile.read import listing, s3_client, sources
from rlmm_daemon.reconcile.session import session

PARTITIONS = 8
AT_ONCE = 48
DAEMON = """
[daemon]
broker_id = 1
cluster_id = "bench"
state_dir = "{home}/state"
log_dirs = ["{home}/kafka-logs"]
[socket]
path = "{home}/rlmm.sock"
[event_log]
kind = "embedded"
single_broker = true
[storage]
kind = "s3"
bucket = "{bucket}"
endpoint = "{endpoint}"
addressing = "path"
access_key_id_file = "{home}/access_key_id"
secret_access_key_file = "{home}/secret_access_key"
"""


def configured(home: Path, server: s3.S3Server) -> Config:
    key, secret, _ = s3.IDENTITIES["daemon"]
    (home / "access_key_id").write_text(key)
    (home / "secret_access_key").write_text(secret)
    file = home / "rlmm.toml"
    file.write_text(DAEMON.format(home=home, bucket=s3.BUCKET, endpoint=server.endpoint))
    return load(file)


async def fill(config: Config, count: int) -> None:
    """Put so many objects whose keys are segments'."""
    store = s3_client.opened(config)
    rest = iter(range(count))

    async def put() -> None:
        for at in rest:
            place = f"orders-{at % PARTITIONS}-{'A' * 22}/{at // PARTITIONS:020}-{at:021}A.log"
            await obstore.put_async(store, place, b"x")

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(put(), name="put")


def measured(work: Callable[[], int], count: int, runs: int) -> dict[str, float]:
    """Return the median of wall seconds; each run has to list every key."""
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        assert work() == count
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    return {"seconds": round(median, 2), "keys_per_second": round(count / median)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlmm-bench-listing-") as directory:
        home = Path(directory)
        with s3.running() as server:
            config = configured(home, server)
            began = time.perf_counter()
            asyncio.run(fill(config, options.keys))
            row = {"keys": options.keys, "put_seconds": round(time.perf_counter() - began)}
            parts = listing.slices(config, [""])

            def alone() -> int:
                store = s3_client.opened(config)
                return sum(len(page) for page in store.list(None, chunk_size=1_000))

            def one_stream() -> int:
                return sum(each.num_rows for part in parts for each in listing.listed(config, part))

            row["obstore"] = measured(alone, options.keys, options.runs)
            row["one task"] = measured(one_stream, options.keys, options.runs)
            with session(Spark(master="local[2]", driver_memory="1g")) as spark:

                def spread() -> int:
                    kept = str(home / "objects")
                    frame = sources.objects(spark, config, listing.slices(config, [""]), 0)
                    frame.write.mode("overwrite").parquet(kept)
                    return int(spark.read.parquet(kept).count())

                row["two tasks, into Parquet"] = measured(spread, options.keys, options.runs)
            click.echo(json.dumps(row))


if __name__ == "__main__":
    main()
