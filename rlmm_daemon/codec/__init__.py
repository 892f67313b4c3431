"""Every byte format of the project: Kafka's metadata records and batches, the socket, snapshots.

Pure functions between bytes and `domain` words, and pure checkers. Nothing here opens a file, reads
a clock or decides anything about a segment; bytes that break their format raise `Malformed` (what a
peer or a record said), `LogCorrupt` (our own log) or `ChecksumMismatch`, with the position.
"""
