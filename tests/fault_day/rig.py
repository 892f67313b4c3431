"""A daemon at work, a Prometheus before it, and an engineer who has page, alert and explain."""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from msgspec.structs import replace

from deploy.monitoring import rules
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import SegmentId
from tests.fault_day.faults import Fault
from tests.support.browser import browser
from tests.support.daemon_process import environment
from tests.support.prometheus import Prometheus, scraping
from tests.support.stocked_daemon import Stocked

#: The windows of rates; what has to hold for minutes has to for as many seconds.
WINDOW: Final = "10s"
#: Of the machine, however busy others keep it; it shows the worst of a whole minute.
OF_THE_MACHINE: Final = {"RlmmEventLoopLate"}
PATIENCE_SECONDS: Final = 120.0
_COMMAND_SECONDS: Final = 60.0
_MINUTES: Final = {"m": 1, "h": 60, "d": 24 * 60}
_WRONG: Final = "[...document.querySelectorAll('main ul li.bad')].map((each) => each.textContent)"


def hurried() -> str:
    """Return the rules as they are shipped, with a second for each minute of waiting."""
    waits = re.sub(
        r"(?m)^( +for: )(\d+)([mhd])$",
        lambda found: f"{found[1]}{int(found[2]) * _MINUTES[found[3]]}s",
        rules.rules(),
    )
    return re.sub(r"\[\d+[mhd]\]", f"[{WINDOW}]", waits)


def now_ms() -> int:
    """Return the time as events have it."""
    return time.time_ns() // 1_000_000


class Load:
    """A thread for each partition that copies a segment, reads it and deletes it, and again."""

    def __init__(self, it: Stocked) -> None:
        self._it = it
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(partition,), daemon=True)
            for partition in (0, 1)
        ]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join(PATIENCE_SECONDS)

    def _work(self, partition: int) -> None:
        segment, serial = self._it.next(partition), 0
        copied: SegmentId | None = None
        while not self._over.wait(0.05):
            try:
                with self._it.daemon.client() as client:
                    if copied is None:
                        serial += 1
                        mark = serial.to_bytes(2, "big")
                        fresh = SegmentId(segment.metadata.segment_id[:14] + mark)
                        wanted = replace(
                            segment.metadata, segment_id=fresh, event_timestamp_ms=now_ms()
                        )
                        done = client.copy_segment(wanted, segment.files)
                        copied = done.segment_id
                        with client.fetch_log_segment(done) as log:
                            log.readall()
                    client.delete_segment(self._it.orders[partition], copied)
                    copied = None
            except RlmmError:
                self._over.wait(0.2)


@dataclass(slots=True)
class Day:
    """What an engineer can ask."""

    it: Stocked
    config: Path
    prometheus: Prometheus
    began: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Count alerts from now on."""
        self.began = time.monotonic()

    def typed(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `rlmm WORDS` in a process of its own, as on the daemon's host."""
        own = {"RLMM_SOCKET": self.it.daemon.socket_path, "RLMM_CONFIG": str(self.config)}
        return subprocess.run(
            [sys.executable, "-m", "rlmm_daemon", *words],
            cwd=self.it.daemon.directory,
            env=environment() | own | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )

    def explained(self) -> dict[str, Any]:
        """Return what `rlmm explain` says of a partition."""
        answer: dict[str, Any] = json.loads(self.typed("explain", "orders-0", "--json").stdout)
        return answer

    def until_fires(self, fault: Fault) -> None:
        """Wait for the alert, and hold that none of severity `page` says what is not so."""
        self.until(lambda: fault.alert in self.prometheus.firing(), fault.alert)

    def no_wrong_alert(self, fault: Fault) -> None:
        """Hold that nobody is woken by what is not so."""
        fired = self.prometheus.firing(max(1, int(time.monotonic() - self.began)))
        woken = {name for name, severity in fired.items() if severity == "page"}
        assert woken <= {fault.alert, *fault.also}, fired

    def until_silent(self) -> None:
        """Wait until no alert fires, whatever its severity, and explain finds nothing."""
        self.until(lambda: self.prometheus.firing().keys() <= OF_THE_MACHINE, "no alert")
        self.until(lambda: not self.explained()["trouble"], "explain finds nothing")

    def until(self, holds: Any, what: str) -> None:
        """Wait until it holds."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > end:
                firing, told = self.prometheus.firing(), self.typed("explain", "orders-0")
                raise AssertionError(f"not in time: {what}; {firing}; {told.stdout}{told.stderr}")
            time.sleep(0.2)

    async def page(self, words: str, home: Path, picture: Path | None = None) -> None:
        """Wait until the page says these words below "What is wrong", or nothing where none are."""
        wanted = json.dumps(words)
        found = f"{_WRONG}.some((each) => each.includes({wanted}))" if words else (
            f"document.body?.dataset.state === 'shown' && {_WRONG}.length === 0"
        )  # fmt: skip
        address = self.it.daemon.settings["admin.listen"]
        async with browser(home, f"http://{address}/") as tab:
            await tab.look(1_280, dark=False)
            await tab.until(found)
            assert tab.complaints == []
            if picture is not None:
                await tab.picture(picture)


@contextmanager
def working(it: Stocked, config: Path, home: Path) -> Iterator[Day]:
    """A daemon that has work, scraped."""
    file = home / "rules.yml"
    file.write_text(hurried())
    listen = str(it.daemon.settings["admin.listen"])
    with Load(it), scraping(home / "prometheus", listen, file) as prometheus:
        yield Day(it, config, prometheus)
