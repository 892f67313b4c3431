"""The event log in Kafka's own metadata topic, which brokers with Kafka's manager may share.

    log           the port                      fetcher   one followed partition, its state machine
    provisioning  the topic and its settings    parsing   the batches of a Fetch answer; its
                                                frame is packed in kafka_connection.packed
    asking        end offsets, epoch ends       producer  senders;  lane  one partition's records

No consumer group, no committed offset, no consumer class: the adapter itself sends Fetch, and each
followed partition has a connection that carries nothing else, because a broker serves a connection
one request at a time. Questions share one connection per broker, and so do writes.

Known weaknesses of other managers of this topic, and what is done here. T: the tests that show it,
`unit` for tests/unit, `kafka` for tests/kafka, `contract` for tests/contract/event_log.py.

Of Kafka's TopicBasedRemoteLogMetadataManager (4.3):

W1   full replay at each start: snapshots (daemon/snapshots), confirmed by OffsetForLeaderEpoch.
     T unit/manager/test_manager a_restart_takes_up_the_snapshot_and_the_tail,
     kafka/test_brokers ...was_killed_finds_every_acknowledged_copy_again
W2   one more user partition replays its metadata partition: a set insertion, the fold holds all of
     them. T unit/manager/test_manager a_new_neighbour_answers_hits_at_once
W3   one bad record or error ends the only consumer: one task per partition, every error classified,
     a bad record counted and passed. T unit/kafka/test_fetcher ...is_sat_out...,
     kafka/test_topic no_poison_stops_a_follower
W4   a failed start is swallowed: `open` raises, the caller retries for ever and shows why.
     T unit/kafka/test_opening ...told_to_come_again,
     kafka/test_brokers ...starts_before_its_brokers
W5   finite retention loses live segments: a warning and a metric, or refused; a lost head is
     `LogTrimmed`. T unit/kafka/test_opening ...may_lose_events..., contract a_lost_head_is_told
W6   the whole cache on the heap: not this adapter's; batches are handed on in slices and dropped.
     T unit/kafka/test_parsing a_large_batch_comes_in_slices...
W7   clients hammer while it is not ready: reads are held (daemon/server); here every retry backs
     off with jitter and a cap. T unit/kafka/test_opening a_back_off_grows..., test_fetcher
     a_leader_that_stays_away...
W8   a blocked pool thread per write, polling: one future per record, completed by its apply.
     T unit/kafka/test_producer what_waits_while..., contract sixty_four_appends...
W9   an end offset that failed is asked again after 300 s: at once, then with back-off.
     T unit/kafka/test_opening an_end_offset_that_is_not_known...
W10  stop and re-assign serves a stale cache: a follower begins at its fold's position and is not
     ready before a fresh end offset. T unit/manager/test_manager
     stop_all_then_announce_again_is_not_ready_until_caught_up
W11  the overlap rule loses segments: core/cache. T unit/core/test_deviations
     a_look_up_finds_the_longer_segment_that_a_shorter_one_replaced
W12  writes are not validated: daemon/writer, core/fold. T unit/manager/test_manager
     an_illegal_step_is_refused_before_it_is_published
W13  dangling uploads: daemon/copier. T unit/daemon/test_copier
     whatever_ends_a_copy_in_the_middle_rolls_it_back
W14  topic deletion is synchronous and not retried: marks are events, retried as often as asked.
     The cleaner goes on from the fold. T unit/core
     a_marked_partition_goes_on_once_nothing_holds_it, kafka/test_cleaner
W15  a changed partition count is fatal: the topic's own count wins at first contact; a later change
     is `failed(partition_count_changed)` until an operator accepts it, without a restart.
     T unit/kafka/test_opening an_existing_topics_count_wins, kafka/test_topic
     a_raised_partition_count...
W16  hard to configure, SASL not inherited: one section, every mistake named, made out of the
     broker's own by `rlmm config from-properties`. T unit/config
     security_settings_that_would_be_ignored..., unit/config/test_from_properties,
     kafka/test_security
W17  min.insync.replicas not set: set, within what the replication factor allows.
     T unit/kafka/test_opening the_replication_factor_bounds..., kafka/test_topic
W18  reads of segments are bounded and cut short: not this adapter's (daemon/fetcher, plugin).
     T s3/test_faults reads_go_on_while_every_write_is_stuck
W19  offset bookkeeping: one position per partition, moved only by what was read; readiness by
     position; held against the log's epochs. T unit/kafka/test_parsing, contract,
     kafka/test_elections a_lost_range...
W20  remoteLogSize skips its guard: it is a method like others. T unit/core
     the_size_counts_every_state_and_a_segment_in_each_epoch

Of a second implementation, in Rust:

1    a failed connect ends the partition: retried for ever. T unit/kafka/test_fetcher
     a_leader_that_stays_away..., kafka/test_brokers ...starts_before_its_brokers
2    a dead connection is kept: closed on any doubt, a silent one after its time-out.
     T unit/kafka/test_fetcher a_silent_broker..., kafka/test_network a_silent_connection...
3    never follows the leader: NOT_LEADER and every lost connection refresh the metadata.
     T unit/kafka a_moved_leader_is_followed, kafka/test_brokers a_follower_goes_where...
4    no reaction to out-of-range, recreated, corrupt, refused: each is told apart, `errors`.
     T unit/kafka/test_fetcher out_of_range..., ...recreated..., a_broken_batch...,
     kafka/test_topic a_recreated_topic..., kafka/test_elections a_tail_that_an_election_lost...
5    one failing end offset fails all, a missing one is 0: each leader apart, missing is missing.
     T unit/kafka/test_opening an_end_offset_that_is_not_known...
6    a write may wait for ever: the delivery timeout, then `OutcomeUnknown`; `close` is bounded.
     T unit/kafka/test_producer answers_that_stay_lost..., closing_answers_everybody...
7    success although the apply rejected it: daemon/writer waits for its own apply.
     T unit/manager/test_manager a_write_whose_answer_is_lost_is_found_where_it_landed
8    unassign frees nothing: the connection is closed and the fold dropped.
     T unit/kafka/test_fetcher ...connection_of_its_own..., a_cancelled_follower...
9    re-assign is ready too early: as W10.
10   snapshots miss slow partitions: one snapshot per partition. T unit/manager/test_review
     a_snapshot_that_failed_is_still_due
11   no final flush: the drain writes snapshots. T unit/manager/test_manager
     a_restart_takes_up_the_snapshot_and_the_tail
12   a snapshot of another topic is trusted: it carries topic id and epoch, which the log confirms;
     a recreated topic is noticed by Fetch, Produce and every question. T contract
     a_recreated_log_is_told, unit/kafka ...recreated..., kafka/test_topic a_recreated_topic...
13   snapshots block and are rewritten whole: drawn in hops while events are applied.
     T unit/core there_are_no_runs_while_a_snapshot_is_drawn, unit/manager/test_mapped
     once_a_snapshot_is_written_the_overlay_is_gone_and_nothing_is_forgotten
14   readiness needs a delivered record: `next_offset` passes control batches and gaps.
     T unit/kafka/test_parsing a_control_batch..., kafka/test_topic a_transaction_at_the_tail...
15   poison is not counted: counted and kept in a ring. T kafka/test_topic no_poison...
16   another partitioner: Kafka's. T unit/codec/test_partitioner
     every_golden_partition_is_where_kafka_puts_it
17   a changed count is not noticed: as W15; a record out of range is refused before it is sent.
18   ungated listings: core/readiness. T unit/manager/test_manager
     before_the_first_announcement_every_read_is_not_ready
19   one connection per partition: kept on purpose, see above; counted in `facts`.
     T kafka/test_network there_is_one_connection_per_followed_partition...
20   one pump for all: none is shared. T unit/kafka/test_fetcher a_long_poll_of_one...,
     kafka/test_network a_slow_partition_does_not_slow_the_others
21   hardly a metric: `facts` feeds connections, errors and warnings. T unit/kafka/test_opening
22   a thread per write, no batches: as W8.
23   a partition out of range panics: `InvalidArgument`.
     T unit/kafka/test_producer a_partition_out_of_range...
24   no authority check: daemon/assignment refuses by the announced role.
     T unit/manager/test_manager a_follower_may_not_start_a_copy_but_may_end_one
24b  comments that disagree with the code: this table names tests; unit/kafka/test_table holds
     that every one of them exists.
"""

from rlmm_daemon.adapters.kafka.event_log.log import KafkaLog

__all__ = ["KafkaLog"]
