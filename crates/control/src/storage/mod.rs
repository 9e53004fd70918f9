//! Where the controller's records are kept.
//!
//! The trait is what redb and etcd have in common: tables of keys and values, a revision for each
//! value, and batches that are committed whole or not at all, under conditions. An engine is
//! synchronous, and the daemon runs it on a thread of its own. Leases and clocks are the
//! controller's business: a record says when it ends, and the controller removes it.

mod memory;

pub use memory::{Fault, MemoryStorage};

/// A family of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// The controller's life, and the numbers that are given next.
    Controller,
    /// Relays.
    Relays,
    /// Links.
    Links,
    /// Worlds.
    Worlds,
    /// Comtrees.
    Comtrees,
    /// Members.
    Members,
    /// Areas of worlds.
    Areas,
    /// Relays that were removed.
    Removed,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 8] = [
        Table::Controller,
        Table::Relays,
        Table::Links,
        Table::Worlds,
        Table::Comtrees,
        Table::Members,
        Table::Areas,
        Table::Removed,
    ];

    /// Its name: a table in redb, the first part of a key in etcd.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Controller => "controller",
            Table::Relays => "relays",
            Table::Links => "links",
            Table::Worlds => "worlds",
            Table::Comtrees => "comtrees",
            Table::Members => "members",
            Table::Areas => "areas",
            Table::Removed => "removed",
        }
    }
}

/// When a value was written: commits are numbered from 1. 0 is the revision of what is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// A value and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The commit that wrote it.
    pub revision: Revision,
}

/// What a commit needs to find: a value that was not written since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// In which table.
    pub table: Table,
    /// Under which key.
    pub key: Vec<u8>,
    /// The value's revision; 0 if there is to be none.
    pub revision: Revision,
}

/// One record that is written, or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// In which table.
    pub table: Table,
    /// Under which key.
    pub key: Vec<u8>,
    /// The value; nothing removes it.
    pub value: Option<Vec<u8>>,
}

/// Writes that are made together or not at all. Of two of one key the later counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// All of these must hold.
    pub conditions: Vec<Condition>,
    /// What is written then.
    pub writes: Vec<Write>,
}

impl Batch {
    /// The most writes and conditions together: etcd takes 128 operations a transaction unless it
    /// is told otherwise.
    pub const MOST: usize = 120;
}

/// Why storage did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// A condition does not hold, so nothing was written.
    #[error(
        "{table}: another controller has written there; only one may run on a store, end the other",
        table = .0.name()
    )]
    Conflict(Table),
    /// The engine failed. Whether the batch was committed is not known.
    #[error(
        "storage failed: {0}; see to the disk or to the etcd cluster, the controller reads again"
    )]
    Failed(String),
    /// A record cannot be read.
    #[error("{table} has a record that cannot be read: {why}; restore it from a copy", table = .table.name())]
    Unreadable {
        /// Where it is.
        table: Table,
        /// What is wrong.
        why: String,
    },
}

/// A store of records.
pub trait Storage {
    /// The value under a key.
    ///
    /// # Errors
    /// The engine failed.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Entry>, StorageError>;

    /// Everything whose key begins with this, in order of the keys, behind the key `after`; at most
    /// `most` entries.
    ///
    /// # Errors
    /// The engine failed.
    fn list(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        most: usize,
    ) -> Result<Vec<Entry>, StorageError>;

    /// Commits a batch, and says which commit it was. When it returns, the writes outlast a crash.
    ///
    /// # Errors
    /// A condition does not hold; or the engine failed, and the batch may or may not be committed.
    fn commit(&mut self, batch: &Batch) -> Result<Revision, StorageError>;
}
