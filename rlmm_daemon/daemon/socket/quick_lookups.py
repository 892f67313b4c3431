"""Fast path of the two common look-ups, from frame to frame with nothing in between.

It knows one shape of request and one kind of answer, a success. Whatever else comes it leaves to
the session's general path, which begins it anew: look-ups change nothing.
"""

from collections.abc import Callable
from typing import Final, Literal, get_args

import msgspec

from rlmm_daemon.codec import api, frames
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.services import MetadataLookups
from rlmm_daemon.domain.ids import TopicIdPartition

Method = Literal["remote_log_segment_metadata", "next_segment_with_txn_index"]
METHODS: Final[tuple[str, ...]] = get_args(Method)
assert all(api.METHODS[name].params is api.EpochOffsetParams for name in METHODS)

#: User partitions that are remembered by their bytes on the wire.
KNOWN_MAX: Final = 65_536
#: Longer ones are not: a later version's peer may append fields, a bad one megabytes.
KNOWN_BYTES_MAX: Final = 512
_HEADER: Final = frames.HEADER_BYTES
_length_at: Final = frames.LENGTH.unpack_from
_record_frame: Final = frames.record_frame

_Lookup = Callable[[TopicIdPartition, int, int, Caller], bytes | None]


class _Params(msgspec.Struct, array_like=True, gc=False):
    """`api.EpochOffsetParams`, its partition left as bytes: those of one partition repeat."""

    partition: msgspec.Raw
    epoch: api.Int32
    offset: api.Int64
    timeout_ms: int | None = None
    until: bool = False


class _Request(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    kind: Literal[0]
    id: int
    method: Method
    params: _Params


_decode: Final = msgspec.msgpack.Decoder(_Request).decode
_decode_partition: Final = msgspec.msgpack.Decoder(api.Partition).decode


class QuickLookups:
    """What one session needs to answer them."""

    __slots__ = ("_caller", "_found_until", "_known", "_lookups")

    def __init__(self, lookups: MetadataLookups, caller: Caller) -> None:
        self._caller = caller
        self._known: dict[bytes, TopicIdPartition] = {}
        self._found_until = lookups.found_until
        self._lookups: dict[str, _Lookup] = {name: getattr(lookups, name) for name in METHODS}

    def answer(self, body: bytes) -> bytes:
        """Return the answer's frame.

        Raises:
            Exception: anything, for whatever is not a plain success.
        """
        request = _decode(body)
        params = request.params
        raw = bytes(params.partition)
        tp = self._known.get(raw) or self._remember(raw)
        if params.until and request.method == METHODS[0]:
            found = self._found_until(tp, params.epoch, params.offset, self._caller)
            return frames.result_frame(request.id, found)
        record = self._lookups[request.method](tp, params.epoch, params.offset, self._caller)
        return _record_frame(request.id, record)

    def answer_many(
        self, data: bytes, frame_bytes_max: int, burst_bytes: int
    ) -> tuple[list[bytes], int]:
        """Return the answers to whole frames in front, and how many bytes of `data` those took.

        Stops at the first frame that is anything else, and at about `burst_bytes` of answers.
        """
        at, size, waiting = 0, len(data), 0
        answers: list[bytes] = []
        answer = self.answer
        try:
            while size - at > _HEADER and waiting < burst_bytes:
                begin = at + _HEADER
                end = begin + _length_at(data, at)[0]
                if end > size or end - begin > frame_bytes_max:
                    break
                frame = answer(data[begin:end])
                answers.append(frame)
                waiting += len(frame)
                at = end
        except Exception:  # noqa: BLE001, S110 - the general path meets it again and answers it
            pass
        return answers, at

    def _remember(self, raw: bytes) -> TopicIdPartition:
        tp = _decode_partition(raw).to_domain()
        if len(raw) <= KNOWN_BYTES_MAX:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[raw] = tp
        return tp
