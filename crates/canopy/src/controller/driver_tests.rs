use super::*;
use canopy_control::storage::{Entry, Fault, MemoryStorage, Table};
use canopy_control::{Name, NewRelay};
use canopy_plan::{Limits, Rate};
use std::sync::{Arc, Mutex};

/// A store that the test and the driver have in common.
#[derive(Clone, Default)]
struct SharedStorage(Arc<Mutex<MemoryStorage>>);

impl Storage for SharedStorage {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Entry>, StorageError> {
        self.0.lock().unwrap().get(table, key)
    }

    fn list(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        most: usize,
    ) -> Result<Vec<Entry>, StorageError> {
        self.0.lock().unwrap().list(table, prefix, after, most)
    }

    fn commit(&mut self, batch: &Batch) -> Result<Revision, StorageError> {
        self.0.lock().unwrap().commit(batch)
    }
}

fn start(storage: &SharedStorage) -> Handle {
    let mut storage = storage.clone();
    let (settings, retry) = (Settings::default(), Retry::default());
    let controller = Controller::start(settings, retry, now(), &mut storage).unwrap();
    Handle::start(controller, storage, |_, _| {})
}

fn relay(name: &str) -> NewRelay {
    let rate = Rate { bits: 1e9, packets: 1e6 };
    NewRelay {
        name: Name::new(name).unwrap(),
        key: [1; 32],
        native: ([127, 0, 0, 1], 4040).into(),
        uplink: Limits { send: rate, receive: rate },
        places: 10,
        comtrees: 1024,
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

async fn register(handle: &Handle, name: &'static str) -> anyhow::Result<()> {
    handle.change(|controller, now| controller.register(now, relay(name)).map(|_| ())).await??;
    Ok(())
}

async fn relays(handle: &Handle) -> usize {
    handle.ask(|controller, _| controller.relays().count()).await.unwrap()
}

#[test]
fn after_a_commit_that_fails_the_controller_knows_what_is_stored_and_goes_on() {
    for (fault, stored) in [(Fault::Before, 1), (Fault::After, 2)] {
        run(async {
            let storage = SharedStorage::default();
            let handle = start(&storage);
            register(&handle, "a").await.unwrap();
            let mut lives = handle.lives();
            storage.0.lock().unwrap().fail_after(0, fault);
            assert!(register(&handle, "b").await.is_err(), "nobody is told that it is stored");
            lives.changed().await.unwrap();
            assert_eq!((*lives.borrow(), relays(&handle).await), (2, stored), "{fault:?}");
            register(&handle, "c").await.unwrap();
            assert_eq!(relays(&handle).await, stored + 1);
        });
    }
}

#[test]
fn a_controller_that_was_replaced_on_its_store_ends_and_says_so() {
    run(async {
        let storage = SharedStorage::default();
        let first = start(&storage);
        register(&first, "a").await.unwrap();
        let second = start(&storage);
        assert!(register(&first, "b").await.is_err());
        let why = first.ended().await.to_string();
        assert!(why.contains("another controller"), "{why}");
        assert!(first.ask(|_, _| ()).await.is_err());
        register(&second, "b").await.unwrap();
        let stored = storage.list(Table::Relays, &[], None, 9).unwrap();
        assert_eq!(stored.len(), 2);
    });
}

#[test]
fn the_task_and_the_thread_end_with_the_last_handle() {
    run(async {
        let storage = SharedStorage::default();
        let handle = start(&storage);
        register(&handle, "a").await.unwrap();
        drop(handle);
        let began = std::time::Instant::now();
        while Arc::strong_count(&storage.0) > 1 {
            assert!(began.elapsed() < Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}
