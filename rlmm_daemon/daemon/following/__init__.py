"""Followed metadata partitions: a task, a position, a fold and a health for each.

It answers how far a partition's log is read and applied, what of it was lost, and which apply
belongs to which append; it refuses to know the SPI, the bucket and who may ask.
"""
