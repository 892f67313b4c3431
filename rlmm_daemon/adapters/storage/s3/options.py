"""The settings of an S3 storage: endpoint, keys, sizes, times."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from rlmm_daemon.domain.secret import Secret

MIB: Final = 1024 * 1024
#: S3's own limits.
PARTS_MAX: Final = 10_000
#: A call that moves bytes may take so much longer for each of them; slower is a fault.
BYTES_PER_SECOND_MIN: Final = 64 * 1024


class StaticKeys(msgspec.Struct, frozen=True, kw_only=True):
    """One key pair, as read from its files."""

    access_key_id: Secret
    secret_access_key: Secret
    session_token: Secret | None = None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per second of the whole process; 0 is without a limit."""

    copy_bytes_per_second: int = 0
    #: Pattern of topics -> what copies of them may take of that together; the first match counts.
    copy_by_topic: Mapping[str, int] = msgspec.field(default_factory=dict)
    fetch_bytes_per_second: int = 0


class S3Options(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but live state. Durations are seconds."""

    bucket: str
    region: str | None = None
    #: None: AWS's own for the region.
    endpoint: str | None = None
    #: Who makes the ranged GETs; all other calls are aiobotocore's.
    transport: Literal["aiobotocore", "obstore"] = "obstore"
    addressing: Literal["auto", "path", "virtual"] = "auto"
    ca_file: str | None = None
    proxy: str | None = None
    #: Reads the files anew at each call; None: the SDK's own chain.
    static_keys: Callable[[], StaticKeys] | None = None
    multipart_threshold_bytes: int = 100 * MIB
    part_size_bytes: int = 64 * MIB
    #: Over all copies.
    parts_in_flight_max: int = 4
    connect_timeout: float = 5.0
    #: Without a byte in either direction.
    read_timeout: float = 30.0
    #: One call, apart from the time its bytes may take.
    call_timeout: float = 60.0
    #: A reader that takes nothing for so long loses its connection, not its place.
    idle_timeout: float = 10.0
    attempts_max: int = 4
    writes_max: int = 16
    reads_max: int = 32
    sse: Literal["", "AES256", "aws:kms"] = ""
    sse_kms_key_id: str | None = None
    expected_bucket_owner: str | None = None
    storage_class: str | None = None
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    rates: Rates = Rates()
    #: This daemon's own; other daemons' are read from their presence files.
    copy_deadline: float = 1_200.0
    #: Where this daemon's segments go: nothing outside it is ever swept.
    prefix: str = ""

    def part_size(self, size: int) -> int:
        """Return bytes per part, grown where an object would need more than 10,000 of them."""
        needed = -(-size // PARTS_MAX)
        grown = -(-needed // MIB) * MIB
        return max(self.part_size_bytes, grown)

    def call_seconds(self, size: int = 0) -> float:
        """Return the deadline of a call that moves `size` bytes."""
        return self.call_timeout + size / BYTES_PER_SECOND_MIN
