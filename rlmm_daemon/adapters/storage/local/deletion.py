"""A delete that a thread is at: what it may take away yet, whether or not anybody waits for it."""

import threading
from collections.abc import Collection


def directory_of(key: str) -> str:
    """Return what comes before a key's last part."""
    return key.rpartition("/")[0]


class Deletion:
    """One call's keys. Its thread asks before each step; its caller may leave meanwhile."""

    def __init__(self, keys: Collection[str]) -> None:
        self.keys = keys
        self._lock = threading.Lock()
        #: What may go yet.
        self._left = set(keys)
        self._directory: str | None = None
        self._key: str | None = None
        self._given_up = self._over = False

    @property
    def is_over(self) -> bool:
        """Whether its thread has ended, or has nothing left to begin."""
        return self._over

    def may_take(self, key: str) -> bool:
        """Return whether a key may be gone in a moment."""
        with self._lock:
            return key in self._left

    def hangs_in(self) -> str | None:
        """Return the directory in which its thread is though nobody waits any more."""
        with self._lock:
            return self._directory if self._given_up and not self._over else None

    def give_up(self) -> None:
        """Begin with nothing more: nobody waits. What the thread is at may go yet."""
        with self._lock:
            self._given_up = True
            self._left.intersection_update(() if self._key is None else (self._key,))
            self._over = self._over or self._directory is None

    # Of the thread.

    def enter(self, directory: str) -> bool:
        """Return whether to go on with a directory of keys."""
        with self._lock:
            if not self._given_up:
                self._directory = directory
            return not self._given_up

    def begin(self, key: str) -> bool:
        """Return whether to take a key away."""
        with self._lock:
            if not self._given_up:
                self._key = key
            return not self._given_up

    def end(self, key: str) -> None:
        """Note that a key was taken away, or could not be."""
        with self._lock:
            self._left.discard(key)
            self._key = None

    def ended(self) -> None:
        """Note the thread's end."""
        with self._lock:
            self._left.clear()
            self._directory, self._over = None, True
