"""One measured piece of work of one Python peer; a script that knows nothing of ours.

    python s3_peer.py '{"peer": "boto3", "work": "upload", ...}'

Prints seconds, CPU seconds and peak memory beyond that before the work, as JSON.
"""

import json
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

MIB = 1024 * 1024
#: Of 16 MiB each its ranges took twice the processor time: every buffer's pages are new to it.
OBSTORE_RANGE = 4 * MIB


def boto3_client(job):
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=job["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=job["key"],
        aws_secret_access_key=job["secret"],
        config=Config(
            s3={"addressing_style": "path", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            max_pool_connections=32,
        ),
    )


def boto3_work(job):
    from boto3.s3.transfer import TransferConfig

    client, bucket = boto3_client(job), job["bucket"]
    config = TransferConfig(
        multipart_chunksize=16 * MIB, multipart_threshold=32 * MIB, max_concurrency=8
    )
    client.list_objects_v2(Bucket=bucket, MaxKeys=1)
    match job["work"]:
        case "upload":

            def send(row):
                client.upload_file(row[0], bucket, row[1], Config=config)

            return lambda: spread(send, job["files"])
        case "download":

            def take(row):
                client.download_file(bucket, row[1], row[0], Config=config)

            return lambda: spread(take, job["files"])
        case "ranges":

            def read(start):
                body = client.get_object(
                    Bucket=bucket, Key=job["object"], Range=f"bytes={start}-{start + MIB - 1}"
                )["Body"]
                return len(body.read())

            return lambda: ranges(read, job)


def obstore_work(job):
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        job["bucket"],
        endpoint=job["endpoint"],
        access_key_id=job["key"],
        secret_access_key=job["secret"],
        region="us-east-1",
        virtual_hosted_style_request=False,
        # As for all others: a SHA-256 of each part was four tenths of its upload.
        unsigned_payload=True,
        client_options={"allow_http": True},
    )
    match job["work"]:
        case "upload":

            def send(row):
                with open(row[0], "rb") as file:
                    obstore.put(store, row[1], file, chunk_size=16 * MIB, max_concurrency=8)

            return lambda: spread(send, job["files"])
        case "download":

            def take(row):
                size = os.path.getsize(row[2])
                starts = list(range(0, size, OBSTORE_RANGE))
                with open(row[0], "wb") as file:

                    def part(start):
                        length = min(OBSTORE_RANGE, size - start)
                        os.pwrite(
                            file.fileno(),
                            obstore.get_range(store, row[1], start=start, length=length),
                            start,
                        )

                    with ThreadPoolExecutor(8) as threads:
                        list(threads.map(part, starts))

            return lambda: spread(take, job["files"])
        case "ranges":

            def read(start):
                return len(obstore.get_range(store, job["object"], start=start, length=MIB))

            return lambda: ranges(read, job)


def spread(work, rows):
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, rows))


def ranges(read, job):
    taken = []
    for start in job["starts"]:
        begun = time.perf_counter()
        assert read(start) == MIB
        taken.append(time.perf_counter() - begun)
    return sorted(taken)[len(taken) // 2]


def forget_peak():
    """Begin a new peak of resident memory; return what is resident, in MiB."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")


def peak_mib():
    return _status("VmHWM")


def _status(name):
    with open("/proc/self/status") as file:
        rows = dict(line.split(":", 1) for line in file)
    return int(rows[name].split()[0]) / 1024


def main():
    job = json.loads(sys.argv[1])
    work = {"boto3": boto3_work, "obstore": obstore_work}[job["peer"]](job)
    resident = forget_peak()
    before = resource.getrusage(resource.RUSAGE_SELF)
    begun = time.perf_counter()
    p50 = work()
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                "system": after.ru_stime - before.ru_stime,
                "extra_mib": peak_mib() - resident,
                "p50": p50,
            }
        )
    )


if __name__ == "__main__":
    main()
