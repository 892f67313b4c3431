"""The house: first lines that a stranger understands, rooms of a size that one can look over."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlmm_daemon

Function = ast.FunctionDef | ast.AsyncFunctionDef
PACKAGE = Path(rlmm_daemon.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
RIDDLES = {"What", "Which", "Who", "Whose", "Whether", "How", "Why", "Where", "When", "One", "May"}
ROOM_MODULES_MAX = 20
MODULE_LINES_MAX = 450
POSITIONAL_MAX = 4
#: Functions that take one more, and may only become fewer. Those of the fold run once an event,
#: where a name for each argument costs more than it tells.
MORE_POSITIONAL = {
    "codec/record_suffix.py merged",
    "core/fold/cache.py PartitionCache._finish",
    "core/fold/epoch_index.py EpochIndex.finish",
    "core/fold/fold.py Fold._update",
    "daemon/following/writer.py Writer.begin",
}
CONSTRUCTOR_MAX = 8
#: Constructors that take more, and why.
LARGE_CONSTRUCTORS: dict[str, str] = {
    "adapters/event_log/embedded/log.py EmbeddedLog": "seams, where it lies, and its file's shape",
    "adapters/quorum/event_log/log.py QuorumLog": "seams, a replica, and how its members prove it",
    "adapters/kafka/event_log/fetcher.py PartitionFetcher": "one read position and all it feeds",
    "daemon/bucket/presence.py PresenceFile": "what the file says of its author, and its seams",
    "daemon/bucket/storage_keeper.py StorageKeeper": "joins bucket, log, cluster and process",
    "daemon/cleaner/cleaner.py Cleaner": "each fact that a deletion stands on comes from a seam",
    "daemon/copying/copier.py Copier": "files, log, bucket and limits meet in a copy",
    "daemon/following/fleet.py Fleet": "what all followers of a daemon share",
    "daemon/operator/gauges.py Gauges": "reads every room",
    "daemon/reading/read_caches.py ReadCaches": "three caches with the seams of all of them",
}
METHODS_MAX = 25
#: Classes with more methods, and may only get fewer. The clients have one for each request.
MORE_METHODS = {
    "adapters/event_log/embedded/log.py EmbeddedLog": 26,
    "adapters/event_log/embedded/partition.py Partition": 27,
    "adapters/event_log/embedded/writer.py Writer": 31,
    "adapters/kafka/event_log/producer.py Producer": 27,
    "client/_async/client.py AsyncClient": 39,
    "client/_sync/client.py Client": 39,
    "core/fold/cache.py PartitionCache": 42,
    "core/fold/fold.py Fold": 29,
    "core/fold/segment_table.py SegmentTable": 30,
    "daemon/copying/copier.py Copier": 27,
    "daemon/following/follower_state.py FollowerState": 26,
    "daemon/reading/chunk_cache.py ChunkCache": 33,
    "daemon/socket/server.py Server": 27,
}


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_modules_first_line_says_what_it_holds(path: Path):
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said, "it says what it is for"
    assert said.split()[0] not in RIDDLES, said.partition("\n")[0]


def test_a_room_can_be_looked_over():
    modules = Counter(name(path.parent) for path in MODULES if path.name != "__init__.py")
    assert {room for room, count in modules.items() if count > ROOM_MODULES_MAX} == set()


def test_a_module_has_a_length_that_one_reads_through():
    lines = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {each: count for each, count in lines.items() if count > MODULE_LINES_MAX} == {}


def functions(path: Path) -> Iterator[tuple[str, Function, int]]:
    """Yield each function with its class's name before its own, and how many come by position."""
    tree = ast.parse(path.read_text())
    owners = {id(f): c for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            owner = owners.get(id(each))
            of_class = owner is not None and "staticmethod" not in map(
                ast.unparse, each.decorator_list
            )
            positional = len(each.args.posonlyargs + each.args.args) - of_class
            yield f"{owner.name}.{each.name}" if owner else each.name, each, positional


def test_no_call_has_to_be_counted_out():
    found = {
        f"{name(path)} {called}"
        for path in MODULES
        for called, _, positional in functions(path)
        if positional > POSITIONAL_MAX
    }
    assert found == MORE_POSITIONAL


def test_an_object_that_needs_much_says_why():
    found = {
        f"{name(path)} {called.removesuffix('.__init__')}"
        for path in MODULES
        for called, each, positional in functions(path)
        if called.endswith(".__init__") and positional + len(each.args.kwonlyargs) > CONSTRUCTOR_MAX
    }
    assert found == LARGE_CONSTRUCTORS.keys()


def test_a_class_has_as_many_methods_as_one_keeps_in_mind():
    found = {
        f"{name(path)} {each.name}": count
        for path in MODULES
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.ClassDef)
        and (count := sum(isinstance(member, Function) for member in each.body)) > METHODS_MAX
    }
    assert {each: count for each, count in found.items() if count > MORE_METHODS.get(each, 0)} == {}
    assert set(MORE_METHODS) == set(found), "what became small stays so"


def test_tests_lie_in_the_room_of_what_they_test():
    rooms = {name(path.parent) for path in MODULES}
    here = Path(__file__).parent
    found = {str(path.parent.relative_to(here)) for path in here.rglob("test_*.py")}
    assert found - rooms == set()
