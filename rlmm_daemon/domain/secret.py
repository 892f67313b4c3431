"""Secrets, and the names of keys that hold one: never shown."""

import re
from typing import Final

HIDDEN: Final = "[hidden]"
_SECRET_NAME: Final = re.compile(
    r"(secret|password|passwd|passphrase|token|credential|access_?key|private_?key|api_?key|jaas)",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Return whether a key's name says that its value must not be shown.

    `*_file` and `*_env` only say where a secret is, so their values may be shown.
    """
    return bool(_SECRET_NAME.search(name)) and not name.endswith(("_file", "_env"))


class Secret:
    """A value that never shows itself: not in `repr`, `str`, a format string or a log line."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def reveal(self) -> str:
        """Return the secret itself; call it where it is handed to a library and nowhere else."""
        return self._value
