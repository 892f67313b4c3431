"""SCRAM-SHA-256: the RFC's own exchange, Kafka's client, and whoever lies in it."""

import base64
import contextlib

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.adapters.quorum.authentication import scram
from rlmm_daemon.adapters.quorum.authentication.mechanisms import NotProven
from rlmm_daemon.adapters.quorum.authentication.scram import Client, Server, Verifier

KEPT = scram.verifier("pencil", salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4096)


def test_the_exchange_of_the_rfc():
    """RFC 7677, section 3, byte for byte, on both sides."""
    client = Client("user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert client.first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server = Server(client.first, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    challenge = server.challenge(KEPT)
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    proof = client.proof(challenge)
    assert proof == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    verdict = server.verdict(proof)
    assert verdict == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(verdict)


async def test_a_client_of_kafka_is_believed():
    """aiokafka's is written after the same RFC by others."""
    theirs = ScramAuthenticator(
        loop=None,
        sasl_plain_username="1",
        sasl_plain_password="pencil",
        sasl_mechanism="SCRAM-SHA-256",
    ).authenticator_scram()
    first, _ = next(theirs)
    server = Server(first)
    assert server.user == "1"
    proof, _ = theirs.send(server.challenge(KEPT))
    with pytest.raises(StopIteration):
        theirs.send(server.verdict(proof))


def test_a_wrong_password_is_not_believed_by_either_side():
    client = Client("user", "pencil")
    server = Server(client.first)
    proof = client.proof(server.challenge(scram.verifier("other", iterations=4096)))
    with pytest.raises(NotProven, match="a wrong password"):
        server.verdict(proof)
    with pytest.raises(NotProven, match="a server that does not know"):
        client.check(b"v=" + base64.b64encode(bytes(32)))


def test_a_verdict_before_a_proof_is_none():
    """An empty key would be everybody's."""
    with pytest.raises(NotProven):
        Client("user", "pencil").check(b"v=")
    with pytest.raises(NotProven):
        Client("user", "pencil").check(b"v=" + base64.b64encode(b""))


def test_a_proof_of_another_exchange_is_none():
    """Whoever listened can't say it again."""
    client = Client("user", "pencil", nonce="a" * 20)
    proof = client.proof(Server(client.first).challenge(KEPT))
    server = Server(client.first)
    server.challenge(KEPT)
    with pytest.raises(NotProven):
        server.verdict(proof)


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=somebodyelse0000,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=aaaaaaaaaaaaaaaaaaaa,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=aaaaaaaaaaaaaaaaaaaab,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1",
        b"r=aaaaaaaaaaaaaaaaaaaab,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=999999999",
        b"r=aaaaaaaaaaaaaaaaaaaab,s===,i=4096",
        b"m=x,r=aaaaaaaaaaaaaaaaaaaab,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"",
    ],
)
def test_a_challenge_that_is_none_gets_no_proof(challenge):
    """Of another nonce, of ours alone, too cheap to be safe, or so dear that it is a joke."""
    with pytest.raises(NotProven):
        Client("user", "pencil", nonce="a" * 20).proof(challenge)


@given(st.binary(max_size=60) | st.from_regex(rb"\A[ny],[^,]*,n=[^,]*,r=[ -~]*\Z"))
def test_nonsense_is_no_first_message_or_one_of_a_user(message):
    with contextlib.suppress(NotProven):
        assert Server(message).user


def test_a_verifier_is_kept_as_text_and_shows_nothing():
    """As PostgreSQL writes it, so that its tools make one."""
    assert scram.decode(scram.encode(KEPT)) == KEPT
    assert scram.encode(KEPT).startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert repr(KEPT) == f"{KEPT}" == "Verifier(...)"
    for broken in ("", "SCRAM-SHA-256$1:YQ==$YQ==:YQ==", "SCRAM-SHA-256$4096:YQ==$YQ==:YQ=="):
        with pytest.raises(NotProven):
            scram.decode(broken)
    assert isinstance(KEPT, Verifier)
