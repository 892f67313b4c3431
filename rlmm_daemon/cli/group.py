"""The table of commands, loaded one by one, and the exit code of every error."""

import enum
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import click

from rlmm_daemon import __version__
from rlmm_daemon.domain.errors import ConfigError, DaemonUnreachable, RlmmError


class Exit(enum.IntEnum):
    """What a script may rely on."""

    CLEAN = 0
    TROUBLE = 1
    USAGE = 2
    UNREACHABLE = 3
    CONFIG = 78


@dataclass(frozen=True, slots=True)
class Row:
    """One command: the module whose `command` it is, and its line in `rlmm --help`."""

    module: str
    help: str
    #: The command's name in its module; several small ones may share one.
    attribute: str = "command"


#: In the order of `rlmm --help`. A new command is one row here and one module with `command`.
COMMANDS: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "run": Row("rlmm_daemon.cli.run", "Run the daemon in the foreground."),
        "check-config": Row(
            "rlmm_daemon.cli.check_config", "Check a configuration and print what is in force."
        ),
        "decode": Row(
            "rlmm_daemon.cli.codec", "Decode metadata records to JSON, a line each.", "decode"
        ),
        "encode": Row("rlmm_daemon.cli.codec", "Encode JSON to metadata records.", "encode"),
        "partition-of": Row(
            "rlmm_daemon.cli.codec",
            "Print the metadata partition of a user partition.",
            "partition_of",
        ),
    }
)


def exit_code(error: RlmmError) -> Exit:
    """Return the exit code that an error of ours ends a command with."""
    if isinstance(error, DaemonUnreachable):
        return Exit.UNREACHABLE
    return Exit.CONFIG if isinstance(error, ConfigError) else Exit.TROUBLE


class LazyGroup(click.Group):
    """A group that imports a command only to run it or to show its own help."""

    def __init__(self, *args: Any, rows: Mapping[str, Row], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = rows

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order."""
        del ctx
        return list(self.rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported now; None if the table has no such row."""
        del ctx
        row = self.rows.get(cmd_name)
        if row is None:
            return None
        command = getattr(importlib.import_module(row.module), row.attribute)
        assert isinstance(command, click.Command), row.module
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table alone."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in self.rows.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours becomes one message and its exit code."""
        try:
            return super().invoke(ctx)
        except RlmmError as error:
            # Imported late, as every command module is.
            from rlmm_daemon.cli.output import show_error  # noqa: PLC0415

            show_error(error, as_json=bool(ctx.meta.get("rlmm.json")))
            ctx.exit(exit_code(error))


@click.group(
    cls=LazyGroup,
    rows=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="rlmm")
def main() -> None:
    """Keep and question Kafka's remote log metadata (KIP-405).

    Exit codes: 0 clean, 1 found trouble, 2 usage, 3 daemon unreachable, 78 bad configuration.
    """
