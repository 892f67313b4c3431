"""Secrets out of whole texts: logs, configurations and command output that leave this machine.

A log line is redacted where it is written (`logging.redact`). Here nobody knows who wrote the
text, so more is taken for a secret than is one; names, numbers and paths stay.
"""

import re
from collections.abc import Iterable
from typing import Final

from rlmm_daemon.domain.secret import HIDDEN

#: A known secret that is shorter would hide half of every text.
KNOWN_CHARACTERS_MIN: Final = 6
_WORDS: Final = (
    "secret", "passw", "passphrase", "passcode", "pwd", "token", "credential", "access_key",
    "account_key", "private_key", "api_key", "shared_key", "master_key", "encryption_key",
    "signing_key", "stored_key", "server_key", "client_key", "salted", "authorization", "cookie",
    "signature", "auth", "sas", "sig", "session_id", "otp", "webhook",
)  # fmt: skip
#: Words that are parts of many others, so they have to stand alone.
_ALONE: Final = frozenset({"auth", "sas", "sig", "otp"})
_WORD: Final = "|".join(
    rf"(?<![a-z0-9]){word}(?![a-z0-9])" if word in _ALONE else word.replace("_", "[_.-]?")
    for word in _WORDS
)
#: A line without one of these holds none of what is looked for in lines.
_SIGNS: Final = (
    *sorted({word.partition("_")[0] for word in _WORDS}),
    "bearer", "basic", "negotiate", "digest", "loginmodule", "key=", "-key", "://", "$", "akia",
    "asia", "a3t", "agpa", "aida", "aroa", "abia", "acca", "eyj", "gh", "glpat", "npm_", "xox",
    "aiza", "ya29", "hvs.", "hvb.", "hvr.", "k_live", "k_test", "sk-", "sg.", "dop_v1", "pypi-",
    "scram",
)  # fmt: skip
#: Behind a name: it may be quoted itself, in JSON that stands in JSON too.
_IS: Final = r"\\{0,3}[\"']?\s{0,16}(?:=>|[=:])\s{0,16}"
_QUOTED: Final = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\\+\"(?:(?!\\+\").)*\\+\""
_REST: Final = r"[\w.\-]{0,64}"
#: `*_file` and `*_env` only say where a secret is.
_NO_PLACE: Final = r"(?<!_file)(?<!_env)"
_Rule = tuple[re.Pattern[str], str]


def _after(pattern: str) -> _Rule:
    """Return a rule that keeps the group `kept`, which says what was hidden."""
    return re.compile(pattern, re.IGNORECASE), rf"\g<kept>{HIDDEN}"


#: Over several lines, and taken first, so that no part of one is left over. A cut key goes to the
#: end.
_IN_TEXTS: Final[tuple[_Rule, ...]] = (
    (
        re.compile(r"-----BEGIN [A-Z0-9 ]+-----(?:.*?-----END [A-Z0-9 ]+-----|.*\Z)", re.DOTALL),
        HIDDEN,
    ),
    # The end of a key whose beginning was cut off.
    (
        re.compile(r"(?:^[A-Za-z0-9+/=]{1,200}\r?\n){0,200}-----END [A-Z0-9 ]+-----", re.MULTILINE),
        HIDDEN,
    ),
    _after(rf"(?P<kept>jaas{_REST}{_IS})(?:[^\n]*\\\n)*[^\n]*"),
    # TOML's strings of several lines; one that does not end hides the rest.
    _after(
        rf"(?P<kept>(?:{_WORD}){_REST}{_NO_PLACE}{_IS})"
        r"(?:\"\"\"(?s:.*?)(?:\"\"\"|\Z)|'''(?s:.*?)(?:'''|\Z))"
    ),
)
_IN_LINES: Final[tuple[_Rule, ...]] = (
    _after(r"(?P<kept>LoginModule\s{1,16}\w+)[^;]*;?"),
    # Headers: all that follows is the secret.
    _after(
        rf"(?P<kept>authorization{_IS}|cookie{_IS}"
        rf"|\bx-[\w-]{{0,64}}?(?:token|key|signature|secret|auth)[\w-]{{0,64}}{_IS})[^\\]*"
    ),
    _after(r"(?P<kept>\b(?:bearer|basic|negotiate|digest|apikey)\s{1,16})[\w+/=.~:-]{6,}"),
    # scheme://user:password@host, and what a signed address carries
    _after(r"(?P<kept>://)[^\s/@\"']{0,256}:[^\s@\"']{0,512}(?=@)"),
    _after(
        r"(?P<kept>[?&;][\w.\-]{0,64}?(?:signature|credential|token|key|secret|password|sig|code)"
        rf"{_REST}=)[^\s&;\"']+"
    ),
    _after(rf"(?P<kept><[^<>\s]{{0,64}}?(?:{_WORD})[^<>]{{0,200}}>)[^<]+"),
    _after(rf"(?P<kept>(?:{_WORD}){_REST}{_NO_PLACE}{_IS})[\[{{][^\]}}]*[\]}}]"),
    _after(rf"(?P<kept>(?:{_WORD}){_REST}{_NO_PLACE}{_IS})(?:{_QUOTED}|[^\s,;&\"'}})\]]+)"),
    _after(
        r"(?P<kept>(?:^|\s)--?[\w\-]{0,64}?(?:secret|passw|token|credential|key)[\w\-]{0,64}\s{1,16})"
        rf"(?:{_QUOTED}|[^\s-]\S*)"
    ),
    _after(
        r"(?P<kept>\b(?:password|passwd|passphrase|secret)\s{1,16}(?:is\s{1,16})?)"
        rf"(?:{_QUOTED}|\S+)"
    ),
    # What looks like a secret wherever it stands.
    (
        re.compile(
            r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|AGPA|AIDA|AROA|ABIA|ACCA)[A-Z0-9]{12,}\b"  # AWS
            r"|\beyJ[\w-]{5,}(?:\.[\w-]*){1,4}"  # a JWT
            r"|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{12,}|\bnpm_\w{16,}"
            r"|\bxox[a-z]-[\w-]{8,}|\bAIza[\w-]{20,}|\bya29\.[\w-]{10,}|\bhv[sbr]\.[\w-]{12,}"
            r"|\b[sr]k_(?:live|test)_\w{8,}|\bsk-[\w-]{16,}|\bAGE-SECRET-KEY-1\w+"
            r"|\bSG\.[\w-]{10,}\.[\w-]{10,}|\bdop_v1_\w{16,}|\bpypi-[\w-]{16,}"
            r"|\$(?:2[aby]?|5|6|y|argon2\w*|apr1|scrypt)\$[^\s:\"']+"  # hashes of passwords
            r"|\bSCRAM-SHA-\d+\$[^\s\"']+"
        ),
        HIDDEN,
    ),
)


def scrub(text: str, known: Iterable[str] = ()) -> str:
    """Return a text without what is, or looks like, a secret.

    `known` are secrets themselves: they are hidden wherever they stand.
    """
    for secret in sorted(set(known), key=len, reverse=True):
        if len(secret) >= KNOWN_CHARACTERS_MIN:
            text = text.replace(secret, HIDDEN)
    for pattern, shown in _IN_TEXTS:
        text = pattern.sub(shown, text)
    return "\n".join(map(_scrub_line, text.split("\n")))


def _scrub_line(line: str) -> str:
    lower = line.lower()
    if any(sign in lower for sign in _SIGNS):
        for pattern, shown in _IN_LINES:
            line = pattern.sub(shown, line)
    return line
