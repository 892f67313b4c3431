"""Bytes of a KRaft quorum: what its replicas keep on their disks, and what they say."""
