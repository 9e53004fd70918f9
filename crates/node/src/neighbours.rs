//! Lets the data threads send nothing, for a while, to whoever on this host's links does not answer.
//!
//! What is sent there waits in the kernel and takes the room of what is for others. The kernel
//! tells when it has asked in vain for a hardware address; after a mute the next send makes it ask
//! again. It tells as well when it hears of one that is muted, which asks for ours as it comes back.

use crate::watch::RelayWatch;
use canopy_engines::NeighbourWatch;
use canopy_net::{Clock, Waker, wait_for_file};
use canopy_relay::Change;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long nothing is sent to whoever does not answer.
const MUTE: Duration = Duration::from_secs(5);

/// The thread that listens to the kernel; it ends when this is dropped.
pub(crate) struct Neighbours {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

struct Stop {
    waker: Waker,
    is_set: AtomicBool,
}

impl Neighbours {
    /// Begins to listen, in the calling thread's network namespace: that of the relay's sockets.
    pub(crate) fn watch(relay: RelayWatch, clock: Clock) -> io::Result<Neighbours> {
        let neighbours = NeighbourWatch::open()?;
        let stop = Arc::new(Stop { waker: Waker::new()?, is_set: AtomicBool::new(false) });
        let until = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("neighbours".to_owned())
            .spawn(move || listen(neighbours, &until, &relay, clock))?;
        Ok(Neighbours { stop, thread: Some(thread) })
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.stop.is_set.store(true, Ordering::Release);
        self.stop.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

fn listen(mut neighbours: NeighbourWatch, stop: &Stop, relay: &RelayWatch, clock: Clock) {
    // By address: until when.
    let mut muted = BTreeMap::new();
    // Without a way to wait there is nothing to do but to end: sends go on as they did.
    while wait_for_file(&neighbours, &stop.waker).is_ok() {
        for event in &mut neighbours {
            if stop.is_set.load(Ordering::Acquire) {
                return;
            }
            let now = clock.now();
            muted.retain(|_, until| *until > now);
            let until = match event.reachable {
                false => now + MUTE,
                true if muted.contains_key(&event.ip) => now,
                true => continue,
            };
            // A relay that stops, or has muted as many as it can, sends as if it did not know.
            let is_muted = relay.apply(Change::Mute { ip: event.ip, until }).is_ok();
            if is_muted && !event.reachable {
                muted.insert(event.ip, until);
            } else {
                muted.remove(&event.ip);
            }
        }
        if stop.is_set.load(Ordering::Acquire) {
            return;
        }
    }
}
