"""Remote storage on S3 and what speaks its protocol, through aiobotocore, reads through obstore.

`client` opens the connection and closes the traps of the stack, `retries` is the one rim where
calls are bounded and repeated, `errors` says what each answer means, `upload` stores a segment,
`objects` reads what `answers` or `through_obstore` ask for, `deleting` deletes, `late_deletes`
knows which of that may come later, `control` writes small objects conditionally, `leftovers` finds
and aborts multipart uploads, `probe` tells what is allowed.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Final

from rlmm_daemon.adapters.storage.s3 import control, deleting, listing, objects
from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.adapters.storage.s3.leftovers import REMOVE_SECONDS, SWEEP_SECONDS, Leftovers
from rlmm_daemon.adapters.storage.s3.objects import RangeReader
from rlmm_daemon.adapters.storage.s3.options import Rates, S3Options, StaticKeys
from rlmm_daemon.adapters.storage.s3.probe import Probe, policy
from rlmm_daemon.adapters.storage.s3.rates import TokenBucket, TopicRates
from rlmm_daemon.adapters.storage.s3.reading import Reader
from rlmm_daemon.adapters.storage.s3.retries import Stats
from rlmm_daemon.adapters.storage.s3.upload import Row, SegmentUpload, UploadTools
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.ports.storage import (
    ControlObject,
    ObjectInfo,
    ProbeResult,
    Progress,
    StoredObject,
    Traffic,
    UploadInfo,
    Version,
)

__all__ = ["Rates", "S3Options", "S3Storage", "StaticKeys", "policy"]

#: Threads that read sources; the disk is faster than any of them.
THREADS_MAX: Final = 4


class S3Storage:
    """`ports.storage.RemoteStorage` in one bucket. `owner` names this daemon."""

    def __init__(
        self, options: S3Options, *, owner: str, rng: random.Random, sweeps: bool = True
    ) -> None:
        """`sweeps`: a daemon does so at its start; whoever else opens the bucket aborts nothing."""
        self._client = Client(options, rng)
        self._options, self._owner = options, owner
        self._reader = Reader(THREADS_MAX)
        self._leftovers = Leftovers(self._client, sweeps=sweeps)
        self._copy_rate = TokenBucket(options.rates.copy_bytes_per_second)
        self._topic_rates = TopicRates(options.rates.copy_by_topic)
        self._fetch_rate = TokenBucket(options.rates.fetch_bytes_per_second)
        self._ranges = RangeReader(self._client, self._fetch_rate)
        self._tools = UploadTools(
            client=self._client,
            reader=self._reader,
            leftovers=self._leftovers,
            rate=self._copy_rate,
            topic_rates=self._topic_rates,
            slots=asyncio.Semaphore(options.parts_in_flight_max),
        )

    @property
    def stats(self) -> Stats:
        """Calls, retries and throttles since the start."""
        return self._client.rim.stats

    def traffic(self) -> Traffic:
        """Return the figures for the metrics."""
        rim, gates = self._client.rim, {"read": self._client.reads, "write": self._client.writes}
        made = {"made": rim.stats.retries, "refused": rim.stats.retries_refused}
        now = time.monotonic()
        return Traffic(
            requests=rim.stats.calls,
            retries=made,
            retry_budget=rim.budget.left,
            throttled=rim.stats.throttled,
            in_flight={name: gate.inside for name, gate in gates.items()},
            in_flight_max={name: gate.limit for name, gate in gates.items()},
            uploads_left=len(self._leftovers.suspects),
            answer_seconds=rim.pace.answer_seconds(now),
            silence=rim.pace.silence(now),
        )

    @property
    def suspects(self) -> Sequence[str]:
        """Keys under which a multipart upload of ours could not be aborted yet."""
        return self._leftovers.suspects

    def set_rates(self, rates: Rates) -> None:
        """Change the limits, for transfers in flight too."""
        self._copy_rate.set_rate(rates.copy_bytes_per_second)
        self._topic_rates.set(rates.copy_by_topic)
        self._fetch_rate.set_rate(rates.fetch_bytes_per_second)

    def lane_of(self, topic: str) -> str | None:
        """Return whose limit a topic's copies share, so that they go one after another."""
        return self._topic_rates.pattern_of(topic)

    async def reload_credentials(self) -> bool:
        """Read the credentials anew; return whether they are others now.

        Raises:
            StorageUnavailable: they can't be read; those in use stay.
        """
        return await self._client.credentials.reload()

    async def open(self) -> None:
        """Check that the bucket answers; abort uploads that earlier runs left, if it lets us."""
        await listing.reachable(self._client, Layout(self._options.prefix).listed_prefix)
        await self._leftovers.retry()
        await self._leftovers.sweep_once(SWEEP_SECONDS)

    async def put_segment(
        self, objects: Sequence[Row], *, progress: Progress
    ) -> Sequence[StoredObject]:
        """Store and verify; see `upload`."""
        assert objects, "a segment has objects"
        self._client.late_deletes.require_none([key for _, key, _ in objects])
        upload = SegmentUpload(self._tools, objects, progress)
        await self._leftovers.retry()
        await self._leftovers.sweep_once(REMOVE_SECONDS)
        return await upload.run()

    def fetch(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the range as the network brings it."""
        return self._ranges.fetch(key, start, end)

    def fetch_version(
        self, key: str, start: int, end: int, version: Version
    ) -> AsyncGenerator[bytes, None]:
        """Yield the range of one version of the object; see `ports.storage.VersionedStorage`."""
        return self._ranges.fetch(key, start, end, version)

    async def size(self, key: str) -> int | None:
        """Return an object's size, or None if the storage says NoSuchKey."""
        found = await self._client.call(
            "HeadObject", lambda: objects.head(self._client, key), key=key
        )
        return None if found is None else found.size

    async def described_crc32c(self, key: str) -> int | None:
        """Return what HEAD says of an object; None over TLS, which lets no byte change on its way.

        A GET of a range carries no checksum of ours.
        """
        if not (self._options.endpoint or "").startswith("http://"):
            return None
        found = await self._client.call(
            "HeadObject", lambda: objects.head(self._client, key), key=key
        )
        return None if found is None else found.crc32c

    def local_path(self, key: str) -> str | None:
        """Return None: nothing here is a file."""
        del key
        return None

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        """Delete in batches, with an outcome for each key."""
        return await deleting.delete(self._client, keys)

    def list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """Yield pages of at most 1,000 keys, in the server's order."""
        return listing.objects(self._client, prefix)

    def list_uploads(self, prefix: str) -> AsyncGenerator[Sequence[UploadInfo], None]:
        """Yield pages of incomplete multipart uploads of whoever made them."""
        return listing.uploads(self._client, prefix)

    async def abort_upload(self, upload: UploadInfo) -> None:
        """Abort a multipart upload; absent is success."""
        await self._leftovers.abort(upload.key, upload.upload_id)

    async def get_control(self, key: str) -> ControlObject | None:
        """Return a small object whole."""
        return await control.get(self._client, key)

    async def put_control(self, key: str, data: bytes, *, if_etag: str | None) -> str:
        """Write with If-Match or If-None-Match; one's own lost write is recognised."""
        return await control.put(self._client, key, data, if_etag=if_etag, tag=_write_tag())

    async def overwrite_control(self, key: str, data: bytes) -> None:
        """Write a small object."""
        await control.overwrite(self._client, key, data, tag=_write_tag())

    async def probe(self, keys: Collection[str] = ()) -> ProbeResult:
        """Try each operation on a canary; `policy` says what a denied one needs."""
        probe = Probe(self._client, self._leftovers, self._ranges, name=self._owner)
        return await probe.run(keys)

    async def close(self) -> None:
        """Close connections and threads."""
        self._ranges.close()
        await self._client.close()
        self._reader.close()


def _write_tag() -> str:
    return os.urandom(16).hex()
