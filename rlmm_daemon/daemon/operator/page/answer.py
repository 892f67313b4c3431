"""Form of the page's answers: JSON, so many rows at most, and numbers from a query."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rlmm_daemon.daemon.operator.http_get import Page
from rlmm_daemon.domain.errors import InvalidArgument

#: Of topics, of a topic's partitions, of copies and of events.
ROWS_MAX: Final = 200
#: Any number of so many is an offset.
_DIGITS_MAX: Final = 18


def json_page(answer: Mapping[str, Any], status: int = 200) -> Page:
    """Return it as a page."""
    return Page(body=msgspec.json.encode(answer), content_type="application/json", status=status)


def number_of(text: str | None) -> int | None:
    """Return an offset, or a number of rows.

    Raises:
        InvalidArgument: it is none.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise InvalidArgument(f"{text[:_DIGITS_MAX]!r} is no number")
    return int(text)
