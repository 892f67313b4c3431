"""Known bugs, planted one at a time into the product's source as it is imported.

A mutant that the simulation no longer finds is a test gone blind. `seeds` is how many seeds it
took when it was recorded; it must be found within three times as many. The text to replace must
occur exactly once: a mutant that no longer fits fails loudly and is written anew.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Final

_LOG: Final = "rlmm_daemon.adapters.event_log.embedded"
#: The writer's one sync per batch, and how its failure is met.
_SYNC: Final = "            await file.fdatasync()\n"
_THEN: Final = """        except OSError as error:
            await self._after_failed_write(error)
            return
"""
_ANSWER: Final = "        self._answer(values, len(batch))\n"
#: How many times the recorded number of seeds a mutant may take.
SEEDS_FACTOR: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug: in `module`, `old` becomes `new`; `scenario` finds it within about `seeds`."""

    name: str
    module: str
    old: str
    new: str
    seeds: int
    scenario: str = "event_log"


MUTANTS: Final[Sequence[Mutant]] = (
    Mutant(
        name="acknowledge_before_sync",
        module=f"{_LOG}.writer",
        old=_SYNC + _THEN,
        new=_THEN,
        seeds=10,
    ),
    Mutant(
        name="no_directory_sync_of_a_new_file",
        module=f"{_LOG}.writer",
        old="    await context.disk.fsync_directory(directory)\n",
        new="",
        seeds=10,
    ),
    Mutant(
        name="recovery_trusts_cached_pages",
        module=f"{_LOG}.recovery",
        old="await files.write_all(file, last.position, buffer[last.position : walked.stop])",
        new="pass",
        seeds=825,
    ),
    Mutant(
        name="recovery_syncs_nothing",
        module=f"{_LOG}.recovery",
        old="    await _make_durable(disk, directory, path, buffer, walked)\n",
        new="",
        seeds=90,
    ),
    Mutant(
        name="failed_sync_is_tried_again",
        module=f"{_LOG}.writer",
        old=_SYNC + _THEN,
        new=(
            "            try:\n                await file.fdatasync()\n"
            "            except OSError:\n                await file.fdatasync()\n" + _THEN
        ),
        seeds=30,
    ),
    Mutant(
        name="short_write_ignored",
        module=f"{_LOG}.files",
        old="        rest = rest[written:]",
        new="        break",
        seeds=10,
    ),
    Mutant(
        name="torn_tail_accepted",
        module=f"{_LOG}.scan",
        old='        return "the batch\'s CRC does not fit"',
        new="        pass",
        seeds=110,
    ),
    Mutant(
        name="off_by_one_end_of_file",
        module=f"{_LOG}.scan",
        old="    if end > len(buffer):",
        new="    if end >= len(buffer):",
        seeds=10,
    ),
    Mutant(
        name="cut_without_sync",
        module=f"{_LOG}.files",
        old="    await file.truncate(size)\n    await file.fdatasync()",
        new="    await file.truncate(size)",
        seeds=60,
    ),
    Mutant(
        name="followers_see_unsynced_records",
        module=f"{_LOG}.writer",
        old=_SYNC + _THEN + _ANSWER,
        new="    " + _ANSWER + _SYNC + _THEN,
        seeds=10,
    ),
    Mutant(
        name="wrong_offset_for_the_second_of_a_batch",
        module=f"{_LOG}.writer",
        old="        for offset, waiting in enumerate(handed, base):",
        new="        for offset, waiting in ((base, waiting) for waiting in handed):",
        seeds=10,
    ),
    Mutant(
        name="epoch_begun_at_the_roll_forgotten",
        module=f"{_LOG}.recovery",
        old="        return EpochHistory(entry for entry in entries if entry[1] < newest)",
        new="        return EpochHistory(entry for entry in entries if entry[1] < newest - 1)",
        seeds=10,
    ),
    Mutant(
        name="generation_used_again",
        module=f"{_LOG}.identity",
        old="            generation = max(self._current, beyond) + 1",
        new="            generation = max(self._current, beyond, 0)",
        seeds=10,
    ),
    Mutant(
        name="generation_not_durable_before_use",
        module=f"{_LOG}.identity",
        old="            await self._write(generation, {})\n",
        new="",
        seeds=10,
    ),
    Mutant(
        name="reader_goes_past_the_synced_end",
        module=f"{_LOG}.reader",
        old="if self._base == self._journal.newest:",
        new="if False:",
        seeds=10,
    ),
    Mutant(
        name="failed_sync_called_a_refusal",
        module=f"{_LOG}.writer",
        old='            waiting.fail(OutcomeUnknown(f"the event log\'s write failed: {error}"))',
        new="            waiting.fail(self._full())",
        seeds=300,
    ),
    Mutant(
        name="directory_order_trusted",
        module=f"{_LOG}.files",
        old="    return sorted(int(match[1]) for match in matches if match)",
        new="    return [int(match[1]) for match in matches if match]",
        seeds=10,
    ),
)
BY_NAME: Final = {mutant.name: mutant for mutant in MUTANTS}
assert len(BY_NAME) == len(MUTANTS), "two mutants share a name"


class _Loader(importlib.machinery.SourceFileLoader):
    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        return compile(mutated(source or "", self.mutant), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None, f"no module {fullname}"
        assert spec.origin is not None
        loader = _Loader(fullname, spec.origin)
        loader.mutant = self._mutant
        spec.loader = loader
        return spec


def mutated(source: str, mutant: Mutant) -> str:
    """Return the source with the bug in it."""
    found = source.count(mutant.old)
    if found != 1:
        raise RuntimeError(f"mutant {mutant.name} no longer fits: its text occurs {found} times")
    return source.replace(mutant.old, mutant.new)


def plant(mutant: Mutant) -> None:
    """Plant the bug for the rest of this process, which must not have imported the module yet."""
    if mutant.module in sys.modules:
        raise RuntimeError(f"{mutant.module} is imported already: one process per mutant")
    sys.meta_path.insert(0, _Finder(mutant))
