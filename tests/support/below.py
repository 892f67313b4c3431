"""Files below a directory that a daemon is at work in."""

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path


def below(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files whose names match.

    `Path.rglob` fails of a directory that goes while it looks, as an attempt's does.
    """
    for directory, _, names in os.walk(root):
        for name in fnmatch.filter(names, pattern):
            yield Path(directory, name)
