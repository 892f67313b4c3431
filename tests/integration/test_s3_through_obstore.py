"""obstore's GETs against a server that says what a test wants: each error is the SDK's own."""

import asyncio
import random
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deploy.dev.stack.kafka import keys as tls_keys
from rlmm_daemon.adapters.storage.s3 import S3Options, S3Storage, StaticKeys
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    ObjectMissing,
    RlmmError,
    StorageUnavailable,
)
from rlmm_daemon.domain.secret import Secret
from rlmm_daemon.ports.storage import Version

DATE = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
RIGHT = DATE | {"ETag": '"e"', "Content-Range": "bytes 0-9/10"}


class Server:
    """Answers each request with the next row, the last for ever; keeps what was asked."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.asked: list[str] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._scheme = "https" if tls else "http"
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)

    @property
    def endpoint(self) -> str:
        assert self._server is not None, "started"
        return f"{self._scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None, "started"
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.decode())
            writer.write(self.rows.pop(0) if len(self.rows) > 1 else self.rows[0])
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


def row(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def page(status: int, code: str) -> bytes:
    secret = "<AWSAccessKeyId>the-key</AWSAccessKeyId><StringToSign>signed</StringToSign>"
    region = "<Region>eu-x</Region>"
    return row(status, f"<Error><Code>{code}</Code>{secret}{region}</Error>".encode())


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    await server.stop()


def storage_on(server: Server, **options: Any) -> S3Storage:
    keys = StaticKeys(access_key_id=Secret("the-key"), secret_access_key=Secret("the-secret"))
    defaults: dict[str, Any] = {
        "static_keys": lambda: keys, "attempts_max": 1, "transport": "obstore",
        "bucket": "b", "endpoint": server.endpoint, "addressing": "path",
    }  # fmt: skip
    return S3Storage(S3Options(**(defaults | options)), owner="1", rng=random.Random(7))


async def read(storage: S3Storage, end: int = 10, version: Version | None = None) -> bytes:
    pieces = storage.fetch_version("a.log", 0, end, version or Version())
    return b"".join([piece async for piece in pieces])


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (403, "AccessDenied", "denied"),
        (403, "InvalidAccessKeyId", "bad_credentials"),
        (403, "SignatureDoesNotMatch", "bad_credentials"),
        (403, "RequestTimeTooSkewed", "clock_skew"),
        (400, "ExpiredToken", "expired_credentials"),
        (400, "AuthorizationHeaderMalformed", "wrong_region"),
        (404, "NoSuchBucket", "no_bucket"),
        (404, "Odd", "bare_404"),
        (403, "InvalidObjectState", "archived"),
        (400, "KMS.DisabledException", "kms"),
        (503, "SlowDown", "throttled"),
        (500, "InternalError", "server_error"),
        (418, "Teapot", "refused"),
    ],
)
async def test_the_code_decides_as_it_does_for_the_sdk(server, status, code, reason):
    for transport in ("obstore", "aiobotocore"):
        storage = storage_on(server, transport=transport)
        server.rows, server.asked = [page(status, code)], []
        with pytest.raises(RlmmError) as failure:
            await read(storage)
        assert failure.value.fields["reason"] == reason
        assert failure.value.fields.get("region", "eu-x") == "eu-x"
        # The SDK asks where a bucket is that seems to be elsewhere.
        assert len(server.asked) == 1 or reason == "wrong_region", "one attempt is one request"
        assert storage.stats.calls == {("GetObject", reason): 1}
        assert storage.stats.throttled == (reason == "throttled")
        for text in (str(failure.value), repr(failure.value.__cause__), str(failure.value.fields)):
            assert "the-key" not in text
            assert "signed" not in text
        await storage.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (row(403), "denied"),
        (row(404), "bare_404"),
        (row(429), "throttled"),
        (row(503), "throttled"),
        (row(502, b"<html>bad gateway</html>"), "server_error"),
        (row(301), "wrong_region"),
        (row(206, b"0123456789", **(RIGHT | {"Content-Range": "bytes 5-14/99"})), "wrong_range"),
        (row(206, b"0123456789", **(DATE | {"Content-Range": "bytes 0-9/10"})), "connection"),
        (row(200, b"<html>welcome</html>"), "connection"),
        (row(206, b"0123456789", **RIGHT)[:-4], "connection"),
        (row(206, b"0123", **RIGHT), "connection"),
        (b"", "connection"),
        (b"hello\r\n\r\n", "connection"),
    ],
    ids=lambda each: each if isinstance(each, str) else each[9:20].decode(),
)
async def test_what_is_no_answer_of_s3_is_never_bytes_of_the_object(server, answer, reason):
    storage = storage_on(server)
    server.rows = [answer]
    with pytest.raises(RlmmError) as failure:
        await read(storage)
    assert failure.value.fields["reason"] == reason
    await storage.close()


async def test_only_no_such_key_is_gone_and_beyond_the_end_is_nothing(server):
    storage = storage_on(server)
    server.rows = [page(404, "NoSuchKey")]
    with pytest.raises(ObjectMissing):
        await read(storage)
    server.rows = [page(416, "InvalidRange")]
    assert await read(storage) == b""
    server.rows = [row(206, b"0123456789", **RIGHT)]
    assert await read(storage, end=99) == b"0123456789"
    await storage.close()


async def test_another_version_is_refused_by_condition_and_by_what_came(server):
    storage = storage_on(server)
    server.rows = [page(412, "PreconditionFailed")]
    with pytest.raises(ChecksumMismatch):
        await read(storage, version=Version('"old"'))
    assert 'if-match: "old"' in server.asked[0].lower()
    server.rows = [row(206, b"0123456789", **RIGHT)]
    with pytest.raises(ChecksumMismatch):
        await read(storage, version=Version('"old"'))
    await storage.close()


async def test_a_change_of_keys_is_signed_with_at_once_whatever_the_environment_says(
    server, monkeypatch
):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "strangers")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "strangers")
    names = ["first"]
    storage = storage_on(
        server,
        static_keys=lambda: StaticKeys(
            access_key_id=Secret(names[-1]), secret_access_key=Secret("s")
        ),
    )
    server.rows = [row(206, b"0123456789", **RIGHT)]
    await read(storage)
    names.append("second")
    assert await storage.reload_credentials()
    await read(storage)
    assert "Credential=first/" in server.asked[0]
    assert "Credential=second/" in server.asked[1]
    assert not any("strangers" in each for each in server.asked)
    # Refused keys are read anew at the rim, and the same call is made again.
    patient = storage_on(server, attempts_max=2, static_keys=lambda: StaticKeys(
        access_key_id=Secret(names.pop() if len(names) > 1 else names[0]),
        secret_access_key=Secret("s"),
    ))  # fmt: skip
    server.rows, server.asked = [page(400, "ExpiredToken"), *server.rows], []
    assert await read(patient) == b"0123456789"
    assert [("second" in each, "first" in each) for each in server.asked] == [
        (True, False),
        (False, True),
    ]
    await patient.close()
    await storage.close()


async def test_a_proxy_is_asked_for_the_whole_address(server):
    storage = storage_on(server, proxy=server.endpoint, endpoint="http://s3.example.invalid")
    server.rows = [row(206, b"0123456789", **RIGHT)]
    assert await read(storage) == b"0123456789"
    assert server.asked[0].startswith("GET http://s3.example.invalid/b/a.log ")
    await storage.close()


CHINA = "s3.cn-north-1.amazonaws.com.cn"


@pytest.mark.parametrize(
    ("options", "environment", "first_line"),
    [
        ({"region": "eu-central-1"}, "", "CONNECT b-1.s3.eu-central-1.amazonaws.com:443"),
        ({"addressing": "path"}, "", "CONNECT s3.amazonaws.com:443"),
        ({"region": "cn-north-1"}, "", f"CONNECT b-1.{CHINA}:443"),
        ({"bucket": "a.b", "region": "cn-north-1"}, "", f"CONNECT {CHINA}:443"),
        ({}, "http://h.invalid/s3", "GET http://h.invalid/s3/b-1/a.log"),
        ({"endpoint": "http://h.invalid:9/"}, "", "GET http://h.invalid:9/b-1/a.log"),
        (
            {"endpoint": "http://h.invalid"},
            "http://other.invalid",
            "GET http://h.invalid/b-1/a.log",
        ),
        ({"endpoint": "http://h.invalid", "bucket": "a.b"}, "", "GET http://h.invalid/a.b/a.log"),
        (
            {"endpoint": "https://h.invalid", "addressing": "virtual", "bucket": "a.b"},
            "",
            "CONNECT h.invalid:443",
        ),
        (
            {"endpoint": "http://h.invalid", "addressing": "virtual"},
            "",
            "GET http://b-1.h.invalid/a.log",
        ),
    ],
)
async def test_buckets_are_found_where_the_sdk_finds_them(
    server, monkeypatch, options, environment, first_line
):
    """Whatever decides it: the region's partition, the environment, the bucket's name."""
    if environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", environment)
    server.rows = [row(418)]
    for transport in ("obstore", "aiobotocore"):
        defaults = {"bucket": "b-1", "endpoint": None, "addressing": "auto"}
        storage = storage_on(
            server, proxy=server.endpoint, transport=transport, **(defaults | options)
        )
        server.asked = []
        with pytest.raises(RlmmError):
            await read(storage)
        assert server.asked[0].startswith(f"{first_line} "), transport
        await storage.close()


async def test_the_expected_owner_is_named_and_signed(server):
    storage = storage_on(server, expected_bucket_owner="111122223333")
    server.rows = [row(206, b"0123456789", **RIGHT)]
    assert await read(storage) == b"0123456789"
    assert "x-amz-expected-bucket-owner: 111122223333\r\n" in server.asked[0]
    signed = server.asked[0].partition("SignedHeaders=")[2].partition(",")[0]
    assert "x-amz-expected-bucket-owner" in signed.split(";")
    await storage.close()


@pytest.mark.parametrize(
    ("environment", "asks_proxy"),
    [
        ({"http_proxy": "PROXY"}, True),
        ({"HTTP_PROXY": "PROXY"}, True),
        ({"http_proxy": "PROXY", "no_proxy": "example.invalid"}, False),
        # Which the SDK knows nothing of.
        ({"ALL_PROXY": "PROXY"}, False),
        ({"AWS_PROXY_URL": "PROXY"}, False),
    ],
    ids=lambda each: "+".join(each) if isinstance(each, dict) else "",
)
async def test_the_environments_proxy_is_asked_where_the_sdk_asks_it(
    server, monkeypatch, environment, asks_proxy
):
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("PROXY", server.endpoint))
    server.rows = [row(206, b"0123456789", **RIGHT)]
    for transport in ("obstore", "aiobotocore"):
        server.asked = []
        storage = storage_on(server, transport=transport, endpoint="http://s3.example.invalid")
        if asks_proxy:
            assert await read(storage) == b"0123456789", transport
        else:
            with pytest.raises(StorageUnavailable):
                await read(storage)
        assert len(server.asked) == asks_proxy, transport
        await storage.close()


@pytest.fixture
async def tls_server(tmp_path) -> AsyncIterator[Server]:
    tls_keys.make(tmp_path)
    server = Server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    await server.start(context)
    server.rows = [row(206, b"0123456789", **RIGHT)]
    yield server
    await server.stop()


async def test_who_is_trusted_by_the_sdk_is_trusted_and_nobody_else(
    tls_server, tmp_path, monkeypatch
):
    # Not the system's: the SDK does not ask it either, and uploads would fail.
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    for transport in ("obstore", "aiobotocore"):
        storage = storage_on(tls_server, transport=transport)
        with pytest.raises(StorageUnavailable) as failure:
            await read(storage)
        assert failure.value.fields["reason"] == "tls"
        await storage.close()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    for transport in ("obstore", "aiobotocore"):
        storage = storage_on(tls_server, transport=transport)
        assert await read(storage) == b"0123456789"
        await storage.close()


async def test_a_server_whose_own_certificate_is_the_authority_is_read_through_the_sdk(
    tmp_path, capsys
):
    """As `openssl req -x509` makes one: copies would succeed and reads would not."""
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-keyout self.key -out self.pem -subj /CN=own -addext subjectAltName=IP:127.0.0.1"
    )
    async with asyncio.timeout(50):
        made = await asyncio.create_subprocess_exec(
            *command.split(), cwd=tmp_path, stderr=asyncio.subprocess.DEVNULL
        )
        assert await made.wait() == 0
    server = Server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "self.pem", tmp_path / "self.key")
    await server.start(context)
    server.rows = [page(403, "AccessDenied"), row(206, b"0123456789", **RIGHT)]
    storage = storage_on(server, ca_file=str(tmp_path / "self.pem"))
    with pytest.raises(StorageUnavailable) as failure:
        await read(storage)
    assert failure.value.fields["reason"] == "denied", "the SDK's own error"
    for _ in range(2):
        assert await read(storage) == b"0123456789"
    assert storage.stats.calls == {("GetObject", "denied"): 1, ("GetObject", "ok"): 2}
    assert len(server.asked) == 3
    await storage.close()
    await server.stop()
    told = capsys.readouterr()  # a test before may have sent log lines to standard error
    assert (told.out + told.err).count("read through aiobotocore") == 1


async def test_keys_that_are_no_paths_are_read_all_the_same(server):
    """Of a prefix with dots, an earlier one perhaps, which the bucket's marker still knows."""
    storage = storage_on(server)
    server.rows = [row(206, b"0123456789", **RIGHT)]
    pieces = storage.fetch("a/../b.log", 0, 10)
    assert b"".join([piece async for piece in pieces]) == b"0123456789"
    assert server.asked[0].startswith("GET /b/a/../b.log ")
    await storage.close()


def test_nothing_is_imported_before_something_is_read():
    """Who only copies starts without its tenth of a second, and without its memory."""
    script = (
        "import random, sys\n"
        "from rlmm_daemon.adapters.storage.s3 import S3Options, S3Storage\n"
        "S3Storage(S3Options(bucket='b'), owner='1', rng=random.Random(7))\n"
        "sys.exit('obstore' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)
