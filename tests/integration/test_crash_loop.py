"""A bug that comes back: three crashes set one partition aside, and the rest serve."""

import textwrap

from tests.support.stocked_daemon import eventually, fails_of, make, restarts_clean

# Damage in the event log's files.


# A bug that comes back.

BUG = """
    import sys
    from importlib.abc import MetaPathFinder
    from importlib.machinery import PathFinder
    from pathlib import Path


    class Planter(MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != "rlmm_daemon.core.fold.fold":
                return None
            spec = PathFinder.find_spec(name, path)
            plain = spec.loader.exec_module

            def exec_module(module):
                plain(module)
                apply = module.Fold.apply

                def crash(fold, offset, value):
                    if fold.partition == {number} and Path({switch!r}).exists():
                        raise ZeroDivisionError("planted")
                    return apply(fold, offset, value)

                module.Fold.apply = crash

            spec.loader.exec_module = exec_module
            return spec


    sys.meta_path.insert(0, Planter())
"""


def test_a_partition_that_crashes_the_process_three_times_is_set_aside(tmp_path, monkeypatch):
    it = make(tmp_path / "daemon")
    switch = tmp_path / "switch"
    planted = tmp_path / "planted"
    planted.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(planted))
    with it.daemon:
        it.stock()
        eventually((it.state_dir / "announced.json").exists)
        it.daemon.kill()
        bug = textwrap.dedent(BUG).format(number=it.number(0), switch=str(switch))
        (planted / "sitecustomize.py").write_text(bug)
        switch.touch()
        for _ in range(3):
            it.daemon.start()
            assert it.daemon.process is not None
            assert it.daemon.process.wait(20) == 1
            it.daemon.kill()
        it.start()
        it.announce()
        fails_of(it, "crash_loop")
        assert it.explain(0)["next_command"] == f"rlmm partition retry {it.number(0)}"
        assert f"[{it.number(0)}]" in it.daemon.output.read_text()
        switch.unlink()
        it.run_next(0)
        assert it.row(0)["state"] == "ready"
        restarts_clean(it)
