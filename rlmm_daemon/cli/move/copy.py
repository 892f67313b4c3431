"""`rlmm copy`: a segment from a broker's log directory to the remote storage, the whole job."""

import os
import re
import secrets
from pathlib import Path
from typing import Final

import click

from rlmm_daemon.cli import completion
from rlmm_daemon.cli.asking import asking_log
from rlmm_daemon.cli.look.segments import show
from rlmm_daemon.cli.options import KAFKA_UUID, Target, daemon_options
from rlmm_daemon.codec.api import SegmentFiles
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import (
    UUID_BYTES,
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
    TopicPartition,
    uuid_bytes,
    uuid_text,
)
from rlmm_daemon.domain.segment import SegmentMetadata

_EPOCHS: Final = re.compile(r"\d+:\d+(,\d+:\d+)*")


def _epochs(_ctx: click.Context, _parameter: click.Parameter, text: str) -> dict[int, int]:
    if not _EPOCHS.fullmatch(text):
        raise click.BadParameter("EPOCH:OFFSET,EPOCH:OFFSET,... is wanted, for example 0:0,1:50")
    pairs = [pair.split(":") for pair in text.split(",")]
    epochs = {int(epoch): int(offset) for epoch, offset in pairs}
    if len(epochs) < len(pairs):
        raise click.BadParameter("an epoch is named twice")
    return dict(sorted(epochs.items()))


@click.command("copy")
@click.argument(
    "topic_id", metavar="TOPIC_ID", type=KAFKA_UUID, shell_complete=completion.topic_ids
)
@click.argument("partition", metavar="TOPIC-PARTITION", shell_complete=completion.partitions)
@click.option("--dir", "directory", required=True, metavar="DIR", help="The partition's directory.")
@click.option("--start-offset", required=True, type=click.IntRange(min=0), help="Names the files.")
@click.option("--end-offset", required=True, type=click.IntRange(min=0), help="Included.")
@click.option(
    "--epochs",
    required=True,
    metavar="E:O,...",
    callback=_epochs,
    help="Each leader epoch with its first offset in the segment.",
)
@click.option("--broker-id", type=click.IntRange(min=0), help="The daemon's own by default.")
@click.option("--max-timestamp-ms", type=int, default=-1, help="Of the segment's records.")
@click.option(
    "--segment-id",
    metavar="ID",
    type=KAFKA_UUID,
    help="Of an interrupted copy: wait for it, show it.",
)
@daemon_options
def command(
    topic_id: str,
    partition: str,
    *,
    directory: str,
    start_offset: int,
    end_offset: int,
    epochs: dict[int, int],
    broker_id: int | None,
    max_timestamp_ms: int,
    segment_id: str | None,
    target: Target,
) -> None:
    """Copy one segment: begin it in the log, store its files, finish it in the log.

    The files are those of a broker's log directory, found by their base offset, which has to lie
    in the daemon's log_dirs. A copy that fails is rolled back. Prints the finished segment.

    With --segment-id nothing is begun: the copy that runs under that id is waited for, or what was
    finished under it is shown. Where neither is there, copy the segment again without it: an id is
    never used twice.
    """
    named = TopicPartition.parse(partition)
    tp = TopicIdPartition(TopicId(uuid_bytes(topic_id)), named.topic, named.partition)
    files = files_in(Path(directory), start_offset)
    log = Path(files.log).stat()
    with asking_log(target) as client:
        segment = SegmentMetadata(
            partition=tp,
            segment_id=_new_id() if segment_id is None else SegmentId(uuid_bytes(segment_id)),
            start_offset=Offset(start_offset),
            end_offset=Offset(end_offset),
            broker_id=BrokerId(client.hello().broker_id if broker_id is None else broker_id),
            max_timestamp_ms=max_timestamp_ms,
            # The file's own time, so that a repeat of this command is the same record.
            event_timestamp_ms=int(log.st_mtime * 1000),
            segment_leader_epochs={LeaderEpoch(e): Offset(o) for e, o in epochs.items()},
            segment_size_bytes=log.st_size,
            txn_index_empty=files.transaction_index is None,
        )
        _tell(segment)
        done = client.copy_segment(segment, files, repeats=segment_id is not None)
        show(done, as_json=target.json)


def _tell(segment: SegmentMetadata) -> None:
    """Name the segment before it is begun, so that an interrupted copy can be asked for."""
    click.echo(f"copying segment {uuid_text(segment.segment_id)}", err=True)


def _new_id() -> SegmentId:
    """Return a random id that does not begin with a dash, as Kafka's `Uuid.randomUuid`."""
    while True:
        made = SegmentId(secrets.token_bytes(UUID_BYTES))
        if not uuid_text(made).startswith("-"):
            return made


def files_in(directory: Path, base_offset: int) -> SegmentFiles:
    """Return the six files of a segment; the transaction index may be absent.

    Raises:
        InvalidArgument: one of the others is.
    """
    home = os.path.abspath(directory)  # noqa: PTH100 - links must stay as they are: the daemon refuses them
    name = f"{home}/{base_offset:020}"
    required = [f"{name}{suffix}" for suffix in (".log", ".index", ".timeindex", ".snapshot")]
    for path in required:
        if not Path(path).is_file():
            raise InvalidArgument(f"{path} is not there", path=path)
    log, offsets, times, producers = required
    transactions = f"{name}.txnindex"
    return SegmentFiles(
        log=log,
        offset_index=offsets,
        time_index=times,
        producer_snapshot=producers,
        leader_epoch_checkpoint=_checkpoint(name, home),
        transaction_index=transactions if Path(transactions).is_file() else None,
    )


def _checkpoint(name: str, home: str) -> bytes:
    for path in (Path(f"{name}.leader_epoch_checkpoint"), Path(f"{home}/leader-epoch-checkpoint")):
        if path.is_file():
            return path.read_bytes()
    raise InvalidArgument(f"{home} holds no leader-epoch-checkpoint", path=home)
