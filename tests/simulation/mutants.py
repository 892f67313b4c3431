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

#: The writer's one write and sync per batch, and how its failure is met.
_PLACE: Final = "(file, self._journal.position, batch)\n"
_SYNC: Final = f"            await files.write_all_synced{_PLACE}"
_WRITE_ONLY: Final = f"            await files.write_all{_PLACE}"
_THEN: Final = """        except OSError as error:
            await self._after_failed_write(error)
            return
"""
_COUNT: Final = (
    "        self._context.on_sync(self._context.clock.monotonic() - began, len(values))\n"
)
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
    #: Where the hunt begins.
    first: int = 0


MUTANTS: Final[Sequence[Mutant]] = (
    Mutant(
        name="acknowledge_before_sync",
        module="rlmm_daemon.adapters.event_log.embedded.writer",
        old=_SYNC + _THEN,
        new=_WRITE_ONLY + _THEN,
        seeds=15,
    ),
    Mutant(
        name="no_directory_sync_of_a_new_file",
        module="rlmm_daemon.adapters.event_log.embedded.writer",
        old="    await context.disk.fsync_directory(directory)\n",
        new="",
        seeds=10,
    ),
    Mutant(
        name="recovery_trusts_cached_pages",
        module="rlmm_daemon.adapters.event_log.embedded.recovery",
        old="await files.write_all(file, last.position, buffer[last.position : walked.stop])",
        new="pass",
        seeds=2,
        first=1169,
    ),
    Mutant(
        name="recovery_syncs_nothing",
        module="rlmm_daemon.adapters.event_log.embedded.recovery",
        old="    await _make_durable(disk, directory, path, buffer, walked=walked)\n",
        new="",
        seeds=90,
    ),
    Mutant(
        name="failed_sync_is_tried_again",
        module="rlmm_daemon.adapters.event_log.embedded.writer",
        old=_SYNC + _THEN,
        new=(
            f"            try:\n    {_SYNC}"
            "            except OSError:\n                await file.fdatasync()\n" + _THEN
        ),
        seeds=45,
    ),
    Mutant(
        name="short_write_ignored",
        module="rlmm_daemon.ports.disk_writes",
        old="        rest = rest[written:]",
        new="        break",
        seeds=35,
    ),
    Mutant(
        name="torn_tail_accepted",
        module="rlmm_daemon.codec.scan",
        old='        return "the batch\'s CRC does not fit"',
        new="        pass",
        seeds=110,
    ),
    Mutant(
        name="off_by_one_end_of_file",
        module="rlmm_daemon.codec.scan",
        old="    if end > len(buffer):",
        new="    if end >= len(buffer):",
        seeds=10,
    ),
    Mutant(
        name="cut_without_sync",
        module="rlmm_daemon.ports.disk_writes",
        old="    await file.truncate(size)\n    await file.fdatasync()",
        new="    await file.truncate(size)",
        seeds=1200,
    ),
    Mutant(
        name="followers_see_unsynced_records",
        module="rlmm_daemon.adapters.event_log.embedded.writer",
        old=_SYNC + _THEN + _COUNT + _ANSWER,
        new=_WRITE_ONLY + "    " + _ANSWER + "            await file.fdatasync()\n" + _THEN,
        seeds=25,
    ),
    Mutant(
        name="wrong_offset_for_the_second_of_a_batch",
        module="rlmm_daemon.adapters.event_log.embedded.writer",
        old="        for offset, waiting in enumerate(handed, base):",
        new="        for offset, waiting in ((base, waiting) for waiting in handed):",
        seeds=10,
    ),
    Mutant(
        name="epoch_begun_at_the_roll_forgotten",
        module="rlmm_daemon.adapters.event_log.embedded.recovery",
        old="for entry in entries or () if entry[1] < bases[-1])",
        new="for entry in entries or () if entry[1] < bases[-1] - 1)",
        seeds=120,
    ),
    Mutant(
        name="generation_used_again",
        module="rlmm_daemon.adapters.event_log.embedded.identity",
        old="        generation = max(self._current, beyond, self.floor) + 1 + further",
        new="        generation = max(self._current, beyond, 0)",
        seeds=10,
    ),
    Mutant(
        name="generation_begun_at_the_open",
        module="rlmm_daemon.adapters.event_log.embedded.log",
        old="        await disk.fsync_directory(self.directory)\n        return clean\n",
        new="        await self._generations.begin()\n        return clean\n",
        seeds=10,
    ),
    Mutant(
        name="first_write_begins_no_generation",
        module="rlmm_daemon.adapters.event_log.embedded.writer",
        old="self._generation = await self._generations.begin(beyond=self._journal.epochs.latest)",
        new="self._generation = self._generations._current",
        seeds=10,
    ),
    Mutant(
        name="first_file_made_at_the_open",
        module="rlmm_daemon.adapters.event_log.embedded.recovery",
        old="        return Recovered(bases=[], position=0, next_offset=0,",
        new=(
            "        await context.disk.make_directory(directory)\n"
            "        path = files.segment_path(directory, 0)\n"
            "        file = await context.disk.open(path, write=True, create=True)\n"
            "        await files.cut(file, 0)\n"
            "        await context.disk.fsync_directory(directory)\n"
            "        return Recovered(bases=[0], position=0, next_offset=0,"
        ),
        seeds=10,
    ),
    Mutant(
        name="reader_goes_past_the_synced_end",
        module="rlmm_daemon.adapters.event_log.embedded.reader",
        old="if self._base == self._journal.newest:",
        new="if False:",
        seeds=10,
    ),
    Mutant(
        name="failed_sync_called_a_refusal",
        module="rlmm_daemon.adapters.event_log.embedded.writer",
        old='            waiting.told(OutcomeUnknown(f"the event log\'s write failed: {error}"))',
        new="            waiting.told(self._refusal.error)",
        seeds=300,
    ),
    Mutant(
        name="directory_order_trusted",
        module="rlmm_daemon.adapters.event_log.embedded.files",
        old="    return sorted(int(match[1]) for match in matches if match)",
        new="    return [int(match[1]) for match in matches if match]",
        seeds=10,
    ),
    Mutant(
        name="snapshot_ahead_of_its_offset",
        module="rlmm_daemon.core.snapshots.unsealing",
        old="checked=False), header.next_offset, header.leader_epoch)",
        new="checked=False), header.next_offset + 1, header.leader_epoch)",
        seeds=10,
        scenario="manager",
    ),
    Mutant(
        name="snapshot_not_synced",
        module="rlmm_daemon.daemon.following.snapshots",
        old="            await file.fdatasync()\n",
        new="",
        seeds=40,
        scenario="manager",
    ),
    Mutant(
        name="snapshot_renamed_and_its_directory_not_synced",
        module="rlmm_daemon.daemon.following.snapshots",
        old="        await self._disk.fsync_directory(self._directory)\n        for _, name in gen",
        new="        for _, name in gen",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="snapshot_written_under_its_own_name",
        module="rlmm_daemon.daemon.following.snapshots",
        old='        temporary = f"{self._directory}/{partition}-{self._attempts}.tmp"\n',
        new="        temporary = path\n",
        seeds=2,
        scenario="manager",
        first=101,
    ),
    Mutant(
        name="snapshot_forgets_what_came_while_it_was_written",
        module="rlmm_daemon.core.snapshots.rebasing",
        old="            fold.again(present, since)\n",
        new="",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="snapshot_notes_events_too_late",
        module="rlmm_daemon.daemon.following.snapshotter",
        old="            image = await self._store.opened(written.path)\n",
        new=(
            "            image = await self._store.opened(written.path)\n"
            "            fold.journal = {}\n"
        ),
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="damaged_table_believed",
        module="rlmm_daemon.codec.snapshot",
        old="    if crc != entry.crc:\n",
        new="    if False:\n",
        seeds=45,
        scenario="manager",
    ),
    Mutant(
        name="table_called_read_through_that_was_not",
        module="rlmm_daemon.daemon.following.snapshots",
        old="                    judge_table(entry, await _checksum(file, entry))\n",
        new="",
        seeds=40,
        scenario="manager",
    ),
    Mutant(
        name="what_was_put_aside_is_lost",
        module="rlmm_daemon.core.fold.user_partitions",
        old="            self._apply_aside(cache, offset, value)\n",
        new="            pass\n",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="removed_row_comes_back",
        module="rlmm_daemon.core.fold.segment_table",
        old="            changes[segment_id] = None\n",
        new="            changes.pop(segment_id, None)\n",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="snapshot_loses_highest_offsets",
        module="rlmm_daemon.core.snapshots.sealing",
        old="EpochTable(epoch=epoch, highest=cache.epochs.highest(epoch))",
        new="EpochTable(epoch=epoch, highest=None)",
        seeds=10,
        scenario="manager",
    ),
    Mutant(
        name="ready_one_record_early",
        module="rlmm_daemon.daemon.following.confirmation",
        old="        self.target = end if self.target is None else max(self.target, end)",
        new="        self.target = max(0, end - 1)",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="not_ready_answers_as_if_empty",
        module="rlmm_daemon.daemon.metadata.gates",
        old="        if allowed is Permit.NONE or (",
        new="        if allowed is None and (",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="gate_ignored_after_a_restart",
        module="rlmm_daemon.daemon.metadata.gates",
        old="        if not self._assignment.gate_open:",
        new="        if self._assignment.gate_open is None:",
        seeds=10,
        scenario="manager",
    ),
    Mutant(
        name="waiter_completed_by_another_record",
        module="rlmm_daemon.daemon.following.pending",
        old="        append = self._by_offset.get(offset)\n        if append is not None:\n",
        new=(
            "        for append in list(self._by_subject.values()):\n"
            "            self.conclude(append, outcome)\n"
            "        append = self._by_offset.get(offset)\n        if append is not None:\n"
        ),
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="acknowledged_before_its_apply",
        module="rlmm_daemon.daemon.following.pending",
        old="        append.offset = offset\n",
        new=(
            "        append.offset = offset\n"
            "        from rlmm_daemon.core.fold.outcome import Repeated\n"
            "        append.hear(Repeated(append.value, None))\n"
        ),
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="repeat_is_appended_again",
        module="rlmm_daemon.daemon.following.writer",
        old="        if isinstance(fold.validate(event), Repeat):",
        new="        if fold.validate(event) is None:",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="write_in_flight_not_awaited",
        module="rlmm_daemon.daemon.following.writer",
        old="        if subject in self._pending:\n            raise MustWait",
        new="        pass",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="finished_segment_stays_in_both_sets",
        module="rlmm_daemon.core.fold.epoch_index",
        old="self.unreferenced.pop(segment_id, None)\n                return True\n",
        new="return True\n",
        seeds=10,
        scenario="manager",
    ),
    Mutant(
        name="apply_of_the_wrong_offset_completes",
        module="rlmm_daemon.daemon.following.pending",
        old="        self._by_offset[offset] = append",
        new="        self._by_offset[offset + 1] = append",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="deadline_of_a_write_not_watched",
        module="rlmm_daemon.daemon.following.writer",
        old="        if append.due < self._due:",
        new="        if append.due < 0:",
        seeds=40,
        scenario="manager",
    ),
    Mutant(
        name="append_before_the_opening_lost",
        module="rlmm_daemon.adapters.event_log.embedded.partition",
        old="        early, self._early = self._early, deque()",
        new="        early, self._early = deque(), deque()",
        seeds=20,
    ),
    Mutant(
        name="removal_keeps_segments",
        module="rlmm_daemon.core.fold.cache",
        old="            if state is PartitionDeleteState.DELETE_PARTITION_FINISHED:\n",
        new="            if state is None:\n",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="second_life_stays_removed",
        module="rlmm_daemon.core.fold.cache",
        old="            self.delete_state = None\n        _, self.writer",
        new="            pass\n        _, self.writer",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="shadowed_segment_forgotten",
        module="rlmm_daemon.core.fold.epoch_index",
        old="                self.third[former] = None",
        new="                pass",
        seeds=20,
        scenario="manager",
    ),
    Mutant(
        name="compacted_file_not_synced",
        module="rlmm_daemon.adapters.event_log.embedded.compacting",
        old="        await file.fdatasync()\n        self.sizes.append(self._position)\n",
        new="        self.sizes.append(self._position)\n",
        seeds=10,
    ),
    Mutant(
        name="compaction_decided_before_its_files_have_names",
        module="rlmm_daemon.adapters.event_log.embedded.compacted_files",
        old="    await disk.fsync_directory(directory)  # their names, too\n",
        new="",
        seeds=5,
        first=3786,
    ),
    Mutant(
        name="replaced_files_removed_before_the_decision",
        module="rlmm_daemon.adapters.event_log.embedded.compacted_files",
        old="    await disk.fsync_directory(directory)  # their names, too\n",
        new=(
            "    for base in compaction.replaced:\n"
            "        await disk.remove(files.segment_path(directory, base))\n"
            "    await disk.fsync_directory(directory)\n"
        ),
        seeds=2,
        first=89,
    ),
    Mutant(
        name="compaction_done_before_its_names_are_durable",
        module="rlmm_daemon.adapters.event_log.embedded.compacted_files",
        old="    await disk.fsync_directory(directory)\n    done =",
        new="    done =",
        seeds=5,
        first=622,
    ),
    Mutant(
        name="compaction_undone_by_the_next_open",
        module="rlmm_daemon.adapters.event_log.embedded.compacted_files",
        old="        await put_in_place(disk, directory, found)\n",
        new="",
        seeds=2,
        first=221,
    ),
    Mutant(
        name="failed_decision_called_none",
        module="rlmm_daemon.adapters.event_log.embedded.partition",
        old="                failed.append(error)\n",
        new=(
            "                failed.append(error)\n"
            "                await compacted_files.discard(disk, self._directory)\n"
        ),
        seeds=10,
        first=2285,
    ),
    Mutant(
        name="reader_takes_a_files_new_name_for_damage",
        module="rlmm_daemon.adapters.event_log.embedded.partition",
        old="                if placing is None and not reader.is_behind:\n",
        new="                if True:\n",
        seeds=5,
        first=2223,
    ),
    Mutant(
        name="two_compactions_at_once",
        module="rlmm_daemon.adapters.event_log.embedded.partition",
        old="        async with self._compacting:\n            return",
        new="        if self._compacting:\n            return",
        seeds=40,
    ),
    Mutant(
        name="compaction_forgets_highest_offsets",
        module="rlmm_daemon.core.snapshots.compaction",
        old="            or segment_id in self._makers\n",
        new="",
        seeds=10,
        scenario="manager",
    ),
    Mutant(
        name="compaction_takes_a_begun_deletion_for_an_ended_one",
        module="rlmm_daemon.core.snapshots.compaction",
        old="        elif state == _GONE:\n",
        new="        elif state != 0:\n",
        seeds=10,
        scenario="manager",
    ),
    Mutant(
        name="compaction_forgets_that_a_partition_is_removed",
        module="rlmm_daemon.core.snapshots.compaction",
        old="        self._offsets.add(offset)\n        self._marks.append(offset)\n",
        new="        self._marks.append(offset)\n",
        seeds=30,
        scenario="manager",
    ),
    Mutant(
        name="what_was_dropped_is_not_told",
        module="rlmm_daemon.adapters.event_log.embedded.reader",
        old="                    dropped_to = found.next_offset\n",
        new="                    dropped_to = 0\n",
        seeds=10,
        scenario="manager",
    ),
    Mutant(
        name="what_was_dropped_is_called_lost",
        module="rlmm_daemon.adapters.event_log.embedded.reader",
        old="                if found.compacted:\n",
        new="                if found is None:\n",
        seeds=10,
        scenario="manager",
    ),
    Mutant(
        name="offsets_move_up_where_some_were_dropped",
        module="rlmm_daemon.adapters.event_log.embedded.rewriting",
        old="        self._rows.append((offset, value))\n",
        new="        self._rows.append((self._begin + len(self._rows), value))\n",
        seeds=10,
        scenario="manager",
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
