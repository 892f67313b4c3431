"""`make docs`: builds the site, checks its links, and runs the blocks that can be run.

Prints what each step took and looked at; ends with 1 if anything is wrong.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.docs import blocks, links
from tests.support.daemon_process import REPOSITORY

HOME: Final = REPOSITORY / "var" / "docs"
SITE: Final = HOME / "site"
#: Pages that may hold blocks.
PAGES: Final = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
    REPOSITORY / "deploy" / "plugin" / "README.md",
]


def main() -> int:
    """Do all of it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make docs")
    parser.add_argument("--sphinx", type=Path, required=True, help="the sphinx-build to take")
    asked = parser.parse_args()
    wrong: list[str] = []
    with _told("site built"):
        if not build(asked.sphinx):
            return 1
    with _told("links checked"):
        count, broken = links.check(SITE)
        wrong += broken
        sys.stdout.write(f"{count:,} links\n")
    with _told("blocks run"):
        typed = 0
        for page in PAGES:
            count, failed = blocks.run(page)
            typed += count
            wrong += failed
        sys.stdout.write(f"{typed} commands\n")
    for each in wrong:
        sys.stdout.write(f"wrong: {each}\n")
    sys.stdout.write(f"{SITE.relative_to(REPOSITORY)}/docs/index.html\n")
    return 1 if wrong else 0


def build(sphinx: Path, into: Path = SITE) -> bool:
    """Build the site anew; returns whether it is whole: a warning is an error."""
    shutil.rmtree(into, ignore_errors=True)
    command: list[str | Path] = [
        sphinx,
        "-b",
        "html",
        "-c",
        REPOSITORY / "docs",
        "-d",
        HOME / "trees",
    ]
    built = subprocess.run(
        [*command, "--fail-on-warning", "--keep-going", "-q", "-j", "2", REPOSITORY, into],
        check=False,
    )
    return built.returncode == 0


@contextmanager
def _told(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    sys.stdout.write(f"{what} in {time.monotonic() - began:.1f} s\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
