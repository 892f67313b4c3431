"""Event logs in memory and in local files; the one on Kafka lies in `adapters.kafka`.

All of them answer the promises of `ports.event_log`, held by one contract test class.
"""
