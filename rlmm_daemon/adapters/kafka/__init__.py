"""Kafka brokers: connections to them, the cluster as they tell it, the event log on a topic."""
