"""The options that every command shares: where the daemon is, how to answer, how long to wait."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import click
import msgspec

from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import uuid_bytes

CONFIG_DEFAULT: Final = "/etc/rlmm/rlmm.toml"
SOCKET_DEFAULT: Final = "/run/rlmm/rlmm.sock"
#: `sun_path` holds 108 bytes, the last of them a zero.
SOCKET_PATH_BYTES_MAX: Final = 107
TIMEOUT_SECONDS_DEFAULT: Final = 30.0


class _KafkaUuid(click.ParamType[str]):
    """A topic's or a segment's id in Kafka's text form; wrong usage if it is none."""

    name = "uuid"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it was typed."""
        try:
            uuid_bytes(value)
        except InvalidArgument as error:
            self.fail(error.message, param, ctx)
        return value


KAFKA_UUID: Final = _KafkaUuid()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask and how to answer."""

    socket: str
    json: bool
    timeout_seconds: float


def find_socket(option: str | None, environ: Mapping[str, str]) -> str:
    """Return the socket's path: the option, else RLMM_SOCKET, else the packaged default.

    Raises:
        click.UsageError: the kernel could not take the path.
    """
    path = option or environ.get("RLMM_SOCKET") or SOCKET_DEFAULT
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES_MAX:
        raise click.UsageError(
            f"the socket's path is {length} bytes long and the kernel takes at most "
            f"{SOCKET_PATH_BYTES_MAX}: {path}"
        )
    return path


def json_flag(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, which also turns errors into JSON; passed on as `as_json`.

    For commands whose `--output` names a file; all others take `json_option`.
    """
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=_remember_json,
        is_eager=True,
        help="JSON for machines, errors included.",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` and `--output`, passed on together as `as_json`: YAML is the same values."""

    @json_flag
    @click.option(
        "--output",
        type=click.Choice(["table", "json", "yaml"]),
        callback=_remember_form,
        is_eager=True,
        help="Of the answer, errors included; json is --json.",
    )
    @functools.wraps(command)
    def formed(*args: Any, as_json: bool, output: str | None, **kwargs: Any) -> Any:
        if as_json and output not in (None, "json"):
            raise click.UsageError(f"--json and --output {output} exclude each other")
        return command(*args, as_json=as_json or output in ("json", "yaml"), **kwargs)

    return formed


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config`, the daemon's own file unless another is named; passed on as `file`."""
    return click.option(
        "--config",
        "file",
        envvar="RLMM_CONFIG",
        default=CONFIG_DEFAULT,
        show_default=True,
        metavar="FILE",
        help="The daemon's TOML file; else RLMM_CONFIG.",
    )(command)


def daemon_options(
    command: Callable[..., Any],
    form: Callable[[Callable[..., Any]], Callable[..., Any]] = json_option,
) -> Callable[..., Any]:
    """Add `--socket`, `--output` and `--timeout`, passed on together as `target: Target`.

    `form` is `json_flag` for a command whose `--output` names a file.
    """

    @form
    @click.option("--socket", metavar="PATH", help=f"RLMM_SOCKET, else {SOCKET_DEFAULT}.")
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=TIMEOUT_SECONDS_DEFAULT,
        show_default=True,
        metavar="SECONDS",
        help="Give up after so long.",
    )
    @functools.wraps(command)
    def with_target(
        *args: Any, socket: str | None, as_json: bool, timeout: float, **kwargs: Any
    ) -> Any:
        target = Target(
            socket=find_socket(socket, os.environ), json=as_json, timeout_seconds=timeout
        )
        return command(*args, target=target, **kwargs)

    return with_target


def _remember_json(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's signature
    ctx.meta["rlmm.json"] = ctx.meta.get("rlmm.json", False) or value
    return value


def _remember_form(
    ctx: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    if value is not None:
        ctx.meta["rlmm.json"] = value != "table"
        ctx.meta["rlmm.yaml"] = value == "yaml"
    return value
