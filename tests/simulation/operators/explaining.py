"""Operators who ask `rlmm explain` of each user partition, and type what it names.

Whatever it names they mean: what it says to delete is gone for good. So it may name the deletion of
nothing that was acknowledged, and the purge of no topic that exists.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import SegmentId, TopicId, TopicIdPartition, uuid_bytes
from tests.simulation.operators.people import ORDERS, Person, named_in

#: Commands that only look: whoever types them knows more, and nothing has changed.
LOOKS: Final = (
    "rlmm cleanup", "rlmm explain", "rlmm lookup", "rlmm partitions", "rlmm segments",
    "rlmm status", "rlmm storage verify", "rlmm tail", "kafka-topics.sh", "ls -l", "systemctl",
)  # fmt: skip
#: It looks, too; what somebody does who is sent there for a log that is not there, `Person` says.
DOCTOR: Final = "rlmm doctor"
NOT_THERE: Final = ("log_missing", "log_foreign", "no_topic_id")


class Asker(Person):
    """Whoever asks why a partition answers as it does."""

    async def named(self) -> list[str]:
        """Return the commands that explanations name, and others' of no user partition."""
        asked = dict.fromkeys([each async for each in self._explained()])
        # Of a metadata partition in which no user partition lies nobody can ask.
        seen = {self._number(each) for each in self.books.partitions}
        count = self.books.partition_count
        rest = [str(n) for n in range(count) if n not in seen]
        others = [each for each in await super().named() if each.rpartition(" ")[2] in rest]
        return [*asked, *others]

    def _number(self, partition: TopicIdPartition) -> int:
        count = self.books.partition_count
        return metadata_partition(partition.topic_id, partition.partition, count)

    async def _explained(self) -> Any:
        for partition in self.books.partitions:
            try:
                answer = await self.daemon.standing.explain(str(partition))
            except RlmmError as error:
                self.daemon.life.loop.note(f"no explanation of {partition}: {error!r}")
                continue
            for command in _commands(answer):
                words, is_doctor = command.split(), command == DOCTOR
                if command.startswith(LOOKS) or (is_doctor and answer["cause"] not in NOT_THERE):
                    continue
                known = any(words[1:][: len(n.split())] == n.split() for n in ORDERS)
                assert known or is_doctor, f"{command} is named, and nobody types it"
                told = f"explained: {partition} {answer['cause']}: {command}"
                self.daemon.life.loop.note(told)
                self._judge(words[1:])
                yield command

    def _judge(self, words: list[str]) -> None:
        if words[0] == "delete":
            segment = self.books.by_id[SegmentId(uuid_bytes(words[2]))]
            gone = segment.first.partition.topic_id in self.books.gone
            if segment.promised and not (segment.doubted or gone):
                self.books.fail(f"the deletion of {segment.name} is named, which was acknowledged")
        if words[0] == "purge" and TopicId(uuid_bytes(words[1])) not in self.books.gone:
            self.books.fail(f"a purge of {words[1]} is named, and that topic exists")

    async def obey(self, command: str) -> None:
        """Type a command, and what it says to type next."""
        await super().obey(command)
        if command.startswith("rlmm purge"):
            await self.type(f"{command} --execute")

    def following(self, answer: Any) -> str:
        """Return what is typed next: also what ends a hold, if nothing more can be put back."""
        named = answer.get("next") if isinstance(answer, Mapping) else None
        if isinstance(named, str) and named.startswith("rlmm partition end-hold"):
            return f"{named} --execute"
        return super().following(answer)


def _commands(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the commands of an explanation: the named ones, and those in its words."""
    rows = [answer, *answer["also"]]
    for row in rows:
        if row["next_command"]:
            yield row["next_command"]
        yield from filter(None, [named_in(row["sentence"])])
    yield from filter(None, map(named_in, answer["evidence"]))
