//! The controller's records in a file, with redb: one process has it at a time.

use anyhow::{Context, anyhow, bail};
use canopy_control::storage::{
    Batch, Condition, Entry, Revision, Storage, StorageError, Table, Write,
};
use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable,
    TableDefinition, WriteTransaction,
};
use std::fmt::Display;
use std::ops::Bound;
use std::path::Path;

/// What is kept of the store itself: its format, and the number of the last commit.
const STORE: TableDefinition<'_, &str, u64> = TableDefinition::new("store");
const FORMAT: &str = "format";
const REVISION: &str = "revision";
/// How records are laid out in the file. Another number is another layout.
const FORMAT_NOW: u64 = 1;
/// The most memory that pages of the file take, bytes. The controller reads everything once, at its
/// start, and only writes then.
const CACHE: usize = 32 << 20;

/// A table of records: by key, the commit that wrote a value, and the value.
type Records = TableDefinition<'static, &'static [u8], (u64, &'static [u8])>;

/// The records in a file. What was committed outlasts a crash of the process and of the machine.
#[derive(Debug)]
pub(crate) struct RedbStorage {
    database: Database,
}

impl RedbStorage {
    /// Opens the store in a file, or begins a new one, and keeps everyone else out of it until the
    /// storage is dropped or the process ends, however that happens.
    ///
    /// # Errors
    /// Another process has it; or it cannot be read, and why.
    pub(crate) fn open(path: &Path) -> anyhow::Result<RedbStorage> {
        let shown = path.display();
        let database = Builder::new().set_cache_size(CACHE).create(path);
        let database = database.map_err(|error| explained(path, error))?;
        RedbStorage::of(database).with_context(|| format!("the store {shown} cannot be used"))
    }

    fn of(database: Database) -> anyhow::Result<RedbStorage> {
        let begin = database.begin_write()?;
        {
            let mut store = begin.open_table(STORE)?;
            let found = store.get(FORMAT)?.map(|format| format.value());
            match found {
                None => _ = store.insert(FORMAT, FORMAT_NOW)?,
                Some(FORMAT_NOW) => {}
                Some(other) => bail!(
                    "it has the format {other}, this version reads {FORMAT_NOW}; run the version that \
                     wrote it, or begin with an empty folder"
                ),
            }
        }
        for table in Table::ALL {
            begin.open_table(records(table))?;
        }
        begin.commit()?;
        Ok(RedbStorage { database })
    }

    fn read(&self) -> Result<ReadTransaction, StorageError> {
        self.database.begin_read().map_err(failed)
    }
}

impl Storage for RedbStorage {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Entry>, StorageError> {
        let records = self.read()?.open_table(records(table)).map_err(failed)?;
        let found = records.get(key).map_err(failed)?;
        Ok(found.map(|found| entry(key, found.value())))
    }

    fn list(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        most: usize,
    ) -> Result<Vec<Entry>, StorageError> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let records = self.read()?.open_table(records(table)).map_err(failed)?;
        let range = records.range::<&[u8]>((start, Bound::Unbounded)).map_err(failed)?;
        let mut entries = Vec::new();
        for record in range.take(most) {
            let (key, found) = record.map_err(failed)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            entries.push(entry(key.value(), found.value()));
        }
        Ok(entries)
    }

    fn commit(&mut self, batch: &Batch) -> Result<Revision, StorageError> {
        if batch.writes.len() + batch.conditions.len() > Batch::MOST {
            let why = format!("a batch has more than {} operations", Batch::MOST);
            return Err(StorageError::Failed(why));
        }
        // Durable when it returns, unless another durability is asked for.
        let writing = self.database.begin_write().map_err(failed)?;
        for condition in &batch.conditions {
            if !holds(&writing, condition).map_err(failed)? {
                writing.abort().map_err(failed)?;
                return Err(StorageError::Conflict(condition.table));
            }
        }
        let revision = write(&writing, batch).map_err(failed)?;
        writing.commit().map_err(failed)?;
        Ok(Revision(revision))
    }
}

fn records(table: Table) -> Records {
    TableDefinition::new(table.name())
}

fn entry(key: &[u8], (revision, value): (u64, &[u8])) -> Entry {
    Entry { key: key.to_vec(), value: value.to_vec(), revision: Revision(revision) }
}

fn failed(error: impl Display) -> StorageError {
    StorageError::Failed(error.to_string())
}

/// Whether a condition holds, as the write transaction sees it: nobody else writes meanwhile.
fn holds(writing: &WriteTransaction, condition: &Condition) -> Result<bool, redb::Error> {
    let records = writing.open_table(records(condition.table))?;
    let found = records.get(condition.key.as_slice())?;
    let revision = found.map_or(0, |found| found.value().0);
    Ok(revision == condition.revision.0)
}

/// Makes a batch's writes, and returns their revision.
fn write(writing: &WriteTransaction, batch: &Batch) -> Result<u64, redb::Error> {
    let revision = {
        let mut store = writing.open_table(STORE)?;
        let before = store.get(REVISION)?.map_or(0, |revision| revision.value());
        store.insert(REVISION, before + 1)?;
        before + 1
    };
    for table in Table::ALL {
        let mut writes = batch.writes.iter().filter(|write| write.table == table).peekable();
        if writes.peek().is_none() {
            continue;
        }
        // To open one costs as much as to write to it.
        let mut records = writing.open_table(records(table))?;
        for Write { key, value, .. } in writes {
            match value {
                Some(value) => _ = records.insert(key.as_slice(), (revision, value.as_slice()))?,
                None => _ = records.remove(key.as_slice())?,
            }
        }
    }
    Ok(revision)
}

/// Why a file could not be opened, and what helps.
fn explained(path: &Path, error: DatabaseError) -> anyhow::Error {
    let shown = path.display();
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => anyhow!(
            "another process has the store {shown}; one controller may run on it: end the other, or \
             name another folder"
        ),
        DatabaseError::UpgradeRequired(format) => anyhow!(
            "the store {shown} was written by an older version (file format {format}); run the version \
             that wrote it, or begin with an empty folder"
        ),
        error => anyhow!(
            "cannot open the store {shown}: {error}; see whether the folder can be written to, or \
             restore the file from a copy"
        ),
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
