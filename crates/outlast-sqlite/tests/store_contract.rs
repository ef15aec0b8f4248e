//! The SQLite store keeps the store contract.

mod harness;

use harness::SqliteHarness;
use outlast_testkit::store_suite;

store_suite!(SqliteHarness::new());
