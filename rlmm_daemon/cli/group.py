"""The table of commands, loaded one by one, and the exit code of every error."""

import enum
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import click

from rlmm_daemon import __version__
from rlmm_daemon.domain.errors import ConfigError, DaemonUnreachable, RlmmError, Unauthorized


class Exit(enum.IntEnum):
    """What a script may rely on."""

    CLEAN = 0
    TROUBLE = 1
    USAGE = 2
    UNREACHABLE = 3
    CONFIG = 78


@dataclass(frozen=True, slots=True)
class CommandRow:
    """One command: the module whose `command` it is, and its line in `rlmm --help`."""

    module: str
    help: str
    #: The command's name in its module; several small ones may share one.
    attribute: str = "command"


_CLI: Final = "rlmm_daemon.cli"
#: Head -> rows, in the order of `rlmm --help`. A new command is one row here and one module.
SECTIONS: Final[Mapping[str, Mapping[str, CommandRow]]] = MappingProxyType(
    {
        "Look": {
            "status": CommandRow(f"{_CLI}.look.status", "Show the daemon on one screen."),
            "top": CommandRow(f"{_CLI}.look.top", "Show the daemon's work as it goes."),
            "explain": CommandRow(
                f"{_CLI}.look.explain", "Say why a partition answers as it does; what next."
            ),
            "segments": CommandRow(f"{_CLI}.look.segments", "List the segments of a partition."),
            "lookup": CommandRow(f"{_CLI}.look.lookup", "Find the segment that holds an offset."),
            "partitions": CommandRow(
                f"{_CLI}.look.partitions", "List the metadata partitions and their state."
            ),
            "tail": CommandRow(f"{_CLI}.look.tail", "Show the last events, or follow them."),
            "cleanup": CommandRow(
                f"{_CLI}.look.cleanup", "Show what is being removed, and what is stuck."
            ),
            "forecast": CommandRow(
                f"{_CLI}.look.forecast", "Say what topics hold and cost, next month, too."
            ),
            "export": CommandRow(
                f"{_CLI}.look.export", "Print every segment as JSON, a line each."
            ),
        },
        "Move": {
            "fetch": CommandRow(
                f"{_CLI}.move.fetch", "Fetch a segment, a range of it, or an index."
            ),
            "copy": CommandRow(f"{_CLI}.move.copy", "Copy a segment to the remote storage."),
            "delete": CommandRow(f"{_CLI}.move.delete", "Delete a segment for good."),
            "purge": CommandRow(f"{_CLI}.move.purge", "Have a topic's remote data removed."),
            "pause": CommandRow(f"{_CLI}.move.pause", "Let no copy of a topic begin.", "pause"),
            "resume": CommandRow(
                f"{_CLI}.move.pause", "Let a topic's copies begin again.", "resume"
            ),
        },
        "Mend": {
            "storage": CommandRow(f"{_CLI}.mend.storage", "Check what the remote storage allows."),
            "partition": CommandRow(
                f"{_CLI}.mend.partition", "Retry, rebuild, or accept what is missing."
            ),
            "log": CommandRow(f"{_CLI}.mend.log", "Check, seal and repair the event log."),
            "snapshot": CommandRow(f"{_CLI}.mend.snapshot", "Write, check and show snapshots."),
            "reconcile": CommandRow(
                f"{_CLI}.mend.reconcile", "Hold the storage against the log, on Spark."
            ),
        },
        "Run": {
            "run": CommandRow(f"{_CLI}.run", "Run the daemon in the foreground."),
            "check-config": CommandRow(
                f"{_CLI}.check_config", "Check a configuration and print what is in force."
            ),
            "setup": CommandRow(
                f"{_CLI}.setup", "Set a daemon up beside a broker, from its files."
            ),
            "config": CommandRow(f"{_CLI}.config", "Make a configuration from server.properties."),
            "doctor": CommandRow(
                f"{_CLI}.doctor", "Check what is around the daemon; say what to do."
            ),
            "support-bundle": CommandRow(
                f"{_CLI}.support_bundle", "Gather what a maintainer asks for, without secrets."
            ),
            "quorum": CommandRow(
                f"{_CLI}.quorum.quorum", "Format, run, show and change a quorum of daemons."
            ),
            "drain": CommandRow(f"{_CLI}.drain", "Let the daemon finish what it does and end."),
        },
        "Decode": {
            "decode": CommandRow(
                f"{_CLI}.codec", "Decode metadata records to JSON, a line each.", "decode"
            ),
            "encode": CommandRow(f"{_CLI}.codec", "Encode JSON to metadata records.", "encode"),
            "partition-of": CommandRow(
                f"{_CLI}.codec", "Print the metadata partition of a user partition.", "partition_of"
            ),
        },
    }
)
COMMANDS: Final[Mapping[str, CommandRow]] = MappingProxyType(
    {name: row for rows in SECTIONS.values() for name, row in rows.items()}
)
_FIRST_STEPS: Final = """\
First steps:
  rlmm setup                               what does a daemon beside this broker need?
  rlmm check-config /etc/rlmm/rlmm.toml    is the configuration right?
  rlmm status                              is the daemon up, and does the broker talk to it?
  rlmm explain orders-0                    why does partition 0 of orders answer as it does?
  rlmm lookup orders-0 5 1234              where is offset 1234 of leader epoch 5?

Partitions are named TOPIC-PARTITION, TOPIC_ID-PARTITION or TOPIC_ID:TOPIC-PARTITION. The socket is
--socket, else RLMM_SOCKET, else /run/rlmm/rlmm.sock. --output json and yaml answer for machines.
Exit codes: 0 clean, 1 found trouble, 2 usage, 3 daemon unreachable, 78 bad configuration.
"""


def exit_code(error: RlmmError) -> Exit:
    """Return the exit code that an error of ours ends a command with."""
    if isinstance(error, DaemonUnreachable):
        return Exit.UNREACHABLE
    return Exit.CONFIG if isinstance(error, ConfigError) else Exit.TROUBLE


def first_denied(error: Exception) -> PermissionError | None:
    """Return the refused file that an error is about; None if it is about anything else too."""
    while isinstance(error, ExceptionGroup) and error.split(PermissionError)[1] is None:
        error = error.exceptions[0]
    return error if isinstance(error, PermissionError) and error.filename is not None else None


def not_permitted(error: PermissionError) -> RlmmError:
    """Return what to tell somebody who may not touch a file, most often a daemon's."""
    return Unauthorized(
        f"{error.filename}: permission denied to uid {os.geteuid()}; run this as the user that "
        "the daemon runs as, or as root",
        path=os.fsdecode(error.filename),
    )


class LazyGroup(click.Group):
    """A group that imports a command only to run it or to show its own help."""

    def __init__(
        self,
        *args: Any,
        rows: Mapping[str, CommandRow],
        sections: Mapping[str, Mapping[str, CommandRow]] | None = None,
        **kwargs: Any,
    ) -> None:
        """`sections` are the rows under their heads, for the help."""
        super().__init__(*args, **kwargs)
        self.rows = rows
        self.sections = {"Commands": rows} if sections is None else sections

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for a mistyped one say which it may be, without importing any."""
        wanted = args[0]
        if wanted not in self.rows and not wanted.startswith("-") and not ctx.resilient_parsing:
            raise click.exceptions.NoSuchCommand(wanted, possibilities=self.rows, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, under their heads, from the table alone."""
        del ctx
        width = max(map(len, self.rows))
        for head, rows in self.sections.items():
            with formatter.section(head):
                formatter.write_dl([(f"{name:<{width}}", row.help) for name, row in rows.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first steps, as they stand."""
        del ctx
        formatter.write("\n" + _FIRST_STEPS)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours becomes one message and its exit code."""
        try:
            return super().invoke(ctx)
        except RlmmError as error:
            failure = error
        except (PermissionError, ExceptionGroup) as error:
            denied = first_denied(error)
            if denied is None:
                raise
            failure = not_permitted(denied)
        # Imported late, as every command module is.
        from rlmm_daemon.cli.output import show_error

        show_error(failure, as_json=bool(ctx.meta.get("rlmm.json")))
        raise click.exceptions.Exit(exit_code(failure))


@click.group(
    cls=LazyGroup,
    rows=COMMANDS,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="rlmm")
def main() -> None:
    """Keep and question Kafka's remote log metadata (KIP-405)."""
