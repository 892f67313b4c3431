"""The event log in Kafka's own metadata topic."""

from rlmm_daemon.adapters.event_log.kafka.log import KafkaLog

__all__ = ["KafkaLog"]
