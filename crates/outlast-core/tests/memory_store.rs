//! The reference store keeps the store contract.

use outlast_testkit::{MemoryHarness, store_suite};

store_suite!(MemoryHarness::new());
