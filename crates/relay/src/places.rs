//! The places for participants: a relay has them, not its data threads.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The most participants that a relay takes, shared by its data threads.
#[derive(Clone, Debug)]
pub struct Places(Arc<AtomicU32>);

impl Places {
    /// This many places, all free.
    pub fn new(count: u32) -> Places {
        Places(Arc::new(AtomicU32::new(count)))
    }

    /// Takes a place. Returns whether there was one.
    pub(crate) fn take(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Gives a place back.
    pub(crate) fn give_back(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
