"""`rlmm config`: make a configuration out of what there is."""

from pathlib import Path

import click

from rlmm_daemon.config import from_properties
from rlmm_daemon.domain.errors import ConfigError


@click.group("config")
def command() -> None:
    """Make a configuration."""


@command.command("from-properties", short_help="Print the TOML for a broker's server.properties.")
@click.argument("file")
def from_properties_command(file: str) -> None:
    """Print the TOML that corresponds to a broker's server.properties, FILE.

    Every rlmm.config.remote.log.metadata.* key is taken over, or a comment says why not. Secrets
    are not: a comment says which file to put them into.
    """
    try:
        text = Path(file).read_text(encoding="latin-1")  # as Java reads it
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    click.echo(from_properties.to_toml(from_properties.read(text)), nl=False)
