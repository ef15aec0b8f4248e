//! The PostgreSQL store keeps the store contract.

mod harness;

use harness::PostgresHarness;
use outlast_testkit::store_suite;

store_suite!(PostgresHarness::new());
