"""A real Prometheus that scrapes one daemon each second."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from tests.support.daemon_process import REPOSITORY
from tests.support.stocked_daemon import eventually, free_address

TOOLS: Final = REPOSITORY / "var" / "monitoring"
#: A scrape may take as long as it is until the next one: one that a busy machine lets fail makes
#: all series stale, and each alert that was pending begins anew.
_CONFIG: Final = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: rlmm
    static_configs: [{{targets: ["{daemon}"]}}]
"""


class Prometheus:
    """One that runs, and what it knows."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **asked: str) -> Any:
        """Return what its API says."""
        query = urllib.parse.urlencode(asked)
        try:
            with urllib.request.urlopen(
                f"http://{self._address}/api/v1/{path}?{query}", timeout=10
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                    raise  # it starts
                raise AssertionError(f"{asked}: {error.read().decode()}") from error

    def is_up(self) -> bool:
        """Return whether it has seen the daemon."""
        try:
            return bool(self.get("query", query='up{job="rlmm"} == 1')["result"])
        except OSError:
            return False

    def result(self, expr: str) -> list[Any]:
        """Return what a panel or an alert is about just now."""
        shown = expr.replace("$instance", ".*").replace("$__rate_interval", "1m")
        found: list[Any] = self.get("query", query=shown)["result"]
        return found

    def firing(self, seconds: int = 0) -> dict[str, str]:
        """Return the severity of each alert that fires, or did within so many seconds."""
        series = 'ALERTS{alertstate="firing"}'
        expr = f"last_over_time({series}[{seconds}s])" if seconds else series
        return {
            each["metric"]["alertname"]: each["metric"]["severity"] for each in self.result(expr)
        }


@contextmanager
def scraping(home: Path, daemon: str, rules: Path) -> Iterator[Prometheus]:
    """Run one that has seen the daemon at an address; it ends with the block."""
    home.mkdir()
    config, address = home / "prometheus.yml", free_address()
    config.write_text(_CONFIG.format(rules=rules, daemon=daemon))
    with (home / "output").open("w") as output:
        running = subprocess.Popen(
            [
                TOOLS / "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={home / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            found = Prometheus(address)
            eventually(found.is_up)
            yield found
        finally:
            running.kill()
            running.wait(timeout=30)
