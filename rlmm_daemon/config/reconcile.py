"""Every key of the nightly reconciliation; `config/reconcile.toml` has them beside their defaults.

Where log and storage are, and the files that hold their secrets, stands in the daemon's own
configuration, which this one names: two copies of it would drift apart.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from rlmm_daemon.config.section import FilePath, Section

Share = Annotated[float, Meta(gt=0, le=1)]


class StorageListing(Section, frozen=True, kw_only=True, tag_field="kind", tag="storage"):
    """Ask the storage itself for its keys."""

    #: Pages of 1,000 keys a second over one slice; 0: as fast as the storage answers.
    pages_per_second_max: Annotated[int, Meta(ge=0, le=10_000)] = 0


class InventoryListing(Section, frozen=True, kw_only=True, tag_field="kind", tag="inventory"):
    """Read an S3 Inventory report instead: a day old, and free of List requests."""

    #: A local copy of the report's `manifest.json`, its data files below the same directory.
    manifest: FilePath


Listing = StorageListing | InventoryListing


class LogMetadata(Section, frozen=True, kw_only=True, tag_field="kind", tag="log"):
    """Read the metadata log that the daemon's configuration names."""


class ExportMetadata(Section, frozen=True, kw_only=True, tag_field="kind", tag="export"):
    """Read `rlmm export --format parquet` instead: then nothing is condemned."""

    #: Files that `rlmm export --format parquet` wrote.
    files: Annotated[tuple[FilePath, ...], Meta(min_length=1)]


Metadata = LogMetadata | ExportMetadata


class Safety(Section, frozen=True, kw_only=True):
    """What a run may condemn. Every bound can be made stricter, none can be switched off."""

    #: An object younger than this is left alone; twice the largest copy deadline if that is more.
    grace_hours: Annotated[int, Meta(ge=24, le=87_600)] = 24
    #: An object that was condemned is deleted so long after that at the earliest.
    quarantine_hours: Annotated[int, Meta(ge=24, le=87_600)] = 168
    #: Share of all objects, and of all bytes, that one run may condemn.
    share_max: Annotated[float, Meta(gt=0, le=0.01)] = 0.01
    #: Objects that one run may condemn.
    objects_max: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    #: A lease that its owner did not renew for so long may be taken over.
    lease_seconds: Annotated[int, Meta(ge=30, le=3_600)] = 300
    #: Objects deleted between two looks at the log's tail.
    batch_objects: Annotated[int, Meta(ge=1, le=1_000)] = 500
    #: Objects deleted in a second.
    deletes_per_second_max: Annotated[int, Meta(ge=1, le=10_000)] = 500
    #: Deleting pauses while more than this share of requests is throttled.
    throttled_share_max: Share = 0.33


class Spark(Section, frozen=True, kw_only=True):
    """The session, where spark-submit did not make one."""

    #: Spark's master URL. The default runs on this machine.
    master: str = "local[*, 4]"
    #: A `local[*]` run lives in the driver: this is all the heap that it has.
    driver_memory: str = "2g"
    #: Heap of one executor, where the master is a cluster.
    executor_memory: str = "4g"
    #: Parts into which a join is split.
    shuffle_partitions: Annotated[int, Meta(ge=1, le=10_000)] = 16
    #: More settings, by Spark's own names. A credential is refused: they show in Spark's pages.
    settings: dict[str, str] = field(default_factory=dict)


class Output(Section, frozen=True, kw_only=True):
    """What a run leaves behind."""

    #: A directory for each run, `latest` beside them.
    directory: FilePath = "/var/lib/rlmm/reconcile"
    #: For node_exporter's textfile collector.
    textfile: FilePath | None = None
    #: Price of one GB (10^9 bytes) for a month, for the report; 0: none is shown.
    price_per_gb_month: Annotated[float, Meta(ge=0, le=1_000)] = 0.0
    #: Currency of the price, as ISO 4217 has it.
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$")] = "USD"
    #: Directories of runs that are kept.
    runs_kept: Annotated[int, Meta(ge=1, le=10_000)] = 60


class ReconcileConfig(Section, frozen=True, kw_only=True):
    """The whole file."""

    #: The daemon's own configuration, which says where log and storage are.
    daemon_config: FilePath = "/etc/rlmm/rlmm.toml"
    listing: Listing = StorageListing()
    metadata: Metadata = LogMetadata()
    #: Offsets of the log in one slice.
    log_slice_offsets: Annotated[int, Meta(ge=1_000, le=100_000_000)] = 500_000
    #: Directories of daemons' snapshots, for metadata partitions whose log has lost its head.
    snapshots: tuple[FilePath, ...] = ()
    #: Look for overlaps and gaps within each epoch too.
    lineage: bool = True
    #: Whether the cluster is asked which topic ids it knows ("auto": where the log is Kafka's).
    liveness: Literal["auto", "off"] = "auto"
    safety: Safety = Safety()
    spark: Spark = Spark()
    output: Output = Output()
