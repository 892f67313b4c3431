"""A quorum of real processes: elected, killed, handed over, restarted, changed by its commands."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deploy.dev.stack.ports import free_ports
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.client import Description, QuorumClient
from rlmm_daemon.adapters.quorum.files.formatted import TOPIC
from rlmm_daemon.adapters.quorum.files.layout import Layout
from rlmm_daemon.cli import main
from rlmm_daemon.cli.quorum import seen as seen_module
from rlmm_daemon.codec.kraft.record_key import (
    FOUNDING,
    GRANT,
    NONCE_BYTES,
    RecordKey,
    pack_count,
    pack_key,
)
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.disposal.inventory import History
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.raft.forcing import FORCED_STEP
from rlmm_daemon.domain.errors import OutcomeUnknown
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.offline.quorum.replica_log import ReplicaLog
from tests.support.quorum_processes import CLUSTER, QuorumProcesses
from tests.unit.adapters.quorum.certificates import Authority


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    """Yield three voters that run."""
    with QuorumProcesses(tmp_path) as quorum:
        quorum.format(1, 2, 3)
        quorum.start(1, 2, 3)
        yield quorum


async def elected(quorum: QuorumProcesses) -> Description:
    """Return the quorum with a leader and all its voters there."""
    return await quorum.until(
        lambda seen: (
            seen.high_watermark > 0 and all(each.end == seen.voters[0].end for each in seen.voters)
        ),
        "a leader, and voters that have caught up",
    )


async def submitted(client: QuorumClient, *values: bytes) -> list[bytes]:
    """Return those that were acknowledged."""
    done = []
    for value in values:
        try:
            await client.submit([(None, value)])
        except OutcomeUnknown:
            continue
        done.append(value)
    return done


def rlmm(*words: str) -> Any:
    return CliRunner().invoke(main, ["quorum", *words])


async def rlmm_beside(*words: str) -> Any:
    return await asyncio.to_thread(rlmm, *words)


def roles(quorum: QuorumProcesses, node_id: int) -> list[str]:
    lines = quorum[node_id].lines()
    return [line["role"] for line in lines if line["event"] == "quorum_role"]


async def test_three_elect_one_and_commands_show_it(quorum):
    seen = await elected(quorum)
    run = await rlmm_beside("describe", "--json", "--server", quorum[2].address)
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert (told["cluster_id"], told["leader"], told["trouble"]) == (CLUSTER, seen.leader, [])
    assert (told["majority"], told["tolerates"]) == (2, 1)
    assert [each["id"] for each in told["voters"]] == [1, 2, 3]
    assert told["voters"][0]["listeners"] == [quorum[1].address]
    assert roles(quorum, seen.leader)[-1] == "leader"
    run = await rlmm_beside("describe", "--server", quorum[2].address)
    assert "1, 2, 3: 2 of 3 decide, 1 may be lost" in run.stdout


async def test_a_killed_leader_takes_nothing_acknowledged_along(quorum):
    seen = await elected(quorum)
    client = quorum.client()
    before = await submitted(client, *(b"before %d" % each for each in range(20)))
    assert len(before) == 20
    quorum[seen.leader].kill()
    after = await submitted(client, *(b"after %d" % each for each in range(20)))
    assert len(after) >= 19, "one may have an unknown outcome"
    found = await quorum.client().describe()
    assert found.leader != seen.leader
    assert found.epoch > seen.epoch
    quorum.start(seen.leader)
    await elected(quorum)
    for each in quorum.replicas.values():
        assert each.stop() == 0
        assert [value for value in each.values() if value in {*before, *after}] == before + after


async def test_a_leader_that_is_stopped_hands_over(quorum):
    seen = await elected(quorum)
    assert quorum[seen.leader].stop() == 0
    begun = time.monotonic()
    await quorum.client().submit([(None, b"x")])
    assert time.monotonic() - begun < 10.0
    found = await quorum.client().describe()
    assert found.leader != seen.leader
    stopping = [line for line in quorum[seen.leader].lines() if line["event"] == "stopping"]
    assert [line["handing_over"] for line in stopping] == [True]
    assert roles(quorum, seen.leader)[-1] == "resigned"
    (last,) = quorum[found.leader].lines()[-1:]
    assert last["role"] == "leader"


async def test_all_come_back_with_what_they_had(quorum):
    await elected(quorum)
    kept = await submitted(quorum.client(), b"one", b"two")
    for each in quorum.replicas.values():
        each.kill()
    quorum.start(1, 2, 3)
    seen = await elected(quorum)
    assert await quorum.client().submit([(None, b"three")]) < seen.high_watermark + 10
    assert [value for value in quorum[seen.leader].values() if value] == [*kept, b"three"]


async def test_a_fourth_is_added_and_the_first_leader_removed(quorum):
    seen = await elected(quorum)
    fourth = await asyncio.to_thread(quorum.join, 4)
    quorum.start(4)
    await quorum.until(
        lambda seen: any(each.caught_up_at_ms > 0 for each in seen.observers), "an observer"
    )
    change = ("--node-id", "4", "--listen", fourth.address, "--server", quorum[1].address)
    run = await rlmm_beside("add", *change)
    assert run.exit_code == 0, run.output
    assert "voters then  1, 2, 3, 4: 3 of 4 decide, 1 may be lost" in run.stdout
    assert run.stdout.endswith("nothing was done; --execute does it\n")
    assert len((await quorum.client().describe()).voters) == 3
    run = await rlmm_beside("add", *change, "--execute")
    assert run.exit_code == 0, run.output
    run = await rlmm_beside("add", *change, "--execute")
    assert (run.exit_code, "is a voter already" in run.stderr) == (1, True)

    gone = str(seen.leader)
    run = await rlmm_beside("remove", "--node-id", gone, *quorum.asked, "--execute")
    assert run.exit_code == 0, run.output
    found = await quorum.until(
        lambda each: each.leader != seen.leader and each.high_watermark > 0, "another leader"
    )
    assert {each.key.id for each in found.voters} == {1, 2, 3, 4} - {seen.leader}


async def test_a_voter_that_moved_says_where_it_is(quorum):
    seen = await elected(quorum)
    moves = quorum[min({1, 2, 3} - {seen.leader})]
    assert moves.stop() == 0
    (moves.port,) = free_ports(1)
    moves.start(quorum.servers)
    await quorum.until(
        lambda seen: [at.port for at in seen.endpoints[moves.key.id]] == [moves.port], "its port"
    )
    assert await submitted(quorum.client(), b"x") == [b"x"]


async def test_a_removal_that_would_stop_the_quorum_is_refused(quorum, monkeypatch):
    monkeypatch.setattr(seen_module, "AWAY_MS", 2_000)
    seen = await elected(quorum)
    dead, alive = sorted({1, 2, 3} - {seen.leader})
    quorum[dead].kill()
    there = ("--server", quorum[alive].address)
    await quorum.until(lambda each: dead not in {key.id for key in seen_module.alive(each)}, "away")
    run = await rlmm_beside("remove", "--node-id", str(alive), *there, "--execute")
    assert run.exit_code == 1
    assert f"but {dead} did not fetch for 2 s: nothing could be committed" in run.stderr
    run = await rlmm_beside("describe", *there, "--json")
    assert run.exit_code == 1
    trouble = [f"voter {dead} has not fetched for 2 s", "the next loss stops the quorum"]
    assert json.loads(run.stdout)["trouble"] == trouble
    run = await rlmm_beside("remove", "--node-id", str(dead), *there, "--execute")
    assert run.exit_code == 0, run.output
    assert "two voters tolerate no failure" in run.stdout


async def test_voters_are_forced_after_a_majority_is_lost(quorum):
    await elected(quorum)
    kept = await submitted(quorum.client(), b"one", b"two")
    await elected(quorum)
    quorum[1].kill()
    one, two = quorum[1], quorum[2]
    words = ("force-voters", str(one.directory), "--listen", one.address)
    run = await rlmm_beside(*words, "--execute")
    assert (run.exit_code, "somebody answers at" in run.stderr) == (1, True), run.stderr
    for each in (two, quorum[3]):
        each.kill()
    run = await rlmm_beside(*words, str(two.directory))
    assert (run.exit_code, "they are a majority" in run.stderr) == (1, True)
    run = await rlmm_beside(*words)
    assert (run.exit_code, "nothing was done" in run.stdout) == (0, True), run.output
    run = await rlmm_beside(*words, "--execute", "--json")
    told = json.loads(run.stdout)
    assert (told["chosen"], told["unread"], told["new_epoch"]) == (1, [2, 3], FORCED_STEP)

    quorum.start(1)
    seen = await quorum.until(lambda seen: seen.high_watermark > 0, "it leads alone")
    assert ([each.key for each in seen.voters], seen.epoch) == ([one.key], FORCED_STEP + 1)
    assert await submitted(quorum.client(), b"three") == [b"three"]
    run = await rlmm_beside("describe", "--server", one.address)
    assert "the voters were forced once" in run.stdout
    quorum.start(2, 3)
    for each in (two, quorum[3]):
        assert each.ended() == 1, "it must not serve"
        assert "the voters were forced while replica" in each.output.read_text()
    one.kill()
    quorum.start(2)
    assert two.ended() == 78, "nor when nobody could tell"
    quorum.start(1)
    assert await submitted(quorum.client(), b"four") == [b"four"]
    assert one.values() == [*kept, b"three", b"four"]


def proven(authority: Authority, member: str) -> tuple[str, ...]:
    certificate, key = authority.sign(member, cluster=CLUSTER)
    return ("--ca", str(authority.ca), "--certificate", str(certificate), "--key", str(key))


def test_members_prove_who_they_are(tmp_path: Path):
    """Three with certificates, an operator who may change voters, one who may look, a stranger."""
    authority = Authority(tmp_path / "keys")
    chief, clerk = proven(authority, "operator/chief"), proven(authority, "operator/clerk")
    with QuorumProcesses(tmp_path) as quorum:
        quorum.format(1, 2, 3)
        for node_id in (1, 2, 3):
            quorum[node_id].proof = (*proven(authority, str(node_id)), "--voter-changer", "chief")
        quorum.start(1, 2, 3)
        shown = looked(quorum, clerk)
        assert [each["id"] for each in shown["voters"]] == [1, 2, 3]
        gone = ("remove", "--node-id", str(next(n for n in (1, 2, 3) if n != shown["leader"])))
        refused = rlmm(*gone, "--execute", *clerk, *quorum.asked)
        assert refused.exit_code == 1, refused.output
        assert "cluster_authorization_failed" in refused.output
        done = rlmm(*gone, "--execute", *chief, *quorum.asked)
        assert done.exit_code == 0, done.output
        # Neither in the clear, nor with another quorum's certificate.
        for stranger in ((), proven(Authority(tmp_path / "others"), "operator/chief")):
            run = rlmm("describe", "--timeout", "1", *stranger, *quorum.asked)
            assert run.exit_code == 3, run.output


def test_members_prove_who_they_are_by_passwords(tmp_path: Path):
    """Over TLS that shows the servers alone: replicas and operators have no certificate to show."""
    authority = Authority(tmp_path / "keys")
    lines = []
    for member in ("1", "2", "3", "operator/chief", "operator/clerk"):
        (tmp_path / f"{member.replace('/', '-')}.password").write_text(f"s3cret-{member}\n")
        run = CliRunner().invoke(
            main, ["quorum", "user", member], input=f"s3cret-{member}\ns3cret-{member}\n"
        )
        assert run.exit_code == 0, run.output
        lines.append(run.stdout.splitlines()[-1])
    users = tmp_path / "users"
    users.write_text("\n".join(lines) + "\n")

    def known(name: str, password: str | None = None) -> tuple[str, ...]:
        file = str(tmp_path / f"operator-{password or name}.password")
        return ("--ca", str(authority.ca), "--user", name, "--password-file", file)

    with QuorumProcesses(tmp_path) as quorum:
        quorum.format(1, 2, 3)
        for node_id in (1, 2, 3):
            own = ("--password-file", str(tmp_path / f"{node_id}.password"))
            asks = ("--users", str(users), "--voter-changer", "chief")
            quorum[node_id].proof = (*proven(authority, str(node_id)), *own, *asks)
        quorum.start(1, 2, 3)
        shown = looked(quorum, known("clerk"))
        assert [each["id"] for each in shown["voters"]] == [1, 2, 3]
        gone = ("remove", "--node-id", str(next(n for n in (1, 2, 3) if n != shown["leader"])))
        refused = rlmm(*gone, "--execute", *known("clerk"), *quorum.asked)
        assert "cluster_authorization_failed" in refused.output
        wrong = rlmm("describe", "--timeout", "1", *known("clerk", "chief"), *quorum.asked)
        assert wrong.exit_code == 3, wrong.output
        assert "a wrong user or password" in wrong.output
        done = rlmm(*gone, "--execute", *known("chief"), *quorum.asked)
        assert done.exit_code == 0, done.output
        assert not any("s3cret" in each.output.read_text() for each in quorum.replicas.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--users", "users"), "name its own --password-file or --token-file"),
        (("--users", "absent", "--password-file", "password"), "absent can't be read"),
        (("--password-file", "absent"), "absent can't be read"),
        (("--password-file", "users"), "holds no password"),
        (
            ("--password-file", "password", "--token-file", "password"),
            "only one of --password-file",
        ),
        (("--token-file", "password"), "holds no signed token"),
        (("--token-keys", "users"), "--token-keys, --token-issuer and --token-audience go"),
    ],
)
def test_a_proof_that_can_not_hold_does_not_start(tmp_path: Path, words, said):
    with QuorumProcesses(tmp_path) as quorum:
        quorum.format(1)
        (tmp_path / "users").write_text("\n\n")
        (tmp_path / "password").write_text("s3cret\n")
        files = ("users", "absent", "password")
        quorum[1].proof = [str(tmp_path / word) if word in files else word for word in words]
        quorum.start(1)
        assert quorum[1].ended() == 78
        assert said in quorum[1].output.read_text()
        assert "s3cret" not in quorum[1].output.read_text()


def looked(quorum: QuorumProcesses, proof: tuple[str, ...]) -> Any:
    """Return what `describe` shows, once all is well."""
    until = time.monotonic() + 30
    while True:
        run = rlmm("describe", "--json", *proof, *quorum.asked)
        if run.exit_code == 0:
            return json.loads(run.stdout)
        assert time.monotonic() < until, run.output


def test_a_replica_with_anothers_certificate_does_not_start(tmp_path: Path):
    authority = Authority(tmp_path / "keys")
    with QuorumProcesses(tmp_path) as quorum:
        quorum.format(1)
        quorum[1].proof = proven(authority, "2")
        quorum.start(1)
        assert quorum[1].ended() == 78
        assert "is of 2, not of 1" in quorum[1].output.read_text()
        quorum[1].proof = proven(authority, "1")[:4]
        quorum.start(1)
        assert quorum[1].ended() == 78
        assert "--ca, --certificate and --key go together" in quorum[1].output.read_text()


async def test_nobody_who_answers_is_an_exit_code_of_its_own(tmp_path: Path):
    with QuorumProcesses(tmp_path) as quorum:
        await asyncio.to_thread(quorum.format, 1, 2, 3)
        where = ("--server", quorum[1].address, "--timeout", "0.3")
        run = await rlmm_beside("describe", *where)
        assert run.exit_code == 3
        assert quorum[1].address in run.stderr


async def test_a_replica_without_its_files_does_not_start(tmp_path: Path):
    with QuorumProcesses(tmp_path) as quorum:
        await asyncio.to_thread(quorum.format, 1, 2, 3)
        (quorum[1].directory / f"{TOPIC}-0" / "quorum-state").unlink()
        (quorum[2].directory / "meta.properties").unlink()
        (quorum[3].directory / f"{TOPIC}-0" / "partition.metadata").unlink()
        quorum.start(1, 2, 3)
        assert quorum[1].ended() == 1
        assert "this replica may have voted" in quorum[1].output.read_text()
        assert quorum[2].ended() == 78
        assert "is not formatted for a quorum" in quorum[2].output.read_text()
        assert quorum[3].ended() == 1
        assert "partition.metadata: it is gone" in quorum[3].output.read_text()


async def test_one_process_has_a_directory_and_an_address(tmp_path: Path):
    with QuorumProcesses(tmp_path) as quorum:
        await asyncio.to_thread(quorum.format, 1)
        quorum.start(1)
        await quorum.client(seconds=30.0).describe()
        one = quorum[1]
        second = replace(one, output=tmp_path / "second.log", process=None)
        second.start([])
        assert second.ended() == 1, "systemd starts it again: the other may be killed already"
        assert "another process has it open" in second.output.read_text()
        other = await asyncio.to_thread(quorum.join, 2)
        third = replace(other, port=one.port, output=tmp_path / "third.log")
        third.start([])
        assert third.ended() == 1
        assert f"--listen {one.address}" in third.output.read_text()
        one.kill()
        second.start([])
        quorum.replicas[1] = second
        await quorum.client(seconds=30.0).describe()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("run", "1", "--listen", "192.0.2.1:9393"), "192.0.2.1 is not on loopback"),
        (("run", "1", "--listen", "0.0.0.0:9393", "--insecure"), "name one"),
        (("describe", "--server", "192.0.2.1:9393"), "192.0.2.1 is not on loopback"),
    ],
    ids=["run", "run anywhere", "describe"],
)
def test_nobody_speaks_in_the_clear_beyond_this_host_unasked(tmp_path: Path, words, why):
    with QuorumProcesses(tmp_path) as quorum:
        quorum.format(1)
        run = quorum.rlmm(*words)
        assert (run.returncode, why in run.stderr) == (78, True), run.stderr


def test_a_directory_is_formatted_once(tmp_path: Path):
    words = ("format", str(tmp_path / "q"), "--cluster-id", CLUSTER, "--node-id", "1")
    first = (*words, "--standalone", "--listen", "127.0.0.1:9393")
    assert uuid_text(bytes(16)) not in (run := rlmm(*first)).stdout
    assert run.exit_code == 0, run.output
    assert not (tmp_path / "q").exists(), "it only says what would be"
    assert rlmm(*first, "--execute").exit_code == 0
    run = rlmm(*first, "--execute")
    assert run.exit_code == 78
    assert "is formatted already" in run.stderr


async def test_a_replica_without_a_daemon_bounds_its_log(tmp_path: Path) -> None:
    """It makes checkpoints, its log begins behind the older one, and it goes on from there."""
    with QuorumProcesses(tmp_path) as quorum:
        await asyncio.to_thread(quorum.format, 1)
        quorum.start(1)
        client = quorum.client(seconds=30.0)
        nonce = bytes(NONCE_BYTES)
        await client.submit([(pack_key(RecordKey(FOUNDING, 1, 0, 0)), pack_count(3))])
        await client.submit([(pack_key(RecordKey(GRANT, 1, 1, 0)), nonce)])
        home, serial = quorum[1].directory / f"{TOPIC}-0", 0

        point = quorum[1].directory / "log-start-offset-checkpoint"
        start = point.read_text()
        while point.read_text() == start:
            assert serial < 100, "two checkpoints are due after 42 MB"
            serial += 1
            key = pack_key(RecordKey(serial % 3, 1, 1, serial))
            await client.submit([(key, b"%d " % serial + bytes(1000 * 1000))])
        assert len(list(home.glob("*.checkpoint"))) == 2, "the beginning's has gone"
        assert await asyncio.to_thread(quorum[1].stop) == 0
        quorum.start(1)
        await asyncio.to_thread(quorum.join, 2)
        quorum.start(2)
        serial += 1
        key = pack_key(RecordKey(serial % 3, 1, 1, serial))
        end = await client.submit([(key, b"after")]) + 1
        seen = await quorum.until(
            lambda seen: [each.end for each in seen.observers] == [end], "an observer has all"
        )
        assert seen.high_watermark == end
        disk = LocalDisk()
        read = ReplicaLog(
            disk, Layout(str(quorum[1].directory), TOPIC), ask=_nobody, read_to=_nothing
        )
        await read.open()
        ends = [0, 0, 0]
        for number in range(3):
            history = History(Fold(MetadataPartition(number), 3))
            await read.read_on(history)
            ends[number] = history.fold.position
        disk.close()
        assert sum(ends) == serial, "each is there, in the checkpoint or behind it"


async def _nobody(_: object) -> None:
    return None


async def _nothing(_: object) -> dict[int, Position]:
    return {}
