"""Our own words: each explained once, in a line, where one would look."""

from tests.support.daemon_process import REPOSITORY

LINES = (REPOSITORY / "docs" / "glossary.md").read_text().splitlines()
ROWS = [line.strip("| ").split(" | ", 1) for line in LINES if line.startswith("| ")][2:]
#: What needs more to be said should have another name.
MEANING_CHARACTERS_MAX = 110


def plain(word: str) -> str:
    return word.partition(" (")[0].casefold()


def test_words_stand_in_their_order_and_once():
    words = [plain(word) for word, _ in ROWS]
    assert words == sorted(set(words))


def test_a_word_is_explained_in_a_line():
    long = [word for word, meaning in ROWS if len(meaning) > MEANING_CHARACTERS_MAX]
    assert long == []


def test_the_words_that_are_ours_alone_are_explained():
    assert {"fold", "sealed", "held", "hold", "third set", "settled"} <= {
        plain(word) for word, _ in ROWS
    }
