"""Remote storages: `memory` for tests and the embedded manager, `local` for a file system, `s3`.

None knows another, and none knows what a key means.

What users of other tiered storages suffered from, and the test that shows that ours does not; the
read path in `daemon` is meant as well. A: Aiven's plugin, K: Kafka, R: Redpanda, P: Pulsar,
Q: rabbitmq-stream-s3, C: Crabka. A complaint that is not about storage or reads names its owner.

1   A #820: a copy never returns, and nobody can tell which call is stuck
        test_an_upload_to_a_silent_peer_ends_though_nobody_ever_says_continue
        test_whatever_ends_a_copy_in_the_middle_rolls_it_back
        test_one_whose_storage_is_slow
        test_a_disk_that_hangs_keeps_a_thread_and_never_the_copy
        test_a_read_that_trickles_ends_though_it_is_never_silent
2   A #483, #404: a reader's time-out throws the fetched bytes away, over and over
        test_with_a_cache_a_begun_chunk_is_finished_for_the_retry_of_who_gave_up
3   A #297: remote reads are far too slow
        test_a_named_end_is_read_ahead_at_once_and_an_open_one_adaptively
4   A #538: the bill for GETs, and throttling
        test_concurrent_readers_share_one_fetch
        test_throttling_halves_what_runs_at_once_and_success_grows_it_again
        test_what_is_copied_is_served_and_counted
5   A #124, P #9962: keys that share one hot range, or names that tell nothing
        test_a_hash_in_front_spreads_segments_and_keeps_the_objects_of_one_together
        test_after_a_change_of_the_prefix_old_segments_read_and_delete
6   A #699: some segments never move, and the reason is guesswork (`core.explain.explanation`)
        test_every_phase_that_the_copier_enters_has_its_words
7   A #513: deleted segments held open pin the disk
        test_a_refusal_leaks_no_descriptor
        test_copies_hold_none_of_their_parts_in_memory_whatever_happens
8   A #557: the metadata topic only grows (`daemon.following.snapshotter`)
        test_a_trimmed_head_is_history_lost
9   K 16681: failed copies counted towards retention evicted good segments (`core.fold.cache`)
        test_a_copy_that_never_finished_may_be_deleted
10  K 15817: overlapping segments leak (`core.disposal`)
        test_it_goes_once_referenced_segments_hold_all_of_it
11  K 13561: a reassignment deleted live segments (`core.disposal`)
        test_nothing_is_done_without_mark_proof_and_a_fold_to_judge_by
12  K 15165: the metadata reader lost its place (`daemon.following.follower`)
        test_stop_all_then_announce_again_is_not_ready_until_caught_up
13  R #9072, 29655: a scrub that must exist and must not cry wolf
        test_bucket_and_log_agree_until_somebody_meddles
        test_each_disagreement_has_its_kind_and_its_key
        test_what_a_listing_lacks_is_looked_at_before_it_is_called_missing
14  R #6844: no permission to delete, found out by the backlog
        test_what_is_denied_comes_with_the_policy_that_allows_it
        test_an_upload_whose_abort_failed_is_aborted_as_soon_as_it_can_be
        test_what_fails_waits_longer_each_time_and_holds_nothing_else_up
15  Q #196: a deleted topic leaves stragglers
        test_the_delete_of_a_copy_that_was_killed_aborts_its_upload
        test_a_deleted_segments_broker_driven_copy_is_ended
        test_a_copy_of_ours_is_ended_first_and_swept_after
        test_a_200_with_nobodys_body_is_no_empty_listing_and_no_delete

C2.7  parts in memory without a bound
        test_copies_hold_none_of_their_parts_in_memory_whatever_happens
C2.7  an upload is aborted only if completing it failed
        test_a_lasting_fault_ends_in_its_own_error_and_leaves_nothing
C2.7  a whole range in memory before its first byte is sent
        test_the_first_bytes_come_while_the_chunk_is_still_on_its_way
        test_fifty_stalled_readers_keep_the_bound_and_no_connection
C2.7  deletes one by one that stop at the first error
        test_a_delete_says_which_key_failed
        test_a_delete_of_which_one_key_fails_is_not_done_for_that_key_alone
C2.7  errors are texts, nothing is repeated, nothing has a deadline
        test_each_answer_has_its_word_and_its_remedy
        test_a_passing_fault_ends_in_a_right_copy
        test_a_silent_read_ends_at_its_deadline
C2.7  half a key pair is ignored, the environment is not read
        test_what_does_not_fit_together_is_refused
        test_without_keys_of_our_own_the_sdks_chain_is_asked
C2.7  the prefix is applied twice
        test_a_prefix_stands_before_the_directory
C2.8  a whole index fetched for each read, by many at once
        test_an_index_is_loaded_once_by_all_who_wait_and_then_kept
C2.8  a transaction index that can't be fetched reads as "none aborted"
        test_a_lost_index_is_missing_and_never_an_empty_answer
C2.8  a fault that passes resets consumers
        test_a_passing_fault_is_retried_in_the_middle_of_a_range
        test_a_404_that_is_not_no_such_key_never_says_that_an_object_is_gone
C4.2  #26 a delete that failed is never repeated
        test_a_failed_delete_of_objects_leaves_the_segment_started
C4.2  #29 one stalled store blocks every copy
        test_copies_run_in_turns_and_too_many_are_refused
C4.2  #31 custom metadata is thrown away
        test_a_whole_copy_ends_finished_with_what_was_stored
        test_a_delete_finds_the_objects_by_erased_custom_metadata_too
C4.2  #34 no orphan scan, no limit on rates
        test_a_start_sweeps_what_is_older_than_any_copy_and_ours_and_nothing_else
        test_rates_bound_a_copy_and_a_change_is_felt_by_one_in_flight
C4.2  #35 no checksum
        test_a_stored_segment_reads_back_with_size_and_checksum
        test_a_storage_that_holds_other_bytes_fails_the_copy
C4.2  #37 local files neither atomic nor synced, read whole for a range
        test_the_log_gets_its_name_last_and_after_a_directory_sync
        test_a_range_is_read_and_its_end_is_cut
C4.2  #38 a missing index is told as a missing segment
        test_a_transaction_index_is_not_found_only_if_none_was_recorded
C4.2  #39 an index cache that is wiped at a start and loads twice at once
        test_a_restart_finds_its_chunks_and_removes_what_is_none
        test_a_failed_load_reaches_its_waiters_and_poisons_nothing
"""
