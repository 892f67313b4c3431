"""Vocabulary of KIP-405: ids, segments, partition deletes, and every error this project raises.

Nothing here knows bytes, clocks or files. Kafka's words stay Kafka's words.
"""
