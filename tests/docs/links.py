"""Links of a built site: those within it lead somewhere, those out of it have the form of one."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Sphinx's own pages, which nobody writes.
_OWN = ("genindex.html", "search.html")


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names and what it leads to."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in {"href", "src"} and value and tag in {"a", "img"}:
                self.links.append(value)


def check(site: Path) -> tuple[int, list[str]]:
    """Return how many links the site's pages have, and what is wrong with which."""
    pages = {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    wrong = [
        f"{file.relative_to(site)}: {link}: {reason}"
        for file, page in pages.items()
        if file.name not in _OWN
        for link in page.links
        for reason in _wrong(link, file, pages)
    ]
    return sum(len(page.links) for page in pages.values()), wrong


def _wrong(link: str, file: Path, pages: dict[Path, Page]) -> Iterator[str]:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        host = parts.hostname or ""
        sound = parts.scheme in {"http", "https"} and "." in host and " " not in link
        if not sound and not link.startswith("data:"):
            yield "is no address"
        return
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        yield "leads nowhere"
    elif target in pages and unquote(parts.fragment) not in pages[target].anchors | {""}:
        yield "has no such place"
