//! The store against the one in memory, and after crashes.

use super::*;
use canopy_control::storage::{MemoryStorage, Write};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use std::io;
use std::sync::{Arc, Mutex};

fn put(key: &[u8], value: &[u8]) -> Batch {
    let write = Write { table: Table::Worlds, key: key.into(), value: Some(value.into()) };
    Batch { conditions: Vec::new(), writes: vec![write] }
}

/// Few keys, so that they meet; some are the beginning of others.
fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0..3_u8, 0..4)
}

fn table() -> impl Strategy<Value = Table> {
    prop_oneof![Just(Table::Worlds), Just(Table::Members)]
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Batch),
    /// A write on the condition that the value is as it was found, or another than that.
    Guarded(Table, Vec<u8>, bool),
    List(Table, Vec<u8>, Option<Vec<u8>>, usize),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20));
    let write = (table(), key(), value).prop_map(|(table, key, value)| Write { table, key, value });
    let writes = proptest::collection::vec(write, 0..5);
    prop_oneof![
        6 => writes.prop_map(|writes| Step::Commit(Batch { conditions: Vec::new(), writes })),
        4 => (table(), key(), any::<bool>())
            .prop_map(|(table, key, holds)| Step::Guarded(table, key, holds)),
        4 => (table(), key(), proptest::option::of(key()), 0..6_usize)
            .prop_map(|(table, prefix, after, most)| Step::List(table, prefix, after, most)),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        rng_seed: RngSeed::Fixed(0x5704e),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn it_does_what_the_store_in_memory_does(steps in proptest::collection::vec(step(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        let mut memory = MemoryStorage::default();
        let mut store = RedbStorage::open(&path).unwrap();
        for step in steps {
            match step {
                Step::Commit(batch) => {
                    prop_assert_eq!(store.commit(&batch), memory.commit(&batch));
                }
                Step::Guarded(table, key, holds) => {
                    let found = memory.get(table, &key).unwrap().map_or(0, |e| e.revision.0);
                    let revision = Revision(found + u64::from(!holds));
                    let condition = Condition { table, key: key.clone(), revision };
                    let writes = vec![Write { table, key, value: Some(vec![7]) }];
                    let batch = Batch { conditions: vec![condition], writes };
                    let done = store.commit(&batch);
                    prop_assert_eq!(done.is_ok(), holds);
                    prop_assert_eq!(done, memory.commit(&batch));
                }
                Step::List(table, prefix, after, most) => {
                    let after = after.as_deref();
                    let listed = store.list(table, &prefix, after, most);
                    prop_assert_eq!(listed, memory.list(table, &prefix, after, most));
                }
                Step::Reopen => {
                    drop(store);
                    store = RedbStorage::open(&path).unwrap();
                }
            }
            for table in [Table::Worlds, Table::Members] {
                let all = memory.list(table, b"", None, usize::MAX).unwrap();
                for entry in &all {
                    prop_assert_eq!(&store.get(table, &entry.key).unwrap().unwrap(), entry);
                }
                prop_assert_eq!(store.list(table, b"", None, usize::MAX).unwrap(), all);
            }
        }
    }
}

#[test]
fn one_process_has_it_at_a_time_and_the_other_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = RedbStorage::open(&path).unwrap();
    let error = RedbStorage::open(&path).unwrap_err().to_string();
    assert!(error.contains("another process has the store") && error.contains("end the other"));
    drop(store);
    RedbStorage::open(&path).unwrap();
}

#[test]
fn what_is_no_store_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let text = b"this is no store\n".repeat(1000);
    std::fs::write(&path, &text).unwrap();
    let error = format!("{:#}", RedbStorage::open(&path).unwrap_err());
    assert!(error.contains("restore the file from a copy"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), text);
}

#[test]
fn another_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = RedbStorage::open(&path).unwrap();
    let writing = store.database.begin_write().unwrap();
    writing.open_table(STORE).unwrap().insert(FORMAT, 2).unwrap();
    writing.commit().unwrap();
    drop(store);
    let error = format!("{:#}", RedbStorage::open(&path).unwrap_err());
    assert!(error.contains("format 2") && error.contains("this version reads 1"), "{error}");
}

#[test]
fn a_batch_that_is_too_large_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = RedbStorage::open(&folder.path().join("store.redb")).unwrap();
    let writes = vec![put(b"a", b"1").writes.remove(0); Batch::MOST + 1];
    let batch = Batch { conditions: Vec::new(), writes };
    assert!(matches!(store.commit(&batch), Err(StorageError::Failed(_))));
    assert_eq!(store.get(Table::Worlds, b"a"), Ok(None));
    assert_eq!(store.commit(&put(b"a", b"1")), Ok(Revision(1)));
}

/// A disk that keeps what was synchronised, and loses power at a given operation: what was written
/// since the last synchronisation is lost from there on.
#[derive(Debug, Default)]
struct Disk {
    now: InMemoryBackend,
    state: Arc<Mutex<DiskState>>,
}

#[derive(Debug, Default)]
struct DiskState {
    /// What is on the disk for certain.
    kept: Vec<u8>,
    /// How many operations are left before the power fails.
    left: Option<u32>,
}

impl Disk {
    fn of(kept: &[u8]) -> Disk {
        let now = InMemoryBackend::new();
        now.set_len(kept.len() as u64).unwrap();
        now.write(0, kept).unwrap();
        let state = DiskState { kept: kept.to_vec(), left: None };
        Disk { now, state: Arc::new(Mutex::new(state)) }
    }

    fn spend(&self) -> Result<(), io::Error> {
        let mut state = self.state.lock().unwrap();
        match &mut state.left {
            Some(0) => return Err(io::Error::other("the power is off")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, io::Error> {
        self.now.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.now.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.spend()?;
        self.now.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.spend()?;
        let mut kept = vec![0; self.now.len()? as usize];
        self.now.read(0, &mut kept)?;
        self.state.lock().unwrap().kept = kept;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.spend()?;
        self.now.write(offset, data)
    }
}

fn open(disk: Disk) -> RedbStorage {
    RedbStorage::of(Builder::new().create_with_backend(disk).unwrap()).unwrap()
}

#[test]
fn after_a_crash_at_any_operation_a_batch_is_there_whole_or_not_at_all() {
    let mut crashes = 0;
    for left in 0.. {
        let disk = Disk::of(&[]);
        let state = disk.state.clone();
        let mut store = open(disk);
        store.commit(&put(b"before", b"1")).unwrap();
        state.lock().unwrap().left = Some(left);
        let mut batch = put(b"a", &[1; 5000]);
        batch.writes.extend(put(b"b", b"2").writes);
        let done = store.commit(&batch);
        let kept = state.lock().unwrap().kept.clone();
        drop(store);
        let mut again = open(Disk::of(&kept));
        let found = [&b"a"[..], b"b"].map(|key| again.get(Table::Worlds, key).unwrap().is_some());
        let before = again.get(Table::Worlds, b"before").unwrap().unwrap();
        assert_eq!(before.revision, Revision(1));
        assert_eq!(found[0], found[1], "at operation {left} half of the batch was kept");
        assert!(
            found[0] || done.is_err(),
            "at operation {left} a batch was lost that was committed"
        );
        let next = again.commit(&put(b"after", b"3")).unwrap();
        assert_eq!(next, Revision(2 + u64::from(found[0])));
        if done.is_ok() {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 2, "the power failed only {crashes} times");
}

#[test]
fn a_process_that_is_killed_leaves_what_it_has_committed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("store.redb"), folder.path().join("copy.redb"));
    let mut store = RedbStorage::open(&path).unwrap();
    for number in 0..50_u8 {
        store.commit(&put(&[number], &[number; 100])).unwrap();
    }
    // As a kill leaves it: not closed, and the kernel has what was written.
    std::fs::copy(&path, &copy).unwrap();
    let again = RedbStorage::open(&copy).unwrap();
    let all = again.list(Table::Worlds, b"", None, usize::MAX).unwrap();
    assert_eq!(all, store.list(Table::Worlds, b"", None, usize::MAX).unwrap());
    assert_eq!(all.len(), 50);
}
