"""Snapshots of the simulated replicas: made, moved behind, sent in pieces, and installed."""

from typing import TYPE_CHECKING, Final

from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.messages import Answer, Code, FetchSnapshotAnswer
from tests.simulation.quorum.node import Image, Node

if TYPE_CHECKING:
    from tests.simulation.quorum.world import World

PIECE_BYTES: Final = 3
#: A log's start moves so much later than its snapshot was made.
MOVE_MS: Final = 50


class Images:
    """What snapshots of one seed there are, by what they end at."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._known: dict[LogPoint, Image] = {}

    def make(self, node: Node) -> None:
        """Make a snapshot at the end of some batch that is committed."""
        world, replica = self._world, node.replica
        if replica is None or not node.is_up or node.is_busy or replica.installing is not None:
            return
        ends = [each for each in node.disk.batches if each.end <= node.applied]
        if not ends:
            return
        last = world.rng.choice(ends)
        point = LogPoint(last.epoch, last.end)
        sets = [each for each in replica.voters.sets if each.offset < point.end]
        if not sets or any(known.end >= point.end for known in node.disk.images):
            return
        size = world.rng.randint(1, world.shape.snapshot_bytes_max)
        node.disk.images[point] = Image(point, sets[-1], size)
        node.take(inputs.SnapshotMade(point))
        world.outcome.counts["snapshots"] += 1
        if world.rng.random() < 0.7:
            life = node.life
            world.at(world.now + MOVE_MS, lambda: self._move_start(node, life, point))

    def _move_start(self, node: Node, life: int, point: LogPoint) -> None:
        replica, disk = node.replica, node.disk
        if node.life != life or replica is None or node.is_busy or replica.installing is not None:
            return
        if point not in disk.images or point not in replica.log.snapshots:
            return
        if point.end <= disk.start or disk.synced < point.end:
            return
        node.take(inputs.StartMoved(point))
        disk.start, disk.base_epoch = point.end, point.epoch
        disk.batches = [batch for batch in disk.batches if batch.base >= point.end]
        for other in [each for each in disk.images if each.end < point.end]:
            del disk.images[other]

    def piece(self, node: Node, answer: Answer, point: LogPoint, at: int) -> Answer:
        """Return a piece of a snapshot, or that it ends before."""
        image = node.disk.images[point]
        self._known[point] = image  # whoever made it may have removed it before it is whole
        size = max(0, min(PIECE_BYTES, image.size - at))
        return FetchSnapshotAnswer(
            error=Code.NONE if at < image.size else Code.POSITION_OUT_OF_RANGE,
            epoch=answer.epoch,
            leader=answer.leader,
            snapshot=point,
            size=image.size,
            position=at,
            piece=bytes(size),
        )

    def install(self, node: Node, point: LogPoint) -> None:
        """Have a whole snapshot take the log's place, as soon as it is synced."""
        image, life = self._known[point], node.life

        def installed() -> None:
            if node.life != life:
                return
            disk = node.disk
            disk.images = {point: image}
            disk.cuts += 1
            disk.start = disk.synced = point.end
            disk.base_epoch, disk.batches = point.epoch, []
            self._world.outcome.counts["installed"] += 1
            node.take(inputs.SnapshotInstalled(point, image.voters))

        self._world.after_sync(installed)
