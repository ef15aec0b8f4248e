//! The store contract, of two replicas that take turns: every call goes to the other one than the call before.

mod harness;

use harness::TwoReplicas;
use outlast_testkit::store_suite;

store_suite!(TwoReplicas::new());
