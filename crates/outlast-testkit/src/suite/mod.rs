//! The behaviours of a store, one function each, by what they are about.

pub mod creation;

/// Makes one test of every behaviour that a store must show.
///
/// The expression makes a fresh [`Harness`](crate::Harness) for each test:
/// ```
/// use outlast_testkit::{MemoryHarness, store_suite};
/// # #[allow(unused)]
/// mod memory {
///     use super::*;
///     store_suite!(MemoryHarness::new());
/// }
/// ```
#[macro_export]
macro_rules! store_suite {
    ($harness:expr) => {
        $crate::store_suite! { @ $harness;
            creation:
                a_created_task_is_visible_at_once,
                a_task_created_with_a_lease_is_in_its_workers_hands,
                the_same_creation_again_has_the_same_answer,
                the_same_leased_creation_again_has_the_same_token,
                a_repeated_creation_never_hands_out_the_token_of_a_later_worker,
                an_owner_over_quota_creates_nothing,
                finished_tasks_do_not_count_towards_the_quota;
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
