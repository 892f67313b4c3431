"""Base of the configuration's sections, and the kinds of values that several of them have."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Seconds = Annotated[int, Meta(ge=1, le=86_400)]
#: Made absolute against the working directory when the file is read.
FilePath = Annotated[str, Meta(min_length=1)]
#: `host:port`, or `[v6]:port`.
Address = Annotated[str, Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):\d{1,5}$")]
#: `core.storage.layout.Layout` says what the hash is; it is in front or nowhere.

MIB: Final = 1024 * 1024


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a configuration; a key that it does not have is refused."""
