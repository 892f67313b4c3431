"""Orders that take longer than a metadata partition is followed for an operator's question."""

from dataclasses import dataclass
from typing import Any, cast

from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.methods import Operator
from tests.unit.daemon.events import TP, of, until

NUMBER = of(TP)


@dataclass
class SlowRecovery:
    """Reads so much of the storage that a minute goes by."""

    manager: Manager

    async def recover(self, follower: Any, *, execute: bool) -> dict[str, Any]:
        follow_set = self.manager.fleet.follow_set
        assert follow_set is not None
        follow_set._demanded.clear()
        follow_set.changed.ring()
        kept = NUMBER in follow_set.wanted()
        follower.looked_for = execute
        return {"kept": kept}


async def test_what_a_long_recovery_looked_for_is_known_to_the_order_that_comes_next(rig):
    """Else `accept-loss` would be refused for ever: nobody has looked for the objects."""
    async with rig.manager() as manager:
        operator = Operator(manager, recovery=cast("Any", SlowRecovery(manager)))
        await until(lambda: manager.fleet.follow_set is not None)
        answer = await operator.log_recover(NUMBER, execute=True)
        assert answer["kept"]
        assert NUMBER in manager.fleet.follow_set.wanted()
        assert manager.fleet.followers[NUMBER].looked_for
