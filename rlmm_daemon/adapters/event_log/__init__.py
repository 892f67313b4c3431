"""Where events are kept: in memory, in local files, or in Kafka; none knows the others.

All of them answer the promises of `ports.event_log`, held by one contract test class.
"""
