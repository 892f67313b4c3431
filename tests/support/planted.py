"""Secrets as people leave them in configurations, logs and environments; none is one."""

import base64
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Planted:
    """One secret, and the text that it stands in."""

    kind: str
    secret: str
    text: str


def _of(kind: str, text: str) -> Planted:
    """Return a secret made for this kind, where the text has `@`; `{at}` is one that stays."""
    secret = "Zq" + base64.b32encode(kind.encode()).decode().rstrip("=")[:24].lower() + "7x"
    return Planted(kind, secret, text.replace("@", secret).replace("{at}", "@"))


def _like(kind: str, secret: str, text: str) -> Planted:
    return Planted(kind, secret, text.replace("@", secret))


_BODY: Final = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7planted"
PLANTED: Final = (
    _of("toml password", 'password = "@"'),
    _of("json password", '{"user": "u", "password": "@", "n": 1}'),
    _of("json in json", '{"line": "{\\"password\\": \\"@\\"}"}'),
    _of("yaml password", "  db_password: @"),
    _of("xml password", "<server><password>@</password></server>"),
    _of("xml attribute", '<user name="u" password="@"/>'),
    _of("properties keystore", "ssl.keystore.password=@"),
    _of("properties key", "listener.name.x.ssl.key.password = @"),
    _of("properties truststore", "ssl.truststore.password:@"),
    _of(
        "sasl.jaas.config",
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="rlmm" password="@";',
    ),
    _of(
        "jaas over lines",
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        '  username="rlmm" \\\n  password="@";',
    ),
    _of("jaas file", 'KafkaServer { PlainLoginModule required username="a" user_a="@"; };'),
    _of("url password", "GET https://rlmm:@{at}broker.example.org/x failed"),
    _of("environment aws", "AWS_SECRET_ACCESS_KEY=@"),
    _of("environment token", "Environment=RLMM_TOKEN=@ LANG=C"),
    _of("environment quoted", 'export KAFKA_PASSWORD="@"'),
    _of("session token", "aws_session_token = @"),
    _of("credentials file", "[default]\naws_secret_access_key=@"),
    _of("java property", "-Djavax.net.ssl.keyStorePassword=@ -Xmx1g"),
    _of("command line", "rlmm-tool --password @ --verbose"),
    _of("command line equals", "tool --api-key=@ --verbose"),
    _of("command line secret", "curl --client-secret '@' -v"),
    _of("netrc", "machine example.org login rlmm password @"),
    _of("sentence", "the password is @"),
    _of("basic header", "Authorization: Basic @"),
    _of("bearer header", "authorization: Bearer @"),
    _of("bearer in a sentence", "sent Bearer @ to the identity provider"),
    _of("sigv4 header", "Authorization: AWS4-HMAC-SHA256 Credential=x/y, Signature=@"),
    _of("security token header", "X-Amz-Security-Token: @"),
    _of("cookie", "Cookie: session=@"),
    _of("set-cookie", "Set-Cookie: id=@; Path=/"),
    _of("signed url", "https://b.s3.amazonaws.com/k?X-Amz-Signature=@&x-id=GetObject"),
    _of("signed url credential", "https://h/k?a=1&X-Amz-Credential=@&b=2"),
    _of("azure sas", "https://a.blob.core.windows.net/c?sv=2020&sig=@&se=1"),
    _of("azure account key", "DefaultEndpointsProtocol=https;AccountName=n;AccountKey=@;E=x"),
    _of("client secret", 'client_secret: "@"'),
    _of("api key", "apiKey=@"),
    _of("docker auth", '{"auths": {"r": {"auth": "@"}}}'),
    _of("secret list", 'passwords = ["@", "b"]'),
    _of("python repr", "Security(user='u', password='@')"),
    _of("scram line", "rlmm: salt=QUJD, iterations=4096, stored_key=@, server_key=QUJD"),
    _of("ruby hash", ":secret_key => '@'"),
    _like("aws key id", "AKIAIOSFODNN7PLANTED", "signed by @ today"),
    _like("aws temporary id", "ASIAIOSFODNN7PLANTED", "signed by @ today"),
    _like("jwt", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJl", "got @ back"),
    _like("github token", "ghp_plantedplantedplantedplanted1234", "cloned with @"),
    _like("gitlab token", "glpat-planted-planted-12", "cloned with @"),
    _like("slack token", "xoxb-planted-123456-abcdef", "posted by @"),
    _like("google key", "AIzaplantedplantedplantedplanted12345", "asked maps with @"),
    _like("vault token", "hvs.plantedplantedplanted", "unsealed with @"),
    _like("age key", "AGE-SECRET-KEY-1PLANTEDPLANTED", "sealed by @"),
    _like("shadow hash", "$6$planted$c2hhZG93aGFzaA", "rlmm:@:19000:0:99999:7:::"),
    _like(
        "private key",
        _BODY,
        "-----BEGIN PRIVATE KEY-----\n@\nq83vEjRWeJCrze8SNFZ4\n-----END PRIVATE KEY-----",
    ),
    _like(
        "encrypted private key",
        _BODY.lower(),
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\n@\n-----END ENCRYPTED PRIVATE KEY-----",
    ),
    _like(
        "openssh key",
        "b3BlbnNzaC1rZXktdjEAAAAAplanted",
        "-----BEGIN OPENSSH PRIVATE KEY-----\n@\n-----END OPENSSH PRIVATE KEY-----",
    ),
    _like(
        "service account",
        "MIIplantedplantedplanted",
        '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\n@\\n'
        '-----END PRIVATE KEY-----\\n"}',
    ),
)


def planted() -> str:
    """Return all of them, a few lines apart."""
    return "\n\n".join(each.text for each in PLANTED)
