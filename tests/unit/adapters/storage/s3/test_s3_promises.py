"""Copies and deletes on an S3 whose answers, or whose caller's files, are others than before."""

import os
import threading
from typing import Any

import pytest
from crc32c import crc32c

from rlmm_daemon.adapters.storage.s3.options import MIB
from rlmm_daemon.adapters.storage.s3.reading import checksum_text
from rlmm_daemon.domain.errors import ChecksumMismatch, RlmmError, StorageUnavailable
from rlmm_daemon.ports.sources import FileSource
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer
from tests.unit.adapters.storage.s3.scripted_s3 import (
    ScriptedS3,
    StoringS3,
    ok,
    refusal,
    refuses,
    storage_on,
)

IN_PARTS: dict[str, Any] = {"part_size_bytes": MIB, "multipart_threshold_bytes": MIB}
#: By the checksum of a part of them: a comparison in one direction alone is not enough.
LOWER, HIGHER = sorted((b"A" * 64, b"B" * 64), key=lambda block: crc32c(block * (MIB // 64)))


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("pair", [(LOWER, HIGHER), (HIGHER, LOWER)])
async def test_a_retry_sends_what_the_first_attempt_sent_or_nothing(pair, *, in_parts):
    s3 = StoringS3()
    operation = "upload_part" if in_parts else "put_object"
    taken = s3.answers[operation]
    refused = [refusal(503, "SlowDown")]

    async def once_refused(**given: Any) -> Any:
        answer = await taken(**given)
        if refused:
            source.body = then
            raise refused.pop()
        return answer

    s3.answers[operation] = once_refused
    storage = storage_on(s3, **(IN_PARTS if in_parts else {}))
    first, then = (block * (2 * MIB // 64 if in_parts else 1) for block in pair)
    source = Buffer(first)
    with pytest.raises(ChecksumMismatch, match="changed while it was"):
        await storage.put_segment([(ObjectKind.LOG, "a.log", source)], progress=Progress())
    assert s3.calls.count("complete_multipart_upload") == 0
    await storage.close()


@pytest.mark.parametrize("in_parts", [False, True])
async def test_no_source_is_looked_at_on_the_loop(tmp_path, monkeypatch, in_parts):
    """The broker's disk may be a mount that hangs: look-ups and writes would hang with it."""
    (tmp_path / "11.log").write_bytes(b"M" * (2 * MIB))
    source = FileSource(os.open(tmp_path / "11.log", os.O_RDONLY), "11.log")
    looked, real = set[int](), os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        if descriptor == source.fileno():
            looked.add(threading.get_ident())
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", fstat)
    storage = storage_on(StoringS3(), **(IN_PARTS if in_parts else {}))
    await storage.put_segment([(ObjectKind.LOG, "a.log", source)], progress=Progress())
    assert looked
    assert threading.get_ident() not in looked
    await storage.close()
    source.close()


@pytest.mark.parametrize("found", ["it", "lower", "higher", "shorter", "longer", "none"])
async def test_a_completion_whose_answer_was_lost_is_believed_only_by_what_is_there(found):
    body = b"M" * (2 * MIB)
    s3 = StoringS3()
    complete = s3.answers["complete_multipart_upload"]
    crc, size = crc32c(body), len(body)
    there = {
        "it": (crc, size), "lower": (crc - 1, size), "higher": (crc + 1, size),
        "shorter": (crc, size - 1), "longer": (crc, size + 1),
    }.get(found)  # fmt: skip

    def lost(**given: Any) -> Any:
        complete(**given)
        if there is None:
            s3.objects.clear()
        else:
            s3.objects["a.log"] = there
        raise refusal(404, "NoSuchUpload")

    def head(*, Key: str, **_: Any) -> Any:
        if Key not in s3.objects:
            raise refusal(404, "404")
        crc32c, size = s3.objects[Key]
        return ok(ContentLength=size, ChecksumCRC32C=checksum_text(crc32c))

    def absent(**_: Any) -> Any:
        raise refusal(404, "NoSuchKey")

    s3.answers |= {"complete_multipart_upload": lost, "head_object": head, "get_object": absent}
    storage = storage_on(s3, attempts_max=1, **IN_PARTS)
    rows = [(ObjectKind.LOG, "a.log", Buffer(body))]
    if found == "it":
        (stored,) = await storage.put_segment(rows, progress=Progress())
        assert (stored.size, stored.crc32c) == (size, crc)
    else:
        with pytest.raises(RlmmError):
            await storage.put_segment(rows, progress=Progress())
    await storage.close()


@pytest.mark.parametrize("status", [200, 203, 205, 302])
async def test_a_delete_of_one_key_is_believed_only_by_the_answer_to_a_delete(status):
    s3 = ScriptedS3(
        delete_objects=refuses(501, "NotImplemented"),
        delete_object=lambda **_: {"ResponseMetadata": {"HTTPStatusCode": status}},
    )
    storage = storage_on(s3, attempts_max=1)
    outcome = await storage.delete(["a.index"])
    assert isinstance(outcome["a.index"], RlmmError)
    await storage.close()


@pytest.mark.parametrize(
    ("refused", "gone"), [((404, "NoSuchKey"), True), ((403, "AccessDenied"), False)]
)
async def test_a_delete_of_one_key_that_is_absent_is_done(refused, *, gone):
    s3 = ScriptedS3(delete_objects=refuses(501, "NotImplemented"), delete_object=refuses(*refused))
    storage = storage_on(s3, attempts_max=1)
    outcome = await storage.delete(["a.index"])
    assert outcome["a.index"] is None if gone else isinstance(outcome["a.index"], RlmmError)
    await storage.close()


@pytest.mark.parametrize(
    ("refused", "gone"), [((404, "NoSuchKey"), True), ((403, "AccessDenied"), False)]
)
async def test_a_key_that_no_answer_names_is_gone_only_if_a_look_says_so(refused, *, gone):
    s3 = ScriptedS3(
        delete_objects=lambda **_: ok(),
        head_object=refuses(*refused),
        get_object=refuses(*refused),
    )
    storage = storage_on(s3, attempts_max=1)
    outcome = await storage.delete(["a.index"])
    assert outcome["a.index"] is None if gone else isinstance(outcome["a.index"], RlmmError)
    await storage.close()


@pytest.mark.parametrize("lost", ["", "a.index"])
async def test_a_repeat_that_fails_keeps_the_log_of_the_copy_before_it(lost):
    """A finished segment may name it."""
    s3 = StoringS3()
    storage = storage_on(s3)
    rows = [(ObjectKind.OFFSET, "a.index", Buffer(b"i")), (ObjectKind.LOG, "a.log", Buffer(LOWER))]
    await storage.put_segment(rows, progress=Progress())
    s3.objects.pop(lost, None)
    again = Progress()
    head = s3.answers["head_object"]

    def denied_log(*, Key: str, **given: Any) -> Any:
        if Key == "a.log":
            raise refusal(403, "AccessDenied")
        return head(Key=Key, **given)

    s3.answers |= {"head_object": denied_log, "get_object": refuses(403, "AccessDenied")}
    with pytest.raises(StorageUnavailable):
        await storage.put_segment(rows, progress=Progress())
    assert "a.log" in s3.objects
    s3.answers["head_object"] = head
    await storage.put_segment(rows, progress=again)
    assert again.parts_done == len(rows)
    await storage.close()


async def test_a_first_copy_that_cannot_be_verified_leaves_no_log():
    s3 = StoringS3()
    head = s3.answers["head_object"]

    def denied_log(*, Key: str, **given: Any) -> Any:
        if Key == "a.log":
            raise refusal(403, "AccessDenied")
        return head(Key=Key, **given)

    s3.answers |= {"head_object": denied_log, "get_object": refuses(403, "AccessDenied")}
    storage = storage_on(s3)
    rows = [(ObjectKind.OFFSET, "a.index", Buffer(b"i")), (ObjectKind.LOG, "a.log", Buffer(LOWER))]
    with pytest.raises(StorageUnavailable):
        await storage.put_segment(rows, progress=Progress())
    assert set(s3.objects) == {"a.index"}
    await storage.close()


async def test_a_companion_that_fails_has_no_log_removed_that_was_never_sent():
    s3 = StoringS3()
    s3.answers |= dict.fromkeys(("head_object", "get_object"), refuses(403, "AccessDenied"))
    storage = storage_on(s3)
    rows = [(ObjectKind.OFFSET, "a.index", Buffer(b"i")), (ObjectKind.LOG, "a.log", Buffer(LOWER))]
    with pytest.raises(StorageUnavailable):
        await storage.put_segment(rows, progress=Progress())
    assert "delete_object" not in s3.calls
    await storage.close()


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("what", ["crc", "size"])
@pytest.mark.parametrize("in_parts", [False, True])
async def test_an_object_that_is_described_as_another_one_is_no_copy(by, what, *, in_parts):
    s3 = StoringS3()
    body = b"M" * (2 * MIB if in_parts else 64)

    def head(*, Key: str, **_: Any) -> Any:
        crc, size = s3.objects[Key]
        crc, size = (crc + by, size) if what == "crc" else (crc, size + by)
        return ok(ContentLength=size, ChecksumCRC32C=checksum_text(crc))

    s3.answers["head_object"] = head
    storage = storage_on(s3, **(IN_PARTS if in_parts else {}))
    with pytest.raises(ChecksumMismatch, match="other bytes"):
        await storage.put_segment([(ObjectKind.LOG, "a.log", Buffer(body))], progress=Progress())
    await storage.close()


async def test_a_buffer_is_sent_as_it_was_when_its_checksum_was_taken():
    s3 = StoringS3()
    put = s3.answers["put_object"]
    source = Buffer(LOWER)

    async def put_later(**given: Any) -> Any:
        source.body = HIGHER
        return await put(**given)

    s3.answers["put_object"] = put_later
    storage = storage_on(s3)
    (stored,) = await storage.put_segment([(ObjectKind.LOG, "a.log", source)], progress=Progress())
    assert s3.objects["a.log"] == (stored.crc32c, stored.size) == (crc32c(LOWER), len(LOWER))
    await storage.close()


async def test_a_part_that_is_refused_ends_its_upload_which_nobody_else_touches_meanwhile():
    s3, busy = StoringS3(), list[set[str]]()
    storage = storage_on(s3, attempts_max=1, **IN_PARTS)

    def refused(**_: Any) -> Any:
        busy.append(set(storage._leftovers._busy))
        raise refusal(403, "AccessDenied")

    s3.answers["upload_part"] = refused
    index, log = Buffer(b"i"), Buffer(b"M" * (2 * MIB))
    rows = [(ObjectKind.OFFSET, "a.index", index), (ObjectKind.LOG, "a.log", log)]
    progress = Progress()
    with pytest.raises(StorageUnavailable):
        await storage.put_segment(rows, progress=progress)
    assert progress.bytes_total == index.size + log.size
    assert s3.calls.count("abort_multipart_upload") == 1
    assert all(keys == {"a.log"} for keys in busy)
    await storage.close()


async def test_a_batch_of_deletes_is_asked_to_name_what_it_deleted():
    """Else each key would have to be looked for."""
    asked: list[Any] = []

    def delete(*, Delete: Any, **_: Any) -> Any:
        asked.append(Delete)
        return ok(Deleted=Delete["Objects"])

    s3 = ScriptedS3(delete_objects=delete)
    storage = storage_on(s3)
    assert await storage.delete(["a.index"]) == {"a.index": None}
    assert asked == [{"Objects": [{"Key": "a.index"}], "Quiet": False}]
    assert s3.calls == ["delete_objects"]
    await storage.close()


async def test_an_upload_whose_beginning_was_not_answered_is_looked_for_behind_the_copy():
    """Two may have begun: one of them costs storage until it is aborted."""
    s3 = StoringS3()
    create, lost = s3.answers["create_multipart_upload"], [refusal(500, "InternalError")]

    def once_lost(**given: Any) -> Any:
        if lost:
            raise lost.pop()
        return create(**given)

    s3.answers |= {
        "create_multipart_upload": once_lost,
        "list_multipart_uploads": lambda **_: ok(IsTruncated=False),
    }
    storage = storage_on(s3, **IN_PARTS)
    rows = [(ObjectKind.LOG, "a.log", Buffer(b"M" * (2 * MIB)))]
    await storage.put_segment(rows, progress=Progress())
    assert s3.calls.count("list_multipart_uploads") == 1
    assert storage._leftovers.suspects == ["a.log"], "the server may hear of it later"
    await storage.close()


async def test_a_batch_of_which_one_key_is_throttled_is_slowed_down():
    answers = [
        [{"Key": "a.index", "Code": "InternalError"}, {"Key": "b.index", "Code": "SlowDown"}],
        [],
    ]

    def delete(*, Delete: Any, **_: Any) -> Any:
        failed = answers.pop(0)
        gone = [row for row in Delete["Objects"] if row["Key"] not in {r["Key"] for r in failed}]
        return ok(Errors=failed, Deleted=gone)

    storage = storage_on(ScriptedS3(delete_objects=delete), writes_max=8)
    assert set((await storage.delete(["a.index", "b.index"])).values()) == {None}
    assert storage.stats.throttled == 1
    assert storage._client.writes.limit < 8
    await storage.close()


@pytest.mark.parametrize("rest", [0, 1, MIB - 1])
async def test_the_last_part_is_what_is_left_of_the_file(rest):
    s3, sizes = StoringS3(), list[int]()
    upload = s3.answers["upload_part"]

    async def sized(*, Body: Any, **given: Any) -> Any:
        sizes.append(len(Body))
        return await upload(Body=Body, **given)

    s3.answers["upload_part"] = sized
    storage = storage_on(s3, parts_in_flight_max=1, **IN_PARTS)
    body = bytes(range(251)) * 4_200
    body = body[:MIB] * 2 + body[:rest]
    rows = [(ObjectKind.LOG, "a.log", Buffer(body))]
    (stored,) = await storage.put_segment(rows, progress=Progress())
    assert sizes == [MIB, MIB] + [rest] * bool(rest)
    assert s3.objects["a.log"] == (stored.crc32c, stored.size) == (crc32c(body), len(body))
    await storage.close()
