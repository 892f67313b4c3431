"""Folds as the tables of a snapshot and back, and the events that a compaction may drop."""
