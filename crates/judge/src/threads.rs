//! A relay's data threads, as far as the oracle is told of them.

use canopy_wire::Address;

/// What the relay says of its data threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Between {
    pub(crate) threads: u16,
    /// Updates that were lost between them.
    pub(crate) lost: u64,
}

impl Between {
    /// One data thread: nothing is lost.
    pub(crate) const NOTHING: Between = Between { threads: 1, lost: 0 };

    /// The one that gave out an address.
    pub(crate) fn thread(self, address: Address) -> u16 {
        address.endpoint() % self.threads
    }
}
