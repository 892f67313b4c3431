"""The fold of a metadata partition's log, and the cache of each user partition in it.

It answers what the metadata is after each event, and each look-up; Kafka's rules, without IO.
"""
