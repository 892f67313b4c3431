"""Deletes without an answer: S3 may carry one out later, and would take what was stored since.

Whoever repeats a copy under its segment id stores under the same keys. So nothing is stored under a
key while a delete of it may still be on its way.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError

from rlmm_daemon.adapters.storage.s3.errors import code_of
from rlmm_daemon.domain.errors import StorageUnavailable

#: S3 refuses a request that was signed longer ago.
LATE_SECONDS: Final = 900.0
#: Beyond it those that were sent first are forgotten; each takes some 200 bytes.
KEYS_MAX: Final = 100_000


class LateDeletes:
    """Keys of this process's deletes that were sent and not answered, and until when they count."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        #: The one that was sent first comes first.
        self._until: OrderedDict[str, float] = OrderedDict()

    @contextmanager
    def sent(self, keys: Collection[str]) -> Iterator[None]:
        """Note keys unless the block, which sends one delete of them, brings an answer."""
        try:
            yield
        except BaseException as error:
            if not _is_settled(error):
                self._note(keys)
            raise

    def _note(self, keys: Collection[str]) -> None:
        now = self._monotonic()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        for key in keys:
            self._until[key] = now + LATE_SECONDS
            self._until.move_to_end(key)
        while len(self._until) > KEYS_MAX:
            self._until.popitem(last=False)

    def require_none(self, keys: Collection[str]) -> None:
        """Return if no delete of these keys may come yet.

        Raises:
            StorageUnavailable: one may.
        """
        now = self._monotonic()
        for key in keys:
            if (left := self._until.get(key, now) - now) > 0:
                raise StorageUnavailable(
                    f"a delete of {key} got no answer, and the storage may still carry it out: "
                    f"copy the segment under a new id, or under this one in {left:.0f} s",
                    reason="late_delete",
                    key=key,
                )


def _is_settled(error: BaseException) -> bool:
    """Whether the storage itself answered, or never heard of the call."""
    if isinstance(error, ClientError):
        return not code_of(error).isdigit()  # a mere status is the word of something in between
    return isinstance(error, ConnectTimeoutError | EndpointConnectionError)
