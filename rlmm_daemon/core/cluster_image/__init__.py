"""The cluster as its controllers' log tells it at an offset: topics, brokers, features.

    image   the fold over records of `__cluster_metadata`; transactions only once they ended
    word    what the image may be believed about a topic id, and when it may not

Pure: the adapter fetches, this folds and judges. Source: KIP-500, KIP-868 (transactions),
MetadataBatchLoader, TopicsDelta, ClusterDelta.
"""
