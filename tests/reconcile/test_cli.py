"""Every form of `rlmm reconcile`: for people and machines, on a terminal, and every exit code."""

import contextlib
import csv
import fcntl
import io
import json
import os
import signal
import socket
import struct
import termios
import threading
import time
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from rlmm_daemon.cli.group import main as rlmm
from rlmm_daemon.cli.mend import reconcile
from rlmm_daemon.codec import marker
from rlmm_daemon.config import load
from rlmm_daemon.reconcile import control, session
from rlmm_daemon.reconcile.act import lease, quarantine
from rlmm_daemon.reconcile.act.lease import LEASE_KEY, Lease
from rlmm_daemon.reconcile.act.quarantine import CondemnedObject, Manifest
from rlmm_daemon.reconcile.night import Run
from rlmm_daemon.reconcile.read import listing, lives
from rlmm_daemon.reconcile.report.summary import Night
from rlmm_daemon.reconcile.schema import FINDINGS, batch
from rlmm_daemon.reconcile.storage_time import StorageClock
from tests.reconcile.test_night import NOW
from tests.reconcile.world import DAEMON_OF_KAFKA, DAY, PARTITIONS, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SHA = "ab" * 32


def configured(world: World) -> Path:
    world.write_log()
    world.write_local()
    file = world.home / "reconcile.toml"
    file.write_text(
        f'daemon_config = "{world.home}/rlmm.toml"\n'
        '[spark]\nmaster = "local[2]"\ndriver_memory = "1g"\nshuffle_partitions = 4\n'
        f'[output]\ndirectory = "{world.home}/out"\ntextfile = "{world.home}/r.prom"\n'
    )
    return file


def told(*words: object) -> Result:
    return CliRunner().invoke(rlmm, ["reconcile", *map(str, words)])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, NOW)


@pytest.mark.usefixtures("spark")
def test_storage_and_log_that_agree_are_exit_code_0(world: World) -> None:
    world.store(world.live())
    run = told("run", "--config", configured(world), "--json")
    assert run.exit_code == reconcile.CLEAN, run.output
    summary = json.loads(run.stdout)
    assert (summary["findings"], summary["refused"], summary["execute"]) == ({}, [], False)
    assert "rlmm_reconcile_refused 0" in (world.home / "r.prom").read_text()


@pytest.mark.usefixtures("spark")
def test_findings_are_exit_code_1_and_a_terminal_shows_how_far_the_run_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.everything()
    file = configured(world)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    code, shown = on_terminal("reconcile", "run", "--config", str(file))
    assert code == reconcile.FINDINGS, shown[-2_000:]
    for stage in ("listing", "judging", "confirming"):
        assert stage in shown
    assert "━" in shown, "a bar"
    assert "missing_object" in shown
    assert "report.html" in shown


@pytest.mark.usefixtures("spark")
def test_a_refusal_is_exit_code_4_and_reports_all_the_same(world: World) -> None:
    world.everything()
    file = configured(world)
    nasty = msgspec.structs.replace(world.presence(), cluster_id="[red]\x1b[31m\nrefused  forged")
    for number, presence in (
        (1, world.presence(state="failed(x)")),
        (2, nasty),
        (3, world.presence(ahead=1)),
        (4, world.presence(epochs=1)),
    ):
        world.write_control(f"daemons/{number}.json", marker.encode(presence))
    world.expect("foreign_cluster", "_rlmm/daemons/2.json")
    run = told("run", "--execute", "--config", file)
    assert run.exit_code == reconcile.REFUSED, run.output
    assert "is failed(x)" in run.stdout
    assert "the log ends at" in run.stdout
    assert "which the log has otherwise" in run.stdout
    assert "is of cluster '[red]" in run.stdout, "no markup to us"
    assert "\x1b" not in run.stdout
    assert "\nrefused  forged" not in run.stdout
    assert "missing_object" in run.stdout
    found = pq.read_table(world.home / "out" / "latest" / "findings").to_pylist()
    assert {(row["kind"], row["segment_id"] or row["key"]) for row in found} == {*world.expected}
    assert not any(row["condemned"] for row in found)
    assert not (world.home / "remote" / quarantine.MANIFESTS).exists()


@pytest.mark.usefixtures("spark")
def test_what_can_not_be_read_whole_is_exit_code_5(world: World) -> None:
    world.store(world.live())
    file = configured(world)
    (world.home / "log").rename(world.home / "elsewhere")
    run = told("run", "--config", file)
    assert run.exit_code == reconcile.INCOMPLETE, run.output
    assert "no event log" in run.output


@pytest.mark.usefixtures("spark")
def test_a_task_that_fails_is_exit_code_5_and_its_reason_is_told(world: World) -> None:
    for _ in range(20):
        world.store(world.live())
    file = configured(world)
    # The ends are found by walking the newest file of a log: damage in an older one is a task's.
    log = max((world.home / "log").rglob("*.log"), key=lambda each: each.stat().st_size)
    whole = bytearray(log.read_bytes())
    begin = int(log.stem)
    whole[len(whole) // 2] ^= 1
    log.write_bytes(whole)
    log.with_name(f"{begin + 100:020}.log").write_bytes(b"")
    run = told("run", "--config", file)
    assert run.exit_code == reconcile.INCOMPLETE, run.output
    assert run.stderr.startswith("rlmm: metadata partition "), run.stderr
    assert "Traceback" not in run.output
    assert not (world.home / "out" / "latest").exists(), "nothing was judged"


@pytest.mark.usefixtures("spark")
def test_a_cluster_that_does_not_answer_is_exit_code_5(world: World) -> None:
    file = configured(world)
    daemon = world.home / "rlmm.toml"
    storage = daemon.read_text().partition("[storage]")[2]
    with socket.socket() as closed:  # bound and never listening: nobody else answers there
        closed.bind(("127.0.0.1", 0))
        daemon.write_text(
            DAEMON_OF_KAFKA.format(
                home=world.home,
                count=PARTITIONS,
                bootstrap=f"127.0.0.1:{closed.getsockname()[1]}",
                storage=f"[storage]{storage}",
            )
        )
        run = told("run", "--config", file, "--json")
    assert run.exit_code == reconcile.INCOMPLETE, run.output
    (line,) = run.stderr.splitlines()
    assert json.loads(line)["message"]


@pytest.mark.usefixtures("spark")
def test_a_lease_that_another_holds_is_exit_code_5(world: World) -> None:
    for _ in range(200):
        world.store(world.live())
    world.store(world._orphan(20 * DAY))
    file = configured(world)
    held = Lease(owner="another", fence=4, expires_ms=NOW + DAY)
    world.write_control(LEASE_KEY.removeprefix("_rlmm/"), control.encode(held))
    run = told("run", "--execute", "--config", file)
    assert run.exit_code == reconcile.INCOMPLETE, run.output
    assert "another holds _rlmm/reconcile/lease.json" in run.output
    told_of = json.loads((world.home / "out" / "latest" / "summary.json").read_text())
    assert "another holds" in told_of["broken_off"], "what was found is reported all the same"
    assert told_of["findings"]["orphan_object"]
    assert "rlmm_reconcile_broken_off 1" in (world.home / "r.prom").read_text()
    assert not [*(world.home / "out").glob("*/work")]
    assert all((world.home / "remote" / key).exists() for key in world.objects)


@pytest.mark.usefixtures("spark")
def test_a_storage_that_is_another_plugins_is_not_looked_at(world: World) -> None:
    file = configured(world)
    daemon = world.home / "rlmm.toml"
    text = daemon.read_text().partition("[storage]")[0]
    daemon.write_text(f'{text}[storage]\nkind = "none"\n')
    run = told("run", "--execute", "--config", file)
    assert run.exit_code == reconcile.REFUSED
    assert 'storage.kind is "none"' in run.output


def test_what_is_not_understood_is_a_usage_error(world: World) -> None:
    file = configured(world)
    assert told("run", "--nonsense").exit_code == 2
    assert told("accept-record", 0, 1, SHA, "--config", file).exit_code == 2, "no reason was given"
    assert told("accept-record", "x", 1, SHA, "--reason", "r").exit_code == 2
    assert told("accept-record", 0, -5, SHA, "--reason", "r").exit_code == 2, "nothing is there"
    assert told("accept-record", 0, 1, SHA, "--raeson", "r").exit_code == 2
    short = told("accept-record", 0, 1, "abcd", "--reason", "r", "--config", file)
    assert short.exit_code != 0
    assert "64 hexadecimal digits" in short.output + str(short.exception)
    assert told("restore").exit_code == 2


@pytest.mark.parametrize("offset", [17, lives.FINISHED])
def test_a_record_is_accepted_in_both_forms(world: World, offset: int) -> None:
    """One within a snapshot is named by an offset that comes before all others."""
    file = configured(world)
    words = ("accept-record", 3, offset, SHA, "--reason", "seen: a test's", "--config", file)
    people = told(*words)
    assert people.exit_code == 0, people.output
    assert people.stdout == f"accepted the record at offset {offset} of metadata partition 3\n"
    machines = json.loads(told(*words, "--json").stdout)
    assert (machines["offset"], machines["sha256"], machines["reason"]) == (offset, SHA, words[5])
    kept = json.loads((world.home / "remote" / control.ACCEPTED_KEY).read_text())
    assert len(kept["records"]) == 1, "again is harmless"
    assert "@" in kept["records"][0]["accepted_by"]


def test_manifests_are_listed_and_restored_in_both_forms(world: World) -> None:
    world.store(world.live())
    file = configured(world)
    gone = CondemnedObject(key="k\x1b[31m", size=10, etag="e", modified_ms=1, kind="orphan_object")
    there = next(iter(world.objects))
    found = listing.look_up(load(world.home / "rlmm.toml"), there)
    assert found is not None
    kept = CondemnedObject(
        key=there, size=1, etag=found.etag, modified_ms=found.modified_ms, kind="orphan_object"
    )
    made = Manifest(run="r", fence=1, created_ms=NOW, entries=(gone, kept))
    place = f"{quarantine.MANIFESTS}r-001.json".removeprefix("_rlmm/")
    world.write_control(place, control.encode(made))
    before = {*(world.home / "remote").rglob("*")}
    shown = told("manifests", "--config", file)
    assert shown.exit_code == 0, shown.output
    assert {*(world.home / "remote").rglob("*")} == before, "a list makes nothing"
    assert "r-001.json" in shown.stdout
    assert json.loads(told("manifests", "--config", file, "--json").stdout)["r-001.json"]
    back = told("restore", "r-001.json", "--config", file)
    assert back.stdout.startswith("restored r-001.json: 1 of its 2 objects are still there\n")
    assert "gone already" in back.stdout
    assert "\x1b" not in back.stdout
    assert back.exit_code == 1
    machines = json.loads(told("restore", "r-001.json", "--config", file, "--json").stdout)
    gone_now = {"k\x1b[31m": "gone already"}
    assert machines == {"manifest": "r-001.json", "objects": 2, "left": 1, "gone": gone_now}
    listed = json.loads(told("manifests", "--config", file, "--json").stdout)
    assert listed["r-001.json"]["restored"]
    absent = told("restore", "none.json", "--config", file)
    assert absent.exit_code != 0
    assert "no manifest" in absent.output + str(absent.exception)


def quarantined(world: World, **changes: object) -> Path:
    """Leave a manifest `r-001.json` of one object that is there; return the configuration."""
    world.store(world.live())
    file = configured(world)
    key = next(iter(world.objects))
    found = listing.look_up(load(world.home / "rlmm.toml"), key)
    assert found is not None
    kept = CondemnedObject(
        key=key, size=1, etag=found.etag, modified_ms=found.modified_ms, kind="orphan_object"
    )
    made = msgspec.structs.replace(
        Manifest(run="r", fence=7, created_ms=NOW, entries=(kept,)), **changes
    )
    place = f"{quarantine.MANIFESTS}r-001.json".removeprefix("_rlmm/")
    world.write_control(place, control.encode(made))
    return file


def test_a_manifest_is_held_back_released_and_approved_and_says_by_whom(world: World) -> None:
    file = quarantined(world)
    place = world.home / "remote" / quarantine.MANIFESTS / "r-001.json"
    before = place.read_bytes()
    for verb, more in (("hold", ("--reason", "asked")), ("release", ()), ("approve", ())):
        dry = told(verb, "r-001.json", *more, "--config", file)
        assert dry.exit_code == 0, dry.output
        assert "(--execute does it)" in dry.stdout
        assert place.read_bytes() == before
    held = told("hold", "r-001.json", "--reason", "asked", "--execute", "--config", file)
    assert held.stdout == "held back r-001.json: 1 of its 1 objects are still there\n"
    word = json.loads(place.read_text())["held"]
    assert word["reason"] == "asked"
    assert "@" in word["by"]
    shown = told("manifests", "--config", file).stdout
    assert f"held by {word['by']}" in shown
    assert "never" in shown
    assert told("release", "r-001.json", "--execute", "--config", file).exit_code == 0
    assert "quarantined" in told("manifests", "--config", file).stdout
    assert told("approve", "r-001.json", "--execute", "--config", file).exit_code == 0
    assert f"approved by {word['by']}" in told("manifests", "--config", file).stdout
    assert told("restore", "r-001.json", "--config", file).exit_code == 0
    for verb in ("approve", "release"):
        late = told(verb, "r-001.json", "--execute", "--config", file)
        assert late.exit_code != 0
        assert "was restored" in late.output + str(late.exception)


def test_a_manifest_that_can_not_be_read_is_shown_as_such(world: World) -> None:
    file = quarantined(world)
    world.write_control("reconcile/manifests/s-001.json", b"{")
    shown = told("manifests", "--config", file)
    assert shown.exit_code == 1
    assert "r-001.json" in shown.stdout
    assert "damaged" in shown.stdout
    assert "_rlmm/reconcile/manifests/s-001.json" in shown.stderr
    machines = json.loads(told("manifests", "--config", file, "--json").stdout)
    assert "s-001.json" in machines["s-001.json"]["damaged"]


def test_a_lease_is_shown_and_broken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    known, now_ms = lease.take_away, StorageClock.now_ms
    monkeypatch.setattr(lease, "take_away", partial(known, pause=pause))
    monkeypatch.setattr(StorageClock, "now_ms", lambda clock: now_ms(clock) + 1_000 * len(waited))
    file = quarantined(world)
    assert "no run ever took" in told("lease", "--config", file).stdout
    assert json.loads(told("lease", "--json", "--config", file).stdout) is None
    assert "nothing to break" in told("break-lease", "--execute", "--config", file).stdout
    ends_ms = time.time_ns() // 1_000_000 + 300_000
    held = control.encode(Lease(owner="a-run", fence=4, expires_ms=ends_ms))
    world.write_control(LEASE_KEY.removeprefix("_rlmm/"), held)
    assert json.loads(told("lease", "--json", "--config", file).stdout) == {
        "owner": "a-run", "fence": 4, "ends_at_ms": ends_ms, "damage": ""
    }  # fmt: skip
    dry = told("break-lease", "--config", file)
    assert "a-run" in dry.stdout
    assert "still deletes what it has just checked" in dry.stdout
    assert (world.home / "remote" / LEASE_KEY).read_bytes() == held
    broken = told("break-lease", "--execute", "--config", file)
    assert broken.exit_code == 0, broken.output
    assert "breaking the lease of a-run" in broken.stdout
    assert len(waited) > 200, "until then its owner may still delete"
    after = json.loads(told("lease", "--json", "--config", file).stdout)
    assert after["owner"].startswith("broken by ")
    assert (after["fence"], after["ends_at_ms"]) == (8, ends_ms), "above every manifest's"


def test_a_lease_that_can_not_be_read_is_shown_as_such(world: World) -> None:
    file = quarantined(world)
    world.write_control(LEASE_KEY.removeprefix("_rlmm/"), b"")
    shown = told("lease", "--config", file)
    assert shown.exit_code == 1
    assert "lease.json (Lease) is empty" in shown.stdout


def findings_of(world: World, rows: list[dict[str, object]]) -> Path:
    """Leave a run's findings, and return the configuration."""
    file = configured(world)
    run = world.home / "out" / "20261101T000000000Z"
    (run / "findings").mkdir(parents=True)
    columns = {name: [row.get(name) for row in rows] for name in FINDINGS.names}
    pq.write_table(
        pa.Table.from_batches([batch(FINDINGS, columns)]), run / "findings" / "a.parquet"
    )
    (world.home / "out" / "latest").symlink_to(run.name)
    return file


def test_findings_are_listed_one_by_one(world: World) -> None:
    rows: list[dict[str, object]] = [
        {"kind": "orphan_object", "topic": "orders", "partition": 1, "segment_id": f"s{n}",
         "key": f"orders/{n}.log", "bytes": n, "facts": "age"} for n in range(120)
    ]  # fmt: skip
    rows.append({"kind": "missing_object", "topic": "payments", "topic_id": "tid",
                 "segment_id": "lost", "key": "=a,b\x1b[31m", "bytes": 5, "facts": ""})  # fmt: skip
    file = findings_of(world, rows)
    table = told("findings", "--config", file)
    assert table.exit_code == 1
    assert "orders/0.log" in table.stdout
    assert "and 21 more" in table.stdout
    for asked in (("--kind", "missing_object"), ("--topic", "payments"), ("--topic", "tid")):
        lines = told("findings", *asked, "--json", "--config", file).stdout.splitlines()
        (found,) = map(json.loads, lines)
        assert (found["segment_id"], found["key"]) == ("lost", "=a,b\x1b[31m")
    people = told("findings", "--topic", "payments", "--config", file).stdout
    assert "lost" in people
    assert "\x1b" not in people
    text = told("findings", "--csv", "--config", file).stdout
    read = [*csv.DictReader(io.StringIO(text))]
    assert len(read) == 121
    assert read[-1]["key"] == "=a,b\x1b[31m"
    none = told("findings", "--topic", "none", "--config", file)
    assert (none.exit_code, none.stdout) == (0, "no findings\n")
    assert told("findings", "--csv", "--json", "--config", file).exit_code == 2
    absent = told("findings", "--run", "20200101T000000000Z", "--config", file)
    assert "no run has come so far" in absent.output + str(absent.exception)


def test_people_are_told_that_all_agrees_and_machines_all_that_was_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    night = Night(run="r", cluster="c", listed_at_ms=1, execute=False)
    reconcile._show(night, [], "/out")
    assert "storage and log agree" in capsys.readouterr().out
    night.refused = [f"reason {n}" for n in range(12)]
    reconcile._show(night, [("high", "missing_object", 1, 2, "do")], "/out")
    shown = capsys.readouterr().out
    assert "storage and log agree" not in shown
    assert "reason 9" in shown
    assert "reason 10" not in shown
    assert "and 2 reasons more" in shown


def test_a_run_that_is_told_to_stop_among_its_deletions_leaves_its_report(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd does where it takes longer than the unit allows."""

    said = threading.Event()

    def act(run: Run) -> None:
        run.judged = True
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # while it says what it has done
            said.set()

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Run, "_judge_and_act", act)
    monkeypatch.setattr(session, "session", lambda _options: contextlib.nullcontext())
    run = told("run", "--execute", "--config", configured(world))
    assert run.exit_code == reconcile.INCOMPLETE, run.output
    assert "it was told to stop" in run.stderr
    assert said.is_set(), "being told twice broke that off"
    summary = json.loads((world.home / "out" / "latest" / "summary.json").read_text())
    assert summary["broken_off"] == "it was told to stop"
    assert not [*(world.home / "out").glob("*/work")]
    assert signal.getsignal(signal.SIGTERM) == before


def on_terminal(*words: str) -> tuple[int, str]:
    """Run `rlmm` on a terminal of its own; return the exit code and all that it was shown."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # how a terminal ends whose other side is closed
            while piece := os.read(ours, 65_536):
                shown.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    with (
        os.fdopen(theirs, "w", encoding="utf-8") as terminal,
        contextlib.redirect_stdout(terminal),
        contextlib.redirect_stderr(terminal),
        pytest.raises(SystemExit) as ended,
    ):
        rlmm.main([*words])
    reader.join(60)
    os.close(ours)
    return int(ended.value.code or 0), shown.decode(errors="replace")
