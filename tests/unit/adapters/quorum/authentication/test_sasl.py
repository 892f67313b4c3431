"""A quorum whose members prove who they are by passwords, and what is told to whoever guesses."""

import asyncio
import contextlib
from pathlib import Path

import pytest
import structlog

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.quorum.authentication import scram
from rlmm_daemon.adapters.quorum.authentication.passwords import Password, Users, read_users
from rlmm_daemon.adapters.quorum.authentication.principals import Principal
from rlmm_daemon.adapters.quorum.authentication.sasl import SaslAcceptor, SaslDialer
from rlmm_daemon.adapters.quorum.authentication.tls import MutualTls, TlsOptions
from rlmm_daemon.adapters.quorum.handshake import Plain, dialed
from rlmm_daemon.adapters.quorum.links import CLIENT, Link, Links, Unreachable
from rlmm_daemon.adapters.quorum.listener import Listener, spoken_here
from rlmm_daemon.codec.kraft import apis, headers
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.secret import Secret
from tests.unit.adapters.quorum.authentication.members import Members
from tests.unit.adapters.quorum.three import CLUSTER, GROUP, SECONDS, quorum

MEMBERS = ("1", "2", "3", "9", "operator/alice", "operator/bob")
VERIFIERS = {each: scram.encode(scram.verifier(f"s3cret-{each}")) for each in MEMBERS}


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    return Members(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users"
    lines = ["# members", "", *(f"{each} {kept}" for each, kept in VERIFIERS.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def now_ms() -> int:
    return SystemClock().now_ms()


def acceptor(users: Path, under=None) -> SaslAcceptor:
    return SaslAcceptor(under or Plain(), (Users(str(users)),), now_ms, frozenset({"alice"}))


def dialer(member: str, password: str | None = None, under=None) -> SaslDialer:
    name, _, operator = member.partition("/")
    principal = Principal(operator=operator) if operator else Principal(node=int(name))
    mine = Password(principal, Secret(password or f"s3cret-{member}"))
    return SaslDialer(under or Plain(), mine)


@contextlib.asynccontextmanager
async def serving(step, seen: list[Peer] | None = None):
    async def handle(_head, peer):
        if seen is not None:
            seen.append(peer)
        return spoken_here()

    listener = Listener(step)
    at = Endpoint("QUORUM", "127.0.0.1", listener.bind("127.0.0.1", 0))
    await listener.serve(handle)
    try:
        async with asyncio.timeout(SECONDS):
            yield at
    finally:
        await listener.close()


async def taken_as(step, client) -> Peer:
    seen: list[Peer] = []
    links = Links(GROUP, client, timeout_seconds=SECONDS)
    try:
        async with serving(step, seen) as at:
            await links.versions((at,), 1)
    finally:
        links.close()
    return seen[-1]


@pytest.mark.parametrize(
    ("member", "peer"),
    [
        ("2", Peer(id=2, may_change_voters=False)),
        ("operator/alice", Peer(may_vote=False, may_change_voters=True)),
        ("operator/bob", Peer(may_vote=False, may_change_voters=False)),
    ],
)
async def test_a_password_proves_what_a_certificate_does(users, member, peer):
    """The same names, and the same rights."""
    assert await taken_as(acceptor(users), dialer(member)) == peer


async def test_a_wrong_password_and_an_absent_user_look_alike(users):
    """Neither has a connection, and nobody is told which it was; no secret is in the log."""
    with structlog.testing.capture_logs() as logs:
        for client in (dialer("2", "gu3ss"), dialer("77", "gu3ss")):
            with pytest.raises(Unreachable, match="a wrong user or password") as refused:
                await taken_as(acceptor(users), client)
            assert refused.value.unproven
            assert "gu3ss" not in repr(refused.value.__cause__)
    assert "s3cret" not in f"{logs}"
    assert "gu3ss" not in f"{logs}"
    assert len(logs) == 2


async def test_nothing_is_asked_before_the_proof(users):
    """Versions may be, as Kafka's clients do; all else ends the connection."""
    async with serving(acceptor(users)) as at:
        stream = await dialed(at)
        link = Link(stream)
        await link.greet()
        body = apis.DESCRIBE_QUORUM.pack_request(2, {})
        stream.writer.write(headers.pack_request(apis.DESCRIBE_QUORUM, 2, 1, body, client=CLIENT))
        assert await stream.reader.read() == b""
        stream.abort()


async def test_another_mechanism_is_refused_with_the_one_that_is_spoken(users):
    """Over and over it is none either."""
    async with serving(acceptor(users)) as at:
        stream = await dialed(at)
        link = Link(stream)
        api = apis.SASL_HANDSHAKE
        for _ in range(8):
            told = api.read_answer(1, await link.exchange(api, 1, {"Mechanism": "PLAIN"}))
            assert told == {"ErrorCode": 33, "Mechanisms": ("SCRAM-SHA-256",)}
        assert await stream.reader.read() == b""
        stream.abort()


async def test_a_server_that_knows_no_password_is_not_believed(tmp_path):
    """It may say yes to everybody: the client has to be convinced, too."""
    other = tmp_path / "other"
    other.write_text(f"2 {scram.encode(scram.verifier('of a stranger'))}\n")
    with pytest.raises(Unreachable):
        await taken_as(acceptor(other), dialer("2"))
    with pytest.raises(Unreachable):
        await taken_as(Plain(), dialer("2"))


async def test_a_server_that_says_yes_to_everybody_is_not_believed(users, monkeypatch):
    """Its last word has to show that it knows the password."""
    monkeypatch.setattr(scram.Server, "verdict", lambda _self, _final: b"v=" + b"A" * 43 + b"=")
    with pytest.raises(Unreachable, match="a server that does not know the password"):
        await taken_as(acceptor(users), dialer("2", "gu3ss"))


def tls(keys: Members, files, **more) -> MutualTls:
    certificate, key = files or (None, None)
    return MutualTls(
        TlsOptions(
            cluster_id=CLUSTER,
            ca_file=str(keys.ours.ca),
            certificate_file=certificate and str(certificate),
            key_file=key and str(key),
            **more,
        )
    )


async def test_a_quorum_with_passwords_over_tls_elects_and_commits(tmp_path, users, keys):
    """Servers show certificates, clients say passwords."""

    def side(node_id: int):
        under = tls(keys, keys.nodes[node_id], asks_clients=False)
        return acceptor(users, under), dialer(f"{node_id}", under=under)

    async with quorum(tmp_path, side) as three:
        assert await three.submit() > 0
        assert three.alarms("stranger") == 0


async def test_whoever_has_no_certificate_only_dials(users, keys):
    """With a password, and the authority's certificate to know the server by."""
    client = tls(keys, None)
    with pytest.raises(ConfigError, match="needs a certificate"):
        Listener(client).bind("127.0.0.1", 0)
    server = tls(keys, keys.nodes[1], asks_clients=False)
    said = await taken_as(acceptor(users, server), dialer("operator/alice", under=client))
    assert said == Peer(may_vote=False, may_change_voters=True)
    assert await taken_as(server, client) == Peer(may_vote=False, may_change_voters=False)
    with pytest.raises(Unreachable):
        await taken_as(tls(keys, keys.nodes[1]), client)
    with pytest.raises(Unreachable, match="replica 2 answers there, not 1"):
        await taken_as(tls(keys, keys.nodes[2], asks_clients=False), client)


async def test_a_certificate_and_a_password_name_the_same_replica(users, keys):
    """Neither lends the other its name."""
    server = acceptor(users, tls(keys, keys.nodes[1]))
    second = tls(keys, keys.nodes[2])
    assert (await taken_as(server, dialer("2", under=second))).id == 2
    for member in ("3", "operator/alice"):
        with pytest.raises(Unreachable):
            await taken_as(server, dialer(member, under=second))


async def test_users_count_without_a_restart(users):
    """A new password, and none for one who is gone; a broken file leaves the old in force."""
    times = iter(range(0, 1_000, 2))
    step = SaslAcceptor(Plain(), (Users(str(users), now=lambda: next(times)),), now_ms)
    assert (await taken_as(step, dialer("2"))).id == 2
    users.write_text(f"2 {scram.encode(scram.verifier('new'))}\n")
    assert (await taken_as(step, dialer("2", "new"))).id == 2
    for gone in ("2", "3"):
        with pytest.raises(Unreachable):
            await taken_as(step, dialer(gone))
    users.write_text("2 s3cret\n")
    with structlog.testing.capture_logs() as logs:
        assert (await taken_as(step, dialer("2", "new"))).id == 2
    assert [each["log_level"] for each in logs] == ["warning"]
    assert "s3cret" not in f"{logs}"


@pytest.mark.parametrize("line", ["2", "2 s3cret", "x SCRAM", f"2 {VERIFIERS['2']}\n2 s3cret", "é"])
def test_a_file_with_another_line_is_refused_and_not_shown(tmp_path, line):
    """It says which line it is, and nothing of what is in it."""
    path = tmp_path / "users"
    path.write_text(line)
    with pytest.raises(ConfigError) as refused:
        read_users(str(path))
    assert "s3cret" not in refused.value.message


def test_passwords_without_tls_are_for_loopback(users):
    """SCRAM shows no password, and yet what follows could be changed on its way."""
    with pytest.raises(ConfigError, match="loopback"):
        Listener(acceptor(users)).bind("0.0.0.0", 0)
