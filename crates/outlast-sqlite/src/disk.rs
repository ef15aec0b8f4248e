//! The three moments at which the disk decides: where a test makes it fail.

use rusqlite::Connection;

/// What reaches the disk. The real one is [`RealDisk`]; tests put one in its place that fails.
pub(crate) trait Disk: Send + Sync {
    /// Begins a write; busy while another process writes.
    fn begin(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    /// Makes it durable: when this returns, the log was synced.
    fn commit(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// Writes the log back into the file, as far as nobody reads the older pages.
    fn checkpoint(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
    }
}

pub(crate) struct RealDisk;

impl Disk for RealDisk {}
