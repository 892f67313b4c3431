"""Keys of `[storage]`: a directory, a bucket, or none."""

from typing import Annotated, Literal

from msgspec import Meta

from rlmm_daemon.config.section import MIB, FilePath, Milliseconds, Section

#: `core.storage.layout.Layout` says what the hash is; it is in front or nowhere.
KeyPrefix = Annotated[
    str,
    Meta(
        pattern=r"^(\{hash:(4|8|12|16|20|24|28|32)\}(/[A-Za-z0-9._=-]+)*"
        r"|([A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*)?)$"
    ),
]
ObjectTag = Annotated[str, Meta(pattern=r"^[A-Za-z0-9 +._:/@-]{1,128}=[A-Za-z0-9 +._:/@-]{0,256}$")]

TopicRate = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._*?-]{1,249}=[1-9][0-9]{0,14}$")]


class NoStorage(Section, frozen=True, kw_only=True, tag_field="kind", tag="none"):
    """Metadata only: storage methods answer `storage_not_configured`."""


class LocalStorage(Section, frozen=True, kw_only=True, tag_field="kind", tag="local"):
    """Segments in a directory, laid out as Kafka's LocalTieredStorage does."""

    #: Directory of the segments. It has to be there: a missing one is an error, not empty.
    directory: FilePath
    #: True says that every broker sees this same directory. Without it a cluster of several
    #: brokers gets no copies: the other brokers could not read them.
    shared: bool = False
    #: Directories below `directory`, such as `tiered/eu`; no leading or trailing slash.
    prefix: KeyPrefix = ""


class S3Storage(Section, frozen=True, kw_only=True, tag_field="kind", tag="s3"):
    """Segments in a bucket of AWS S3, or of a server that speaks its protocol."""

    #: Name of the bucket.
    bucket: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$")]
    #: The bucket's region. Default: AWS's us-east-1, whose name most other servers take too.
    region: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,64}$")] | None = None
    #: URL of the server, without a path. Default: AWS's own for the region.
    endpoint: Annotated[str, Meta(pattern=r"^https?://[^/\s@]+/?$")] | None = None
    #: Library that reads segments. All other calls are aiobotocore's.
    transport: Literal["aiobotocore", "obstore"] = "obstore"
    #: In front of the segments' keys; no leading or trailing slash. `{hash:16}/kafka` puts so many
    #: bits of a hash in front (4 to 32, in fours). Old segments stay readable after a change.
    prefix: KeyPrefix = ""
    #: Where the bucket stands in a URL: `path` for most servers that are not AWS, `virtual` for the
    #: host name.
    addressing: Literal["auto", "path", "virtual"] = "auto"
    #: PEM file of the authorities to trust. Default: that of `AWS_CA_BUNDLE`, else the SDK's own.
    ca_file: FilePath | None = None
    #: URL of a proxy. Default: as `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` say.
    proxy: Annotated[str, Meta(pattern=r"^https?://[^/\s@]+/?$")] | None = None
    #: File that holds the access key's id. Without any of these six keys: the SDK's own chain.
    access_key_id_file: FilePath | None = None
    #: Environment variable that holds the access key's id.
    access_key_id_env: str | None = None
    #: File that holds the secret access key.
    secret_access_key_file: FilePath | None = None
    #: Environment variable that holds the secret access key.
    secret_access_key_env: str | None = None
    #: File that holds the session's token.
    session_token_file: FilePath | None = None
    #: Environment variable that holds the session's token.
    session_token_env: str | None = None
    #: A `.log` at least so large is sent in parts.
    multipart_threshold_bytes: Annotated[int, Meta(ge=MIB, le=5_120 * MIB)] = 100 * MIB
    #: Size of a part; larger where a segment would need more than 10,000 parts.
    part_size_bytes: Annotated[int, Meta(ge=5 * MIB, le=5_120 * MIB)] = 64 * MIB
    #: Parts sent at once, over all copies.
    parts_in_flight_max: Annotated[int, Meta(ge=1, le=256)] = 4
    #: Writing calls at once; halved while the storage asks for fewer.
    writes_in_flight_max: Annotated[int, Meta(ge=1, le=1_024)] = 16
    #: Reading calls at once; halved while the storage asks for fewer.
    reads_in_flight_max: Annotated[int, Meta(ge=1, le=1_024)] = 32
    #: Time to connect, TLS included.
    connect_timeout_ms: Milliseconds = 5_000
    #: A call is given up after so long without a byte in either direction.
    read_timeout_ms: Milliseconds = 30_000
    #: Time for one call, apart from the time that its bytes take at 64 KiB/s.
    call_timeout_ms: Milliseconds = 60_000
    #: A reader that takes nothing for so long loses its connection, not its place.
    idle_timeout_ms: Milliseconds = 10_000
    #: Tries of one call, the first included.
    attempts_max: Annotated[int, Meta(ge=1, le=20)] = 4
    #: Encryption that uploads ask for. Empty: the bucket's default.
    sse: Literal["", "AES256", "aws:kms"] = ""
    #: With `aws:kms`: the key's id or ARN. Default: the account's own for S3.
    sse_kms_key: Annotated[str, Meta(min_length=1)] | None = None
    #: Account id; S3 refuses calls to a bucket of another account. Default: not checked.
    expected_bucket_owner: Annotated[str, Meta(pattern=r"^[0-9]{12}$")] | None = None
    #: As S3 names it. Default: STANDARD. Not an archive class: it can't be read back at once.
    storage_class: Annotated[str, Meta(pattern=r"^[A-Z_]{1,64}$")] | None = None
    #: Tags of every object, `name=value` each.
    tags: Annotated[tuple[ObjectTag, ...], Meta(max_length=10)] = ()
    #: Upload rate of the whole process; 0: no limit. A reload changes transfers in flight too.
    copy_bytes_per_second_max: Annotated[int, Meta(ge=0, le=1_048_576 * MIB)] = 0
    #: Upload rates of topics beside that, `pattern=bytes per second` each, such as
    #: `clicks-*=10485760`. The first pattern that matches (`*`, `?`) counts; its topics share the
    #: rate, and their copies go one after another. A reload changes transfers in flight too.
    copy_bytes_per_second_max_by_topic: Annotated[tuple[TopicRate, ...], Meta(max_length=64)] = ()
    #: Download rate of the whole process; 0: no limit. A reload changes transfers in flight too.
    fetch_bytes_per_second_max: Annotated[int, Meta(ge=0, le=1_048_576 * MIB)] = 0


#: The kinds of storage this version knows, told apart by `kind`.
Storage = NoStorage | LocalStorage | S3Storage
