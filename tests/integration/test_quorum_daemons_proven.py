"""Daemons of a quorum that prove to each other who they are: by certificate, password, token."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlmm_daemon.cli import main
from tests.integration.test_quorum_daemons import holds, until, write
from tests.support.quorum_daemons import QuorumDaemons
from tests.support.quorum_processes import CLUSTER
from tests.unit.adapters.quorum.authentication.test_tokens import AUDIENCE, ISSUER, Provider
from tests.unit.adapters.quorum.certificates import Authority

#: By a replica's id, keys of [event_log.quorum.security] beside its certificate.
Keys = Callable[[int], dict[str, str]]
SECRET = "s3cret"


def by_certificate(_: Path) -> Keys:
    return lambda _: {}


def by_password(home: Path) -> Keys:
    users = home / "users"
    lines = []
    for member in ("1", "2", "3"):
        word = f"{SECRET}-{member}\n"
        (home / f"{member}.password").write_text(word)
        said = CliRunner().invoke(main, ["quorum", "user", member], input=word * 2)
        lines.append(said.stdout.splitlines()[-1])
    users.write_text("\n".join(lines) + "\n")
    return lambda node: {
        "users_file": str(users),
        "password_file": str(home / f"{node}.password"),
    }


def by_token(home: Path) -> Keys:
    provider = Provider()
    keys = home / "jwks.json"
    keys.write_text(provider.jwks())
    for member in ("1", "2", "3"):
        (home / f"{member}.token").write_text(f"{provider.token(member)}\n")
    return lambda node: {
        "token_keys_file": str(keys),
        "token_issuer": ISSUER,
        "token_audience": AUDIENCE,
        "token_file": str(home / f"{node}.token"),
    }


def secured(daemons: QuorumDaemons, authority: Authority, keys: Keys) -> None:
    """Give each daemon what proves who it is."""
    for number, daemon in daemons.daemons.items():
        certificate, key = authority.sign(str(number), cluster=CLUSTER)
        files: dict[str, Any] = {
            "ca_file": authority.ca,
            "certificate_file": certificate,
            "key_file": key,
        } | keys(number)
        lines = [f'{name} = "{value}"' for name, value in files.items()]
        config = daemon.directory / "rlmm.toml"
        section = "\n".join(["[event_log.quorum.security]", *lines, ""])
        config.write_text(f"{config.read_text()}{section}")


@pytest.mark.parametrize("way", [by_certificate, by_password, by_token])
def test_daemons_elect_write_and_go_on_without_their_leader(
    tmp_path: Path, way: Callable[[Path], Keys]
) -> None:
    with QuorumDaemons(tmp_path, 1, 2, 3) as daemons:
        secured(daemons, Authority(tmp_path / "keys"), way(tmp_path))
        for each in (1, 2, 3):
            daemons[each].start()
        for number in range(3):
            write(daemons[number + 1], number)  # two of them through another one's leader
        for each in (1, 2, 3):
            until(partial(holds, daemons[each], {0, 1, 2}), "each has all")
        config = str(daemons[1].directory / "rlmm.toml")
        asked = daemons[1].rlmm("doctor", "--config", config).stdout
        assert "2 decide, 1 may be lost" in asked, "its own proof is believed there, too"
        plain = daemons.quorum.rlmm("describe", "--timeout", "1", *daemons.quorum.asked)
        assert plain.returncode == 3, "nobody is let in without"
        leader = daemons.leader()
        assert leader is not None
        daemons[leader].kill()
        left = [each for each in (1, 2, 3) if each != leader]
        write(daemons[left[0]], 3)
        until(partial(holds, daemons[left[1]], {0, 1, 2, 3}), "they go on")
        daemons[leader].start()
        until(partial(holds, daemons[leader], {0, 1, 2, 3}), "and take it back")
        for daemon in daemons.daemons.values():
            assert SECRET not in daemon.output.read_text()


@pytest.mark.parametrize("way", [by_password, by_token])
def test_a_daemon_that_is_not_believed_is_not_let_in(
    tmp_path: Path, way: Callable[[Path], Keys]
) -> None:
    """It shows another one's proof, and is known by its name all the same."""
    with QuorumDaemons(tmp_path, 1, 2, 3) as daemons:
        keys = way(tmp_path)
        stolen = {"password_file": keys(2).get("password_file")} | {
            "token_file": keys(2).get("token_file")
        }
        secured(
            daemons,
            Authority(tmp_path / "keys"),
            lambda node: (
                keys(node)
                | ({name: file for name, file in stolen.items() if file} if node == 3 else {})
            ),
        )
        for each in (1, 2, 3):
            daemons[each].start()
        write(daemons[1], 1)
        until(partial(holds, daemons[2], {1}), "two are a majority")
        until(lambda: set(daemons.standing(1)["heard"]) <= {1, 2}, "the third is not heard")
        assert not holds(daemons[3], {1})
