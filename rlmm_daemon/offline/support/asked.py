"""Answers of a running daemon for a support bundle; one that is silent is asked once."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from rlmm_daemon.client import Client, ClientOptions
from rlmm_daemon.domain.errors import DaemonUnreachable, RlmmError, TimedOut
from rlmm_daemon.offline.support.bundle import Step
from rlmm_daemon.offline.support.host import in_json

#: Rows of user partitions, and partitions that are explained.
_PARTITIONS_MAX: Final = 5_000
_EXPLAINED_MAX: Final = 20


class AskedDaemon:
    """One daemon; what it said last is remembered for the questions that build on it."""

    def __init__(self, socket: str, name: str, seconds: float) -> None:
        """`name` is what the daemon's log calls us; `seconds` are for each question."""
        self._socket, self._seconds = socket, seconds
        self._options = ClientOptions(client=name, timeout_seconds=seconds)
        self._silent: RlmmError | None = None
        self._answers = dict[str, Any]()

    def steps(self) -> Iterator[Step]:
        """Yield the questions."""
        for name, about, ask in (
            ("status", "rlmm status", Client.status),
            ("partitions", "rlmm partitions: the metadata partitions", Client.partitions),
            ("cleanup", "rlmm cleanup: removals, and what is stuck", Client.cleanup),
        ):
            yield self._step(f"{name}.json", about, self._remembered(name, ask))
        yield self._step(
            "user-partitions.jsonl", "rlmm partitions --users, the first ones", self._users
        )
        yield self._step(
            "explain.json", "rlmm explain of what is not well, else of the first", self._explained
        )

    def _step(self, name: str, about: str, ask: Callable[[Client], str]) -> Step:
        # Some questions take several turns.
        seconds = self._seconds * (_EXPLAINED_MAX + 2)
        return Step(name=name, about=about, tell=lambda: self._told(ask), seconds=seconds)

    def _told(self, ask: Callable[[Client], str]) -> str:
        if self._silent is not None:
            raise self._silent
        try:
            with Client(self._socket, self._options) as client:
                return ask(client)
        except (DaemonUnreachable, TimedOut) as error:
            self._silent = error
            raise

    def _remembered(self, name: str, ask: Callable[[Client], Any]) -> Callable[[Client], str]:
        def asked(client: Client) -> str:
            self._answers[name] = ask(client)
            return in_json(self._answers[name])

        return asked

    def _users(self, client: Client) -> str:
        rows = list(islice(client.user_partitions(), _PARTITIONS_MAX))
        self._answers["users"] = rows
        return "".join(f"{msgspec.json.encode(_row(row)).decode()}\n" for row in rows)

    def _explained(self, client: Client) -> str:
        told = list[dict[str, Any]]()
        for selector in islice(dict.fromkeys(self._wanted()), _EXPLAINED_MAX):
            try:
                told.append(client.explain(selector))
            except TimedOut:
                raise
            except RlmmError as error:
                told.append({"partition": selector, "error": error.message})
        return in_json(told)

    def _wanted(self) -> Iterator[str]:
        """Yield partitions worth a word: copied, unsettled, or in a partition that is not ready."""
        status = self._answers.get("status", {})
        for row in (*status.get("unsettled_copies", ()), *status.get("copies", ())):
            yield row["partition"]
        rows = self._answers.get("users", [])
        ready = {
            row["metadata_partition"]
            for row in self._answers.get("partitions", [])
            if row["state"] == "ready"
        }
        yield from (
            str(row.partition.to_domain()) for row in rows if row.metadata_partition not in ready
        )
        unwell = (row for row in rows if row.metadata_partition not in ready)
        yield from (str(row.partition.to_domain()) for row in (*unwell, *rows[:3]))


def _row(row: Any) -> dict[str, Any]:
    return {
        "partition": str(row.partition.to_domain()),
        "metadata_partition": row.metadata_partition,
        "role": row.role,
        "segments": row.segments,
        "size_bytes": row.size_bytes,
        "delete_state": row.delete_state,
    }
