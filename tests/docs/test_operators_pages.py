"""Pages for operators name tests and targets that there are, and no row is without its proof."""

import itertools
import re

import pytest

from tests.docs.named_tests import is_there, named, targets
from tests.support.daemon_process import REPOSITORY
from tests.support.make_targets import make_targets

DOCS = REPOSITORY / "docs"
#: Pages, and how many tests they name at least.
PAGES = {
    "compatibility.md": 30,
    "upgrading.md": 10,
    "security.md": 15,
    "faq.md": 8,
    "kubernetes.md": 1,
}
#: What a row says that nothing here has tried.
UNPROVEN = re.compile(r"not run|not tried|not supported")


def rows(page: str) -> list[str]:
    """The rows of a page's tables, without their heads."""
    lines = (DOCS / page).read_text().splitlines()
    return [
        line
        for before, line in itertools.pairwise(lines)
        if line.startswith("|") and before.startswith("|") and not line.startswith("| ---")
    ]


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names_are_there(page):
    text = (DOCS / page).read_text()
    found = named(text)
    assert len(found) >= PAGES[page]
    assert [each for each in found if not is_there(each)] == []
    assert targets(text) <= make_targets()


@pytest.mark.parametrize("page", ["compatibility.md", "upgrading.md", "security.md"])
def test_each_row_names_its_proof_or_says_that_it_has_none(page):
    assert len(rows(page)) > 5
    assert [row for row in rows(page) if not (named(row) or UNPROVEN.search(row))] == []


def test_a_test_that_is_not_there_is_noticed():
    here = "tests/docs/test_operators_pages.py"
    assert is_there(f"{here}::test_a_test_that_is_not_there_is_noticed")
    for each in (f"{here}::test_no", "tests/no.py", "NoTest.no", "FitTest.no"):
        assert named(f"`{each}`") == [each]
        assert not is_there(each)
