"""Connections to Kafka brokers, the requests that aiokafka lacks, and what their errors mean.

`requests` are plain aiokafka structs, each pinned to one version; `connection` opens and asks;
`security` turns configuration into TLS and SASL settings; `errors` is the one place where vendor
exceptions and Kafka's error codes become this project's errors; `directory` knows brokers, leaders
and the topic's id. Nothing here retries by itself: whoever asks knows what a retry would cost.

The logger `aiokafka` is kept at INFO: at DEBUG it prints every answer, records included.
"""

from rlmm_daemon.adapters.kafka.connection.client import KafkaClient
from rlmm_daemon.adapters.kafka.connection.connection import Connection, Node
from rlmm_daemon.adapters.kafka.connection.directory import Directory, Leader, TopicView

__all__ = ["Connection", "Directory", "KafkaClient", "Leader", "Node", "TopicView"]
