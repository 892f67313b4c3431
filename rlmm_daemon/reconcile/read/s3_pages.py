"""Pages of a bucket's keys: by obstore, and by botocore where a key is one that obstore can't name.

To obstore a key is a path. It refuses a whole page for one key with an empty segment, with `.` or
`..` for one, or with a control character, and such keys are anybody's to put. botocore takes them
all, at a quarter of the speed.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from obstore.exceptions import InvalidPathError

from rlmm_daemon.config import Config
from rlmm_daemon.reconcile.read import s3_client
from rlmm_daemon.reconcile.read.s3_calls import S3Calls

#: As obstore makes them: path, size, last_modified, e_tag.
Row = Mapping[str, Any]
#: Servers differ in the order of `/` and `-`, never by a page.
_PAGES_REMEMBERED: Final = 2


def pages(
    config: Config, prefix: str, *, after: str | None, page_keys: int
) -> Iterator[Sequence[Row]]:
    """Yield the keys below a prefix and behind a key, each once.

    Raises:
        BaseError, Incomplete: the server did not tell all.
    """
    recent: deque[Sequence[Row]] = deque(maxlen=_PAGES_REMEMBERED)
    if not _is_odd(prefix):
        found = s3_client.opened(config).list(prefix or None, offset=after, chunk_size=page_keys)
        try:
            for page in found:
                recent.append(page)
                yield page
        except InvalidPathError:
            pass  # taken up below, where it was left
        else:
            return
    seen = {row["path"] for page in recent for row in page}
    for told in S3Calls(config).objects(prefix, after=min(seen, default=after)):
        yield [row for row in map(_row, told.get("Contents", ())) if row["path"] not in seen]


def directly_below(config: Config, prefix: str) -> tuple[list[Row], list[str]]:
    """Return the keys directly below a prefix, and the prefixes of what lies deeper.

    Raises:
        BaseError, Incomplete: the server did not tell all.
    """
    if not _is_odd(prefix):
        try:
            found = s3_client.opened(config).list_with_delimiter(prefix or None)
        except InvalidPathError:
            pass
        else:
            deeper = [f"{name.rstrip('/')}/" for name in found["common_prefixes"]]
            return [*found["objects"]], deeper
    rows: list[Row] = []
    prefixes: list[str] = []
    for told in S3Calls(config).objects(prefix, shallow=True):
        rows += map(_row, told.get("Contents", ()))
        prefixes += [each["Prefix"] for each in told.get("CommonPrefixes", ())]
    return rows, prefixes


def _is_odd(prefix: str) -> bool:
    """Return whether obstore would refuse a prefix, or ask for another one."""
    names = prefix.removesuffix("/").split("/") if prefix else []
    return any(name in {"", ".", ".."} or not name.isprintable() for name in names)


def _row(told: Mapping[str, Any]) -> Row:
    return {
        "path": told["Key"],
        "size": told["Size"],
        "last_modified": told["LastModified"],
        "e_tag": told.get("ETag"),
    }
