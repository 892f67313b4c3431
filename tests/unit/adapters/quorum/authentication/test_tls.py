"""A quorum over mutual TLS: members are who their certificates say, and nobody else is heard."""

import asyncio
import contextlib
import gc
import shutil
import ssl
from pathlib import Path

import pytest
import structlog

from rlmm_daemon.adapters.quorum.authentication.principals import Principal
from rlmm_daemon.adapters.quorum.authentication.tls import MutualTls
from rlmm_daemon.adapters.quorum.client import QuorumClient
from rlmm_daemon.adapters.quorum.handshake import Plain, Unproven, dialed
from rlmm_daemon.adapters.quorum.links import Links, Unreachable
from rlmm_daemon.adapters.quorum.listener import Listener, spoken_here
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.messages import (
    Answer,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    FetchRequest,
    Request,
    VoteRequest,
)
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import ConfigError, InvalidArgument
from rlmm_daemon.domain.secret import Secret
from tests.unit.adapters.quorum.authentication.members import Files, Members
from tests.unit.adapters.quorum.certificates import OTHER_CLUSTER, openssl
from tests.unit.adapters.quorum.three import CLUSTER, GROUP, SECONDS, Three, key, quorum


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """The quorum's authority, and its members' files."""
    return Members(tmp_path_factory.mktemp("keys"))


async def ask(three: Three, to: int, request: Request, dialer) -> Answer:
    """Return what a replica answers to whoever dials so."""
    links = Links(GROUP, dialer, timeout_seconds=5)
    try:
        return await links.ask(request, (three.endpoints[to],), to)
    finally:
        links.close()


def attacks(three: Three, leader: int, victim: int) -> list[tuple[int, Request]]:
    """Return the requests that take a real controller down, or forge its commits."""
    replica = three.replica(leader)
    epoch, end = replica.epoch, replica.log.last
    other = next(each for each in three.nodes if each not in (leader, victim))
    far = LogPoint(epoch, end.end + 1_000)
    return [
        (leader, VoteRequest(epoch=epoch + 1, candidate=key(victim), last=far, voter=key(leader))),
        (
            leader,
            VoteRequest(
                epoch=epoch + 1, candidate=key(victim), last=far, voter=key(leader), pre_vote=True
            ),
        ),
        (leader, FetchRequest(epoch=epoch, replica=key(victim), point=end)),
        (leader, FetchRequest(epoch=epoch + 1, replica=key(victim), point=end)),
        (
            other,
            BeginEpochRequest(
                epoch=epoch,
                leader=key(victim),
                voter=key(other),
                endpoints=(three.endpoints[victim],),
            ),
        ),
        (leader, BeginEpochRequest(epoch=epoch + 1, leader=key(victim), voter=key(leader))),
        (other, EndEpochRequest(epoch=epoch, leader=key(leader))),
    ]


async def test_a_quorum_over_mutual_tls_elects_and_commits(tmp_path, keys):
    """Everybody proves who they are, and hears everybody."""
    async with quorum(tmp_path, keys.side) as three:
        assert await three.submit() > 0
        await three.settled()
        assert three.alarms("stranger") == 0


async def test_members_without_the_right_certificate_change_nothing(tmp_path, keys):
    """An observer's and an operator's certificates do not speak as a voter: alarm, no change."""
    async with quorum(tmp_path, keys.side) as three:
        await three.submit()
        leader = await three.settled()
        victim = three.follower()
        before = three.facts()
        for files in (keys.nodes[9], keys.alice, keys.bob):
            for to, request in attacks(three, leader, victim):
                alarms = three.alarms("stranger")
                answer = await ask(three, to, request, keys.tls(files))
                assert answer.error == Code.CLUSTER_AUTHORIZATION_FAILED, request
                assert three.alarms("stranger") == alarms + 1
                assert three.facts() == before
        assert await three.submit() > 0


@pytest.mark.parametrize("stranger", ["no certificate", "another authority", "another cluster"])
async def test_strangers_are_not_even_heard(tmp_path, keys, stranger):
    """They have no connection, so that no request of theirs reaches the replica."""
    async with quorum(tmp_path, keys.side) as three:
        await three.submit()
        leader = await three.settled()
        before = three.facts()
        for to, request in attacks(three, leader, three.follower()):
            with pytest.raises(Unreachable):
                await ask(three, to, request, Stranger(keys, stranger))
        assert three.facts() == before
        assert await three.submit() > 0


class Stranger:
    """Dials as our own dialer never would."""

    def __init__(self, keys: Members, kind: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if kind == "another authority":
            context.load_cert_chain(*keys.theirs.sign("2"))
        if kind == "another cluster":
            context.load_cert_chain(*keys.ours.sign("2", cluster=OTHER_CLUSTER))
        self._context = context

    async def dial(self, endpoint, expected=None):  # noqa: ARG002 - it would believe anybody
        return await dialed(endpoint, self._context)


async def test_a_voter_speaks_as_itself_alone(tmp_path, keys):
    """With another voter's address or id it moves nothing: its own certificate says who it is."""
    async with quorum(tmp_path, keys.side) as three:
        await three.submit()
        leader = await three.settled()
        victim = three.follower()
        other = next(each for each in three.nodes if each not in (leader, victim))
        before = three.facts()
        for to, request in attacks(three, leader, victim)[:-1]:
            if to == other:
                continue
            answer = await ask(three, to, request, keys.side(other)[1])
            assert answer.error == Code.CLUSTER_AUTHORIZATION_FAILED
            assert three.facts() == before


@pytest.mark.parametrize("there", ["another node", "an operator", "another cluster"])
async def test_nobody_answers_in_the_place_of_a_replica(keys, there):
    """A vote that a stranger grants on a voter's address is not even asked for."""
    files = {
        "another node": keys.nodes[9],
        "an operator": keys.alice,
        "another cluster": keys.ours.sign("2", cluster=OTHER_CLUSTER),
    }[there]
    cluster = OTHER_CLUSTER if there == "another cluster" else CLUSTER
    async with serving(keys.tls(files, cluster_id=cluster)) as at:
        links = Links(GROUP, keys.side(1)[1], timeout_seconds=5)
        vote = VoteRequest(epoch=1, candidate=key(1), last=LogPoint(0, 0), voter=key(2))
        with pytest.raises(Unreachable) as unreachable:
            await links.ask(vote, (at,), 2)
        assert unreachable.value.unproven
        links.close()


async def test_a_connection_is_kept_for_the_replica_that_it_was_made_for(keys):
    """One made to whoever is there is not used where a certain replica is meant."""
    async with serving(keys.tls(keys.nodes[9])) as at:
        links = Links(GROUP, keys.side(1)[1], timeout_seconds=5)
        fetch = FetchRequest(epoch=1, replica=key(1), point=LogPoint(0, 0))
        await links.ask(fetch, (at,), None)
        await links.ask(fetch, (at,), 9)
        with pytest.raises(Unreachable):
            await links.ask(fetch, (at,), 2)
        links.close()


async def test_a_stranger_in_a_voters_place_is_told(tmp_path, keys):
    """The replica that would not speak with it raises an alarm; the others go on."""
    async with quorum(tmp_path, lambda each: keys.side(9 if each == 3 else each)) as three:
        async with asyncio.timeout(SECONDS):
            while not three.nodes[1].alarms.get("stranger") or three.leader is None:  # noqa: ASYNC110 - plain attributes
                await asyncio.sleep(0.01)
        assert three.leader in (1, 2)
        role = three.replica(3)
        assert role.committed == 0


@contextlib.asynccontextmanager
async def serving(acceptor):
    listener = Listener(acceptor)
    at = Endpoint("QUORUM", "127.0.0.1", listener.bind("127.0.0.1", 0))

    async def handle(head, _peer):
        if head.api.name == "ApiVersions":
            return spoken_here()
        return {"ErrorCode": Code.BROKER_NOT_AVAILABLE, "Responses": ()}

    await listener.serve(handle)
    try:
        yield at
    finally:
        await listener.close()


async def test_only_listed_operators_change_the_voters(tmp_path, keys):
    """Alice is listed; Bob, a voter and an observer are not."""
    async with quorum(tmp_path, keys.side) as three:
        await three.submit()
        leader = await three.settled()
        victim = three.follower()
        for files in (keys.bob, keys.nodes[9], keys.nodes[victim]):
            client = QuorumClient(GROUP, keys.tls(files), tuple(three.endpoints.values()))
            with pytest.raises(InvalidArgument, match="cluster_authorization_failed"):
                await client.remove_voter(key(victim))
            assert (await client.describe()).leader == leader
        client = QuorumClient(GROUP, keys.tls(keys.alice), tuple(three.endpoints.values()))
        await client.remove_voter(key(victim))
        described = await client.describe()
        assert key(victim) not in [each.key for each in described.voters]


async def test_an_operator_submits_nothing(tmp_path, keys):
    """Records come from replicas' own processes."""
    async with quorum(tmp_path, keys.side, count=1) as three:
        await three.settled()
        client = QuorumClient(GROUP, keys.tls(keys.alice), tuple(three.endpoints.values()))
        with pytest.raises(InvalidArgument):
            await client.submit([(None, b"forged")])


# Files.


async def taken_as(acceptor, dialer) -> Peer:
    """Return whom a listener takes a dialer for."""
    seen: list[Peer] = []
    listener = Listener(acceptor)
    at = Endpoint("QUORUM", "127.0.0.1", listener.bind("127.0.0.1", 0))

    async def handle(_head, peer):
        seen.append(peer)
        return spoken_here()

    await listener.serve(handle)
    links = Links(GROUP, dialer, timeout_seconds=5)
    try:
        await links.versions((at,), 1)
    finally:
        links.close()
        await listener.close()
    return seen[-1]


class Clock:
    """A second goes by whenever somebody looks."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        self.at += 2
        return self.at


def copied(files: Files, directory: Path) -> Files:
    directory.mkdir(exist_ok=True)
    certificate, private = directory / "member.crt", directory / "member.key"
    shutil.copyfile(files[0], certificate)
    shutil.copyfile(files[1], private)
    return certificate, private


async def test_a_new_certificate_counts_without_a_restart(tmp_path, keys):
    """Of the dialer and of the listener; whoever was connected stays so."""
    files = copied(keys.nodes[2], tmp_path)
    server = keys.tls(keys.nodes[1])
    dialer = MutualTls(keys.options(files), Clock())
    assert await taken_as(server, dialer) == Peer(id=2, may_change_voters=False)
    copied(keys.nodes[3], tmp_path)
    assert await taken_as(server, dialer) == Peer(id=3, may_change_voters=False)
    renewed = MutualTls(keys.options(files), Clock())
    copied(keys.nodes[1], tmp_path)
    assert await taken_as(renewed, keys.tls(keys.alice)) == Peer(may_vote=False, id=None)


async def test_a_new_authority_counts_without_a_restart(tmp_path, keys):
    """What it signed is taken from then on, and nothing of the old one."""
    files = copied(keys.nodes[1], tmp_path)
    ca = tmp_path / "ca.pem"
    shutil.copyfile(keys.ours.ca, ca)
    acceptor = MutualTls(keys.options(files, ca_file=str(ca)), Clock())
    old, new = keys.tls(keys.nodes[2]), keys.theirs.sign("2")
    both = tmp_path / "both.pem"
    both.write_bytes(keys.ours.ca.read_bytes() + keys.theirs.ca.read_bytes())
    newcomer = keys.tls(new, ca_file=str(both))
    assert (await taken_as(acceptor, old)).id == 2
    with pytest.raises(Unreachable):
        await taken_as(acceptor, newcomer)
    shutil.copyfile(both, ca)
    assert (await taken_as(acceptor, newcomer)).id == 2
    shutil.copyfile(keys.theirs.ca, ca)
    copied(keys.theirs.sign("1"), tmp_path)
    assert (await taken_as(acceptor, newcomer)).id == 2
    with pytest.raises(Unreachable):
        await taken_as(acceptor, old)


@pytest.mark.parametrize("broken", ["cut", "gone", "another key", "another cluster", "expired"])
async def test_new_files_that_do_not_hold_leave_the_old_in_force(tmp_path, keys, broken):
    """It warns once for each change, and takes what is mended."""
    certificate, private = copied(keys.nodes[1], tmp_path)
    acceptor = MutualTls(keys.options((certificate, private)), Clock())
    match broken:
        case "cut":
            certificate.write_bytes(certificate.read_bytes()[:100])
        case "gone":
            private.unlink()
        case "another key":
            shutil.copyfile(keys.nodes[2][1], private)
        case "another cluster":
            copied(keys.ours.sign("1", cluster=OTHER_CLUSTER), tmp_path)
        case _:
            copied(keys.expired, tmp_path)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert (await taken_as(acceptor, keys.tls(keys.nodes[2]))).id == 2
    warned = [each for each in logs if each["log_level"] == "warning"]
    assert len(warned) == 1
    assert str(certificate) in warned[0]["why"]
    renewed = copied(keys.ours.sign("1"), tmp_path)
    with structlog.testing.capture_logs() as logs:
        assert (await taken_as(acceptor, keys.tls(keys.nodes[2]))).id == 2
    assert [str(renewed[0]) in each["files"] for each in logs] == [True]


@pytest.mark.parametrize(
    ("sans", "says"),
    [
        ("", "holds 0 names"),
        ("DNS:localhost", "holds 0 names"),
        (f"URI:rlmm://{CLUSTER}/1,URI:rlmm://{CLUSTER}/2", "holds 2 names"),
        (f"URI:rlmm://{OTHER_CLUSTER}/1", "not of cluster"),
        (f"URI:RLMM://{CLUSTER}/1", "not of cluster"),
        (f"URI:rlmm://{CLUSTER}", "not of cluster"),
        (f"URI:rlmm://{CLUSTER}/", "neither a node's id nor"),
        (f"URI:rlmm://{CLUSTER}/01", "neither a node's id nor"),
        (f"URI:rlmm://{CLUSTER}/-1", "neither a node's id nor"),
        (f"URI:rlmm://{CLUSTER}/1/2", "neither a node's id nor"),
        (f"URI:rlmm://{CLUSTER}/operator/", "neither a node's id nor"),
        (f"URI:rlmm://{CLUSTER}/4294967297", "no node has the id"),
    ],
)
async def test_a_name_that_is_not_a_members_is_nobodys(keys, sans, says):
    """Neither is it used here, nor taken from others."""
    files = keys.ours.sign("1", sans=sans)
    with pytest.raises(ConfigError, match=says):
        keys.tls(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(keys.ours.ca)
    context.load_cert_chain(*files)
    with structlog.testing.capture_logs() as logs:
        async with serving(keys.tls(keys.nodes[1])) as at:
            stream = await dialed(at, context)
            assert await stream.reader.read() == b""
            stream.abort()
    assert says in logs[0]["error"]


async def test_names_of_other_schemes_are_others_matter(keys):
    """A certificate may serve a mesh besides."""
    sans = f"URI:spiffe://example/quorum,URI:rlmm://{CLUSTER}/5,DNS:example.com"
    dialer = keys.tls(keys.ours.sign("5", sans=sans))
    assert (await taken_as(keys.tls(keys.nodes[1]), dialer)).id == 5


def test_files_that_prove_nothing_are_refused_before_anything_starts(tmp_path, keys):
    """It says which, and why."""
    certificate, _ = keys.nodes[1]
    with pytest.raises(ConfigError, match="No such file"):
        keys.tls((certificate, tmp_path / "absent"))
    with pytest.raises(ConfigError, match="of another key"):
        keys.tls((certificate, keys.nodes[2][1]))
    with pytest.raises(ConfigError, match="is of 1, not of 2"):
        keys.tls(keys.nodes[1], member=Principal(node=2))
    with pytest.raises(ConfigError, match="unable to get local issuer"):
        keys.tls(keys.theirs.sign("1"))
    with pytest.raises(ConfigError, match="has expired"):
        keys.tls(keys.expired)
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        keys.tls(keys.nodes[1], ca_file=str(tmp_path / "ca.pem"))


def test_an_encrypted_key_needs_its_password_and_shows_it_nowhere(tmp_path, keys):
    """Neither a wrong one nor a right one stands in an error."""
    certificate, private = copied(keys.nodes[1], tmp_path)
    openssl(
        tmp_path,
        "pkcs8",
        "-topk8",
        "-in",
        str(private),
        "-out",
        "locked.key",
        "-passout",
        "pass:s3cret",
    )
    files = (certificate, tmp_path / "locked.key")
    keys.tls(files, key_password=Secret("s3cret"))
    for wrong in (None, Secret("wr0ng")):
        with pytest.raises(ConfigError, match="passphrase is wrong or missing") as refused:
            keys.tls(files, key_password=wrong)
        assert "wr0ng" not in repr(refused.value)
    assert "s3cret" not in repr(keys.options(files, key_password=Secret("s3cret")))


async def test_nobody_speaks_plaintext_to_tls_or_tls_to_plaintext(keys):
    """A dialer never falls back, and a listener never steps down."""
    with pytest.raises(Unreachable):
        await taken_as(keys.tls(keys.nodes[1]), Plain())
    with pytest.raises(Unreachable):
        await taken_as(Plain(), keys.tls(keys.nodes[1]))


async def test_an_operator_is_no_server(keys):
    """Not even where any replica would do."""
    async with serving(keys.tls(keys.alice)) as at:
        with pytest.raises(Unproven, match="no replica"):
            await keys.side(1)[1].dial(at)


async def test_a_listener_that_ends_leaves_no_handshake_behind(keys):
    """At whatever step of it: a transport that is left open would be warned of here."""
    for _ in range(5):
        async with serving(keys.tls(keys.nodes[9])) as at:
            with pytest.raises(Unproven):
                await keys.side(1)[1].dial(at, 2)
        await asyncio.sleep(0)
        gc.collect()
