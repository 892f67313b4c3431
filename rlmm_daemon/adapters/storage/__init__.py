"""Remote storages behind `ports.storage`: `local` for a directory, `s3` for a bucket.

Neither knows the other, and neither knows what a key means. What users of other tiered storages
suffered from is in `docs/complaints.md`, beside the tests that show that ours does not.
"""
