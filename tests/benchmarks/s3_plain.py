"""An upload with nothing but aiobotocore, in a process of its own: what the client library costs.

The same form as `s3_peer`: parts of 16 MiB, four in flight, read whole; no checksum, no deadline.
"""

import asyncio
import json
import os
import resource
import sys
import time
from typing import Any, Final

import uvloop
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from tests.benchmarks.s3_ours import AT_ONCE, MIB, Job, forget_peak, peak_mib, sampled, samples

PART_BYTES: Final = 16 * MIB


async def upload(client: Any, bucket: str, path: str, key: str) -> None:
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = (await client.create_multipart_upload(**where))["UploadId"]
    size = os.stat(path).st_size  # noqa: PTH116 - one call
    file = os.open(path, os.O_RDONLY)
    offsets = iter(range(0, size, PART_BYTES))
    done: dict[int, dict[str, Any]] = {}

    async def worker() -> None:
        for offset in offsets:
            read = asyncio.get_running_loop().run_in_executor
            number = offset // PART_BYTES + 1
            body = await read(None, os.pread, file, PART_BYTES, offset)
            answer = await client.upload_part(**where, PartNumber=number, Body=body)
            done[number] = {"PartNumber": number, "ETag": answer["ETag"]}

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(worker())
    finally:
        os.close(file)
    parts = {"Parts": [done[number] for number in sorted(done)]}
    await client.complete_multipart_upload(**where, MultipartUpload=parts)


async def work(job: Job) -> dict[str, Any]:
    config = AioConfig(
        s3={"addressing_style": "path", "payload_signing_enabled": False},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    connecting = get_session().create_client(
        "s3",
        endpoint_url=job["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=job["key"],
        aws_secret_access_key=job["secret"],
        config=config,
    )
    async with connecting as client:
        await client.list_objects_v2(Bucket=job["bucket"], MaxKeys=1)
        resident = forget_peak()
        before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        with sampled(job) as sampler:
            for path, key in job["files"]:
                await upload(client, job["bucket"], path, key)
        seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "system": after.ru_stime - before.ru_stime,
        "extra_mib": peak_mib() - resident,
        "p50": None,
    } | samples(sampler)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(uvloop.run(work(json.loads(sys.argv[1])))))
