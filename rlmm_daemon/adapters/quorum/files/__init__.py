"""Files of a replica, in Kafka's layout: what is found is whole and on the disk, or refused.

Kafka's own tools read the files, which lie as Kafka lays them:

<directory>/meta.properties                    whose directory it is, for ever
<directory>/recovery-point-offset-checkpoint   up to where the log is whole on the disk
<directory>/log-start-offset-checkpoint        where the log begins
<directory>/<topic>-0/quorum-state             epoch, leader and vote
<directory>/<topic>-0/partition.metadata       the topic's id
<directory>/<topic>-0/leader-epoch-checkpoint  epochs, and where each begins
<directory>/<topic>-0/<offset>.log             the log, in files
<directory>/<topic>-0/<end>-<epoch>.checkpoint snapshots

Torn or missing state is refused, never guessed. After an error nothing more is taken: the files are
opened anew, which writes again what no sync vouches for.
"""
