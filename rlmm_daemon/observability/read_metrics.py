"""Metrics of reads and their caches."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rlmm_daemon.observability.buckets import FAST_SECONDS
from rlmm_daemon.observability.collectors import QuickCounter


class ReadMetrics:
    """Reads and their caches.

    Ranges read per MiB served, each a GET while none has to be repeated, in PromQL:
    `sum(rate(rlmm_storage_gets_total[5m])) / (sum(rate(rlmm_fetch_bytes_total[5m])) / 2^20)`.
    """

    def __init__(self, into: CollectorRegistry) -> None:
        #: cache: chunk, index. outcome: hit, miss, joined (another reader's miss, shared).
        self.lookups = QuickCounter(
            "rlmm_read_cache_lookups", "Look-ups in a cache.", ("cache", "outcome"), into
        )
        #: cause: size, deleted, corrupt, disk_full, replaced, mismatch.
        self.evictions = Counter(
            "rlmm_read_cache_evictions_total", "Entries dropped.", ["cache", "cause"], registry=into
        )
        #: kind: chunks (of an object, in the cache), read (of a whole object), index.
        self.mismatches = Counter(
            "rlmm_read_mismatches_total",
            "Bytes that were not what was copied; they are evicted, and asked for again.",
            ["kind"],
            registry=into,
        )
        self.cached = Gauge("rlmm_read_cache_bytes", "Bytes cached.", ["cache"], registry=into)
        self.writable = Gauge(
            "rlmm_read_cache_writable",
            "0 while the chunk cache's disk is full, failing or not ours.",
            registry=into,
        )
        self.writable.set(1)  # where there is no cache, none fails
        self.write_errors = Counter(
            "rlmm_read_cache_write_errors_total", "Chunks that were not kept.", registry=into
        )
        self.buffered = Gauge(
            "rlmm_read_buffered_bytes", "Fetched chunks held in memory.", registry=into
        )
        #: kind: log, index. What the daemon asks anew counts, what the storage's adapter repeats or
        #: resumes does not.
        self.gets = Counter(
            "rlmm_storage_gets_total",
            "Ranges read; GETs repeated or resumed within one are not counted.",
            ["kind"],
            registry=into,
        )
        self.got_bytes = Counter(
            "rlmm_storage_get_bytes_total", "Bytes received.", ["kind"], registry=into
        )
        #: source: cache, storage.
        self.first_byte = Histogram(
            "rlmm_read_first_byte_duration_seconds",
            "From a request for a range to its first byte in hand.",
            ["source"],
            buckets=FAST_SECONDS,
            registry=into,
        )
