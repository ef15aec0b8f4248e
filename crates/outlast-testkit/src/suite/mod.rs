//! The behaviours of a store, one function each, by what they are about.

// These are tests, although they are compiled for the tests of others: what fails should panic.
#![allow(clippy::unwrap_used)]

pub mod authority;
pub mod claiming;
pub mod counting;
pub mod creation;
pub mod faults;
pub mod feed;
pub mod fencing;
pub mod idempotency;
pub mod journal;
pub mod parking;
pub mod payloads;
pub mod races;
pub mod reading;
pub mod recovery;
pub mod renewing;
pub mod reopening;
pub mod replay;
pub mod retrying;
pub mod sweeping;
pub mod time;
pub mod walk;

/// Makes one test of every behaviour that a store must show.
///
/// The expression makes a fresh [`Harness`](crate::Harness) for each test:
/// ```
/// use outlast_testkit::{MemoryHarness, store_suite};
///
/// store_suite!(MemoryHarness::new());
/// ```
#[macro_export]
macro_rules! store_suite {
    ($harness:expr) => {
        $crate::store_suite! { @ $harness;
            creation:
                every_opened_store_is_empty_whatever_became_of_those_before,
                a_created_task_is_visible_at_once,
                a_task_created_with_a_lease_is_in_its_workers_hands,
                the_same_creation_again_has_the_same_answer,
                the_same_leased_creation_again_has_the_same_token,
                a_repeated_creation_never_hands_out_the_token_of_a_later_worker,
                an_owner_over_quota_creates_nothing,
                finished_tasks_do_not_count_towards_the_quota;
            idempotency:
                the_same_key_and_request_find_the_same_task,
                a_key_finds_its_task_as_it_is_by_then,
                who_repeats_a_creation_gets_no_lease,
                a_key_reused_for_another_request_is_refused,
                the_same_key_of_two_owners_is_two_keys,
                a_known_key_is_answered_also_when_the_quota_is_used_up,
                thirty_two_callers_with_one_key_make_one_task,
                the_same_creation_sent_many_times_at_once_makes_one_task,
                a_key_is_spent_once_its_task_is_gone_and_free_when_its_time_is_over,
                a_key_outlives_its_task_by_the_tasks_own_ttl_when_that_is_longer;
            authority:
                a_task_of_another_owner_is_not_found_and_stays_untouched,
                an_operator_answers_and_cancels_any_task,
                an_unknown_task_is_nowhere,
                each_sender_says_only_what_is_its_own_to_say;
            journal:
                several_events_are_journaled_in_order_as_one_change,
                entries_are_numbered_without_gaps_and_their_size_is_the_tasks,
                each_attempt_is_in_the_journal_with_its_end,
                what_is_done_to_a_task_does_not_use_up_the_room_of_its_work,
                one_illegal_event_refuses_all_of_them,
                an_event_without_effect_does_not_keep_the_others_back,
                a_key_is_used_within_one_call_too,
                no_events_at_all_change_nothing,
                a_page_holds_the_entries_that_fit_and_at_least_one,
                a_page_begins_behind_the_entry_it_is_asked_for;
            replay:
                asking_the_same_again_is_absorbed_answered_or_not,
                asking_something_else_under_a_used_key_is_refused,
                a_key_names_one_kind_of_thing,
                a_step_that_finished_keeps_its_first_outcome,
                a_timer_that_was_set_keeps_its_time,
                a_timer_is_due_from_when_it_was_set_or_at_its_instant,
                answering_again_is_absorbed_and_the_first_answer_stands,
                a_subset_of_the_answers_leaves_the_rest_outstanding,
                an_answer_of_the_wrong_shape_consumes_nothing,
                what_a_later_worker_repeats_is_absorbed_as_well,
                a_final_task_absorbs_every_late_word;
            retrying:
                a_failed_task_starts_again_with_what_was_done,
                what_a_task_took_over_is_written_once_with_its_creation,
                what_a_task_took_over_is_there_after_a_restart,
                a_question_that_was_open_is_answered_in_the_new_task,
                a_question_that_the_client_cannot_be_asked_any_more_is_dropped,
                a_timer_is_due_when_it_was,
                a_cancel_is_not_taken_over,
                work_started_again_and_again_keeps_its_origin,
                only_failed_work_starts_again;
            races:
                sixty_four_callers_answer_one_task_at_once_and_each_answer_counts_once,
                sixty_four_writes_of_one_worker_at_once_are_all_kept,
                c09_a_cancel_and_a_completion_at_the_same_instant_end_in_one_final_state,
                a_cancel_and_a_claim_at_the_same_instant_agree_on_who_was_first,
                of_many_completions_at_once_one_stands,
                two_workers_take_an_expired_lease_at_once_and_one_gets_it,
                c24_sixteen_tasks_created_and_finished_at_once_over_and_over_all_end;
            claiming:
                a_claimed_task_comes_with_its_call_and_its_next_token,
                two_workers_share_a_thousand_tasks_and_none_goes_to_both,
                a_worker_is_handed_no_more_than_it_has_room_for,
                a_flooding_owner_does_not_keep_a_quiet_one_waiting,
                an_owners_tasks_are_taken_in_the_order_they_became_ready,
                an_owner_runs_no_more_than_its_limit_over_all_workers,
                work_that_waits_for_a_person_takes_no_place,
                a_worker_is_handed_only_what_it_serves,
                an_expired_lease_does_not_block_its_owner_at_the_limit,
                an_expired_lease_of_a_version_that_nobody_serves_any_more_ends,
                what_is_over_is_never_claimed;
            fencing:
                an_expired_lease_that_nobody_took_still_writes_and_renews,
                after_a_takeover_the_old_token_is_fenced,
                a_token_that_was_never_given_out_is_fenced,
                a_park_repeated_after_a_lost_answer_is_absorbed,
                a_release_repeated_after_a_lost_answer_is_absorbed,
                work_that_was_never_kept_is_not_acknowledged_with_a_repeated_park,
                a_lease_that_was_ended_is_fenced_although_nobody_has_the_task_yet,
                each_claim_has_the_next_token_whatever_ended_the_one_before;
            recovery:
                work_that_may_run_again_does_and_finds_its_steps,
                work_that_must_not_run_twice_ends_and_says_that_its_outcome_is_unknown,
                work_that_must_not_run_twice_waits_safely_while_nobody_runs_it,
                work_that_crashes_its_worker_every_time_is_given_up,
                a_crash_in_company_never_ends_a_suspect,
                work_that_is_allowed_one_attempt_gets_another_one_alone,
                a_lease_is_alone_once_it_is_told_and_until_it_ends,
                a_suspect_that_gets_on_is_none_any_more,
                progress_resets_the_count_of_lost_attempts,
                after_the_second_loss_in_a_row_the_work_waits_before_it_starts_again,
                a_cancel_does_not_wait_for_the_backoff,
                work_given_back_is_taken_up_again_at_once_and_counts_as_no_loss,
                work_that_must_not_run_twice_is_given_back_only_unbegun,
                a_cancel_outlives_the_worker_that_had_to_hear_it;
            parking:
                parked_work_is_nobodys_until_its_answer_comes,
                an_answer_that_the_work_had_not_seen_when_it_parked_is_not_lost,
                an_answer_that_the_work_had_seen_does_not_wake_it_again,
                work_that_claims_to_have_seen_the_future_is_woken_all_the_same,
                a_cancel_wakes_parked_work_and_takes_its_questions_back,
                a_timer_wakes_parked_work_when_it_is_due,
                a_backoff_wakes_parked_work_once,
                the_first_of_timer_backoff_and_answer_wakes,
                c25_a_question_unanswered_for_longer_than_any_result_is_kept_is_still_answerable;
            renewing:
                a_renewed_lease_lasts_from_its_renewal,
                a_renewal_never_shortens_a_lease,
                a_renewal_tells_of_answers_and_of_a_cancel,
                a_lease_that_is_not_the_workers_is_lost,
                many_leases_are_renewed_in_one_call_and_answered_in_order,
                nothing_held_is_nothing_renewed,
                c23_the_ttl_of_running_work_is_extended_before_it_is_over;
            sweeping:
                where_nothing_is_due_nothing_is_done,
                a_sweep_does_no_more_than_it_is_asked_to,
                the_next_thing_that_is_due_is_known,
                c19_the_authors_deadline_ends_work_that_waits_for_an_answer,
                a_deadline_of_work_that_a_worker_holds_is_the_workers_to_judge,
                cancelled_work_that_nobody_takes_up_ends_after_its_grace,
                cancelled_work_in_a_workers_hands_is_left_to_it,
                c23_the_ttl_of_waiting_work_is_extended_and_the_work_is_not_killed,
                c23_work_is_not_killed_when_the_sweeper_comes_too_late,
                a_finished_task_stays_readable_for_one_ttl_from_its_end,
                a_finished_task_stays_readable_for_its_least_time_in_any_case,
                a_finished_task_without_a_ttl_is_kept_for_ever,
                a_ttl_that_the_work_extended_is_kept,
                a_purged_task_leaves_nothing_behind,
                c20_a_result_written_after_the_task_was_deleted_is_dropped_quietly;
            feed:
                every_change_that_a_caller_can_see_is_hinted,
                what_the_store_does_of_itself_is_hinted_as_well,
                a_hinted_change_can_be_read,
                every_reader_hears_of_a_change,
                a_reader_that_falls_behind_learns_that_it_did_and_delays_nobody;
            reading:
                heads_tell_of_many_tasks_in_order,
                the_revision_grows_with_what_a_caller_can_see,
                a_listing_is_newest_first_and_whole_over_its_pages,
                a_page_is_not_disturbed_by_what_is_created_meanwhile,
                a_place_that_no_page_ended_at_is_no_panic,
                a_listing_is_filtered_by_owner_status_and_tool,
                what_workers_serve_is_known_as_of_their_last_claims,
                tasks_are_counted_by_status_and_by_who_holds_them,
                the_places_that_an_owner_has_taken_are_known,
                what_no_worker_has_taken_up_is_counted_with_how_long_the_first_of_it_waits,
                parked_work_waits_for_a_worker_only_once_it_is_due,
                work_that_is_over_or_of_a_worker_that_is_gone_is_counted_as_what_it_is;
            payloads:
                text_of_every_kind_comes_back_byte_for_byte,
                json_is_kept_as_it_was_written,
                an_error_comes_back_whole,
                the_largest_of_everything_that_is_allowed_comes_back,
                what_exceeds_a_limit_is_refused_and_changes_nothing,
                a_question_that_the_client_did_not_declare_is_refused;
            reopening:
                c18_finished_waiting_and_queued_tasks_survive_as_they_are,
                work_that_ran_is_taken_up_under_a_higher_token,
                work_that_must_not_run_twice_ends_also_over_a_restart,
                keys_are_known_after_a_restart_spent_ones_too,
                a_creation_repeated_after_a_restart_is_the_same,
                what_was_deleted_stays_deleted,
                time_does_not_run_back_over_a_restart,
                a_store_may_be_reopened_again_and_again;
            time:
                a_clock_that_is_set_back_makes_no_date_earlier,
                a_clock_that_is_set_back_ends_no_lease_and_lets_work_go_on,
                after_a_jump_forward_living_workers_have_a_lease_of_time_to_renew,
                after_a_jump_forward_what_is_due_is_done_one_lease_later;
            faults:
                no_fault_keeps_a_task_from_its_end,
                no_fault_hides_that_work_stopped_which_must_not_run_twice,
                no_fault_loses_a_cancel,
                no_fault_makes_a_second_run_of_a_finished_task,
                a_caller_that_goes_away_leaves_its_task_whole;
            counting:
                a_creation_is_counted_once_and_a_refused_one_never,
                an_end_is_counted_once_whoever_brings_it_about;
            walk:
                a_random_life_keeps_every_promise;
        }
    };
    (@ $harness:expr; $($area:ident: $($name:ident),+ $(,)?;)+) => { $(
        mod $area {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $name() {
                    $crate::run(async { $crate::suite::$area::$name(&$harness).await });
                }
            )+
        }
    )+ };
}
