"""The event log in Kafka's own metadata topic, which brokers with Kafka's manager may share.

    log           the port                      fetcher   one followed partition, its state machine
    provisioning  the topic and its settings    parsing   the batches of a Fetch answer; its
                                                frame is packed in connection.packed
    asking        end offsets, epoch ends       producer  senders;  lane  one partition's records

No consumer group, no committed offset, no consumer class: the adapter itself sends Fetch, and each
followed partition has a connection that carries nothing else, because a broker serves a connection
one request at a time. Questions share one connection per broker, and so do writes.

docs/weaknesses.md says what other managers of this topic suffer from, and what is done here.
"""

from rlmm_daemon.adapters.kafka.event_log.log import KafkaLog

__all__ = ["KafkaLog"]
