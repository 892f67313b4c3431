"""What `make docs` would notice: links that lead nowhere, commands that end otherwise than said."""

from pathlib import Path

import pytest

from tests.docs import blocks, links
from tests.docs.site import PAGES

WHOLE = '<h1 id="here">x</h1><a href="b.html">b</a> <a href="#here">up</a> <img src="a.svg">'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "a.svg").touch()
    (tmp_path / "b.html").write_text('<p id="there"><a href="https://kafka.apache.org/">k</a></p>')
    return tmp_path


def wrong(site: Path, text: str) -> list[str]:
    (site / "a.html").write_text(text)
    _, found = links.check(site)
    return found


def test_a_site_whose_links_lead_somewhere_passes(site: Path):
    assert wrong(site, WHOLE + '<a href="b.html#there">there</a>') == []
    assert links.check(site)[0] == 5


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("c.html", "leads nowhere"),
        ("b.html#gone", "has no such place"),
        ("#gone", "has no such place"),
        ("http://kafka", "is no address"),
        ("htps://kafka.apache.org/", "is no address"),
    ],
)
def test_a_link_that_leads_nowhere_is_named_with_its_page(site: Path, link: str, reason: str):
    assert wrong(site, f'<a href="{link}">x</a>') == [f"a.html: {link}: {reason}"]


def page(directory: Path, text: str) -> Path:
    file = directory / "page.md"
    file.write_text(text)
    return file


def test_a_marked_block_is_run_and_others_are_not(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(blocks, "REPOSITORY", tmp_path)
    told = page(
        tmp_path,
        "```console run\n$ touch marked\nwhat it printed\n$ false   # exit code 1\n```\n"
        "```console\n$ touch unmarked\n```\n",
    )
    assert blocks.run(told) == (2, [])
    assert (tmp_path / "marked").exists()
    assert not (tmp_path / "unmarked").exists()


def test_a_command_that_ends_otherwise_is_named_with_its_words(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(blocks, "REPOSITORY", tmp_path)
    told = page(tmp_path, "```console run\n$ echo no; exit 3\n$ true   # exit code 1\n```\n")
    assert blocks.run(told)[1] == [
        "page.md: echo no; exit 3: exit code 3\nno",
        "page.md: true   # exit code 1: exit code 0\n",
    ]


def test_blocks_of_operators_and_of_developers_are_marked():
    found = [block for page in PAGES for block in blocks.blocks(page)]
    assert {block.daemon for block in found} == {True, False}
    assert sum(len(block.commands) for block in found) > 20
