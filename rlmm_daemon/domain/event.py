"""The closed set of things that a record of the metadata topic can say."""

from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate

#: What a fold applies. Api key 3 decodes (`SegmentSnapshot`) but is not an event: it names no
#: partition and Kafka's own consumer cannot apply it either.
Event = SegmentMetadata | SegmentUpdate | PartitionDelete
