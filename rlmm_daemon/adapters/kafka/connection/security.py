"""TLS and SASL settings from the configuration; secrets are read here and shown nowhere."""

import os
import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

from rlmm_daemon.config import KafkaSecurity, Secret, read_secret
from rlmm_daemon.domain.errors import ConfigError

_HERE = "event_log.kafka.security"


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection is opened with; connections that are open keep what they had."""

    protocol: str
    tls: ssl.SSLContext | None
    mechanism: str | None
    username: str | None
    password: Secret | None

    def arguments(self) -> dict[str, Any]:
        """Return them as aiokafka's `create_conn` names them."""
        return {
            "security_protocol": self.protocol,
            "ssl_context": self.tls,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password.reveal() if self.password else None,
        }


def load_security(
    settings: KafkaSecurity, environ: Mapping[str, str] = os.environ, *, here: str = _HERE
) -> Security:
    """Return the settings with every file and variable read now; a reload calls it again.

    `here`: their place in the configuration.

    Raises:
        ConfigError: a file or variable is absent, unreadable, or holds no such thing.
    """
    return Security(
        protocol=settings.protocol,
        tls=_tls(settings, environ, here) if "SSL" in settings.protocol else None,
        mechanism=settings.mechanism,
        username=settings.username,
        password=read_secret(
            f"{here}.password",
            file=settings.password_file,
            env=settings.password_env,
            environ=environ,
        ),
    )


def _tls(settings: KafkaSecurity, environ: Mapping[str, str], here: str) -> ssl.SSLContext:
    phrase = read_secret(
        f"{here}.key_password",
        file=settings.key_password_file,
        env=settings.key_password_env,
        environ=environ,
    )
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{here}.ca_file = {settings.ca_file!r}: {_why(error)}") from None
    context.check_hostname = settings.verify_host_name
    if settings.certificate_file is not None:
        try:
            context.load_cert_chain(
                settings.certificate_file,
                settings.key_file,
                # Without one, OpenSSL would ask the terminal for an encrypted key's passphrase.
                password=phrase.reveal() if phrase else "",
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{here}.certificate_file = {settings.certificate_file!r}, "
                f"key_file = {settings.key_file!r}: {_why(error)}"
            ) from None
    return context


def _why(error: OSError) -> str:
    """Say what is wrong with a file; OpenSSL's own words, "PEM lib", help nobody."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the certificate is of another key"
    return "not readable as PEM, or the key's passphrase is wrong or missing"
