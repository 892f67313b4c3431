"""Files of the page, as they lie beside this module; each is read once."""

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib import resources
from typing import Final

from rlmm_daemon.daemon.operator.http_get import Page, Query

_KINDS: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: Path -> file.
FILES: Final[Mapping[str, str]] = {
    "/": "index.html",
    "/page.css": "page.css",
    "/page.js": "page.js",
    "/views.js": "views.js",
    "/parts.js": "parts.js",
    "/quorum.js": "quorum.js",
    "/events.js": "events.js",
    "/fleet.js": "fleet.js",
    "/forecast.js": "forecast.js",
    "/text.js": "text.js",
    "/icon.svg": "icon.svg",
}


def files() -> dict[str, Callable[[Query], Awaitable[Page]]]:
    """Return what answers each path."""
    return {path: _answering(name) for path, name in FILES.items()}


def _answering(name: str) -> Callable[[Query], Awaitable[Page]]:
    async def answer(_query: Query) -> Page:
        return _page(name)

    return answer


@cache
def _page(name: str) -> Page:
    body = resources.files(__package__).joinpath("static", name).read_bytes()
    return Page(body=body, content_type=_KINDS[name.rpartition(".")[2]])
