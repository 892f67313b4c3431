"""A bucket that lists whatever keys it is told to have, which no real server keeps all of.

It speaks ListObjectsV2 and HEAD as S3 documents them, and fails where a test says so.
"""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit
from xml.sax.saxutils import escape

from rlmm_daemon.config import Config, parse
from tests.unit.reconcile.configured import DAEMON

SECRET = "not-to-be-told"
CONFIG = f"""{DAEMON}
[storage]
kind = "s3"
bucket = "segments"
region = "us-east-1"
endpoint = "{{scheme}}://127.0.0.1:{{port}}"
addressing = "path"
access_key_id_file = "{{home}}/access_key_id"
secret_access_key_file = "{{home}}/secret_access_key"
"""
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class Bucket:
    """Its keys, how long a page is, and which requests fail."""

    def __init__(self, config: Config, keys: list[str]) -> None:
        self.config, self.keys = config, keys
        self.page_keys = 1_000
        #: Of the requests so far, names in lower case.
        self.headers: list[dict[str, str]] = []
        #: Query (with "method" and "path") -> status and error code; None: it is answered.
        self.fails: Callable[[dict[str, str]], tuple[int, str] | None] = lambda _query: None

    def page(self, query: dict[str, str]) -> str:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("continuation-token") or query.get("start-after", "")
        shown: list[str] = []
        rolled: list[str] = []
        last = ""
        for key in sorted(self.keys):
            if not key.startswith(prefix) or key <= after:
                continue
            head = key[len(prefix) :].partition("/")
            whole = prefix + "".join(head[:2])
            if delimiter and head[1]:
                if whole in rolled:
                    last = key
                    continue
                rolled.append(whole)
            else:
                shown.append(key)
            if len(shown) + len(rolled) > self.page_keys:
                (rolled if delimiter and head[1] else shown).pop()
                break
            last = key
        else:
            last = ""
        name = quote if query.get("encoding-type") == "url" else _reference
        rows = "".join(
            f"<Contents><Key>{name(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            '<ETag>"e"</ETag><Size>1</Size></Contents>'
            for key in shown
        )
        prefixes = "".join(
            f"<CommonPrefixes><Prefix>{name(each)}</Prefix></CommonPrefixes>" for each in rolled
        )
        more = f"<NextContinuationToken>{name(last)}</NextContinuationToken>" if last else ""
        kind = "<EncodingType>url</EncodingType>" if name is quote else ""
        return (
            f'<ListBucketResult xmlns="{_NAMESPACE}"><Name>segments</Name>{kind}'
            f"<IsTruncated>{str(bool(last)).lower()}</IsTruncated>{more}{rows}{prefixes}"
            "</ListBucketResult>"
        )


def _reference(key: str) -> str:
    return "".join(c if c.isprintable() else f"&#x{ord(c):X};" for c in escape(key))


@contextmanager
def serving(home: Path, keys: list[str], *, tls: ssl.SSLContext | None = None) -> Iterator[Bucket]:
    """Yield a bucket that answers, and the configuration of a daemon that has it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
            bucket.headers.append({name.lower(): text for name, text in self.headers.items()})
            query |= {"method": self.command, "path": urlsplit(self.path).path}
            failed = bucket.fails(query)
            status, text = 200, ""
            if failed is not None:
                status = failed[0]
                text = f"<Error><Code>{failed[1]}</Code><Message>no</Message></Error>"
            elif "versioning" in query:
                text = f'<VersioningConfiguration xmlns="{_NAMESPACE}"/>'
            else:
                text = bucket.page(query)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - as the base class names them

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    (home / "access_key_id").write_text("key")
    (home / "secret_access_key").write_text(SECRET)
    scheme = "http" if tls is None else "https"
    config = parse(CONFIG.format(home=home, scheme=scheme, port=server.server_port))
    bucket = Bucket(config, keys)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
