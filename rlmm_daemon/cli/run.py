"""`rlmm run`: the daemon itself."""

import gc
import sys
from typing import Final

import click

from rlmm_daemon.config import Config, load
from rlmm_daemon.config.exposure import exposures_in_time
from rlmm_daemon.observability import logging
from rlmm_daemon.observability.without_rich import structlog

_log = structlog.get_logger(__name__)
#: How long the start waits for a look at the modes of files and directories.
_EXPOSURES_SECONDS: Final = 2.0


@click.command("run")
@click.option(
    "--config", "file", required=True, metavar="FILE", help="The TOML file; see check-config."
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key, e.g. --set log.level=debug; repeatable; never for secrets.",
)
def command(file: str, overrides: tuple[str, ...]) -> None:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C, which drain it."""

    def read() -> Config:
        return load(file, overrides)

    config = read()
    logging.configure(level=config.log.level, style=config.log.format)
    exposed = exposures_in_time(config, file, _EXPOSURES_SECONDS)
    if exposed is None:
        _log.warning("modes of files and directories not known: a disk or mount hangs")
    for each in exposed or ():
        _log.warning("exposed", check=each.check, found=each.found, advice=each.advice)
    # What is loaded stays: the collector need not walk it, now or while look-ups wait.
    gc.disable()
    # Imported late: a wrong configuration is told before everything is loaded.
    from rlmm_daemon.wiring.daemon import run as serve

    gc.freeze()
    gc.enable()
    sys.exit(serve(config, reload=read))
