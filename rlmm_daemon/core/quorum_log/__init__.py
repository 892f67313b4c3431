"""A quorum's committed records as metadata partitions: which ones count, and their offsets."""
