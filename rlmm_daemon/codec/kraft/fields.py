"""Fields that several of Kafka's messages share."""

from typing import Final

from rlmm_daemon.codec.kraft.schema import INT16, INT32, Field

ERROR: Final = Field("ErrorCode", INT16)
THROTTLE: Final = Field("ThrottleTimeMs", INT32)
PARTITION: Final = Field("PartitionIndex", INT32)
