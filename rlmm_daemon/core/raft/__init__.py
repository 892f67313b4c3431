"""KRaft's consensus as a pure step: elections, replication, voters and snapshots of one log.

It answers what a replica is after each input, and what its shell has to do, in that order: persist,
then send, then apply. It refuses to know files, sockets, clocks, and what the records mean.

Source: KIP-595 (Raft), 630 (snapshots), 853 (voters), 996 (pre-vote), 1166 (high watermark).
"""
