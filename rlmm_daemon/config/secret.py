"""Secrets come from a file or the environment, never from the configuration text itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.secret import Secret

SECRET_BYTES_MAX: Final = 64 * 1024


def read_secret(
    path: str, *, file: str | None, env: str | None, environ: Mapping[str, str]
) -> Secret | None:
    """Return the secret that `<path>_file` or `<path>_env` points at, None if neither is set.

    One line break at the end of a file is not part of the secret.

    Raises:
        ConfigError: both are set, or what is named is absent, empty, unreadable or too large.
    """
    if file is not None and env is not None:
        raise ConfigError(f"{path}_file and {path}_env are both set; keep one of them")
    if file is not None:
        return Secret(_from_file(f"{path}_file", file))
    if env is None:
        return None
    if not environ.get(env):
        raise ConfigError(f"{path}_env names {env}, which is not in the environment or is empty")
    return Secret(environ[env])


def _from_file(path: str, file: str) -> str:
    try:
        with Path(file).open(encoding="utf-8") as stream:
            text = stream.read(SECRET_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path} = {file!r} can't be read: {reason}") from None
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret or len(text) > SECRET_BYTES_MAX:
        raise ConfigError(f"{path} = {file!r} is empty or larger than {SECRET_BYTES_MAX} bytes")
    return secret
