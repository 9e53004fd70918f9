//! A store in memory, which fails where a test wants it to.

use super::{Batch, Entry, Revision, Storage, StorageError, Table};
use std::collections::BTreeMap;

/// A fault at a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing is written.
    Before,
    /// It is written, and fails all the same: the answer is lost.
    After,
}

/// A store in memory. What is committed stays as long as the store.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage {
    tables: BTreeMap<(Table, Vec<u8>), (Revision, Vec<u8>)>,
    revision: Revision,
    fault: Option<(u32, Fault)>,
}

impl MemoryStorage {
    /// Has the commit after so many others fail.
    pub fn fail_after(&mut self, commits: u32, fault: Fault) {
        self.fault = Some((commits, fault));
    }

    /// How many records a table has.
    pub fn len(&self, table: Table) -> usize {
        self.tables.keys().filter(|(of, _)| *of == table).count()
    }

    /// Whether nothing was ever committed.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The fault that is due now.
    fn due(&mut self) -> Option<Fault> {
        let (left, fault) = self.fault?;
        self.fault = left.checked_sub(1).map(|left| (left, fault));
        (left == 0).then_some(fault)
    }
}

impl Storage for MemoryStorage {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Entry>, StorageError> {
        let found = self.tables.get(&(table, key.to_vec()));
        Ok(found.map(|(revision, value)| Entry {
            key: key.to_vec(),
            value: value.clone(),
            revision: *revision,
        }))
    }

    fn list(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        most: usize,
    ) -> Result<Vec<Entry>, StorageError> {
        let start = after.map_or(prefix, |after| after.max(prefix));
        let from = self.tables.range((table, start.to_vec())..);
        let within = from.take_while(|((of, key), _)| *of == table && key.starts_with(prefix));
        let behind =
            within.filter(|((_, key), _)| after.is_none_or(|after| key.as_slice() > after));
        let entries = behind.take(most).map(|((_, key), (revision, value))| Entry {
            key: key.clone(),
            value: value.clone(),
            revision: *revision,
        });
        Ok(entries.collect())
    }

    fn commit(&mut self, batch: &Batch) -> Result<Revision, StorageError> {
        let failed = |why: &str| Err(StorageError::Failed(why.to_owned()));
        if batch.writes.len() + batch.conditions.len() > Batch::MOST {
            return failed("a batch has more than 120 operations");
        }
        let fault = self.due();
        if fault == Some(Fault::Before) {
            return failed("a fault that was asked for, before the commit");
        }
        for condition in &batch.conditions {
            let found = self.tables.get(&(condition.table, condition.key.clone()));
            if found.map_or(Revision(0), |(revision, _)| *revision) != condition.revision {
                return Err(StorageError::Conflict(condition.table));
            }
        }
        self.revision.0 += 1;
        for write in &batch.writes {
            let key = (write.table, write.key.clone());
            match &write.value {
                Some(value) => self.tables.insert(key, (self.revision, value.clone())),
                None => self.tables.remove(&key),
            };
        }
        match fault {
            Some(Fault::After) => failed("a fault that was asked for, after the commit"),
            _ => Ok(self.revision),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Condition, Write};
    use super::*;

    fn write(key: &[u8], value: Option<&[u8]>) -> Batch {
        let write = Write { table: Table::Worlds, key: key.into(), value: value.map(Into::into) };
        Batch { conditions: Vec::new(), writes: vec![write] }
    }

    fn keys(
        store: &MemoryStorage,
        prefix: &[u8],
        after: Option<&[u8]>,
        most: usize,
    ) -> Vec<Vec<u8>> {
        let entries = store.list(Table::Worlds, prefix, after, most).unwrap();
        entries.into_iter().map(|entry| entry.key).collect()
    }

    #[test]
    fn a_batch_is_committed_whole_if_its_conditions_hold() {
        let mut store = MemoryStorage::default();
        let condition = |revision| Condition { table: Table::Worlds, key: b"a".into(), revision };
        let mut batch = write(b"a", Some(b"1"));
        batch.conditions.push(condition(Revision(0)));
        let first = store.commit(&batch).unwrap();
        assert_eq!(store.commit(&batch), Err(StorageError::Conflict(Table::Worlds)));
        batch.conditions = vec![condition(first)];
        batch.writes.extend(write(b"b", Some(b"2")).writes);
        store.commit(&batch).unwrap();
        assert_eq!(store.len(Table::Worlds), 2);
        store.commit(&write(b"a", None)).unwrap();
        assert_eq!(store.get(Table::Worlds, b"a"), Ok(None));
    }

    #[test]
    fn lists_have_a_prefix_an_order_and_pages() {
        let mut store = MemoryStorage::default();
        for key in ["a2", "b", "a1", "a", "a3"] {
            store.commit(&write(key.as_bytes(), Some(b""))).unwrap();
        }
        assert_eq!(keys(&store, b"a", None, 9), [&b"a"[..], b"a1", b"a2", b"a3"]);
        assert_eq!(keys(&store, b"a", Some(b"a1"), 1), [b"a2"]);
        assert!(store.list(Table::Links, b"", None, 9).unwrap().is_empty());
    }

    #[test]
    fn faults_come_where_they_are_asked_for() {
        let mut store = MemoryStorage::default();
        store.fail_after(1, Fault::Before);
        assert!(store.commit(&write(b"a", Some(b""))).is_ok());
        assert!(store.commit(&write(b"b", Some(b""))).is_err());
        store.fail_after(0, Fault::After);
        assert!(store.commit(&write(b"c", Some(b""))).is_err());
        assert_eq!(keys(&store, b"", None, 9), [b"a", b"c"], "the second was not written");
    }
}
