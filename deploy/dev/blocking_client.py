"""Makes the blocking client of the async one: `make client`.

The modules of `rlmm_daemon/client/_async` that touch no event loop become blocking by taking their
`async` and `await` away. What does touch it has a twin in `_sync`, written by hand.
"""  # noqa: INP001 - a script, no package

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).parents[2] / "rlmm_daemon" / "client"
MADE: Final = ("caller.py", "client.py", "connection.py")
_HEADER: Final = "# Made of ../_async/{name} by `make client`: change that one.\n"
_WORDS: Final = [
    ("The daemon's socket as coroutines.", "The daemon's socket as blocking calls."),
    ("Calls share one connection and may overlap.", "Not for use by several threads at once."),
    ("    In another event loop only after `aclose`, or once the former one is closed.\n", ""),
]
_RULES: Final = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\baclos(e|ing)\b", r"clos\1"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\b_async\b", "_sync"),
    (r"\bAsync\b", "Blocking"),
    (r"\basync\b", "blocking"),
]


def blocking(name: str) -> str:
    """Return a blocking module as it has to be, after its async source."""
    text = (CLIENT / "_async" / name).read_text()
    for old, new in _WORDS:
        text = text.replace(old, new)
    for pattern, new in _RULES:
        text = re.sub(pattern, new, text)
    text = _HEADER.format(name=name) + text
    # Fewer words may fit in fewer lines, and a loop that only yields is a `yield from`.
    text = _ruff(text, "check", "--select=I,UP028", "--fix-only", "--unsafe-fixes", "--quiet")
    return _ruff(text, "format", "--quiet")


def _ruff(text: str, *words: str) -> str:
    where = f"--stdin-filename={CLIENT / '_sync' / 'made.py'}"
    command = [sys.executable, "-m", "ruff", *words, where, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)  # noqa: S603 - our own words
    return done.stdout


def main() -> None:
    """Write every blocking module that is made."""
    for name in MADE:
        (CLIENT / "_sync" / name).write_text(blocking(name))


if __name__ == "__main__":
    main()
