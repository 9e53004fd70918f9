//! How long things take, as the oracle is told.

use std::time::Duration;

/// How long things take, at most.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// From the relay's reading of an update to the arrival of its last copy.
    pub delivery: Duration,
    /// How much of that an update may wait for a receiver that cannot be sent everything. Where it may,
    /// receivers may miss updates, but no more than the relay says it has left out.
    pub waits: Duration,
    /// From an update's publication until it can be forgotten: no copy of it is anywhere.
    pub forgotten: Duration,
    /// A receiver whose subscription lasts so long after an update was published must get it;
    /// without this only if it lasts until the update is judged.
    pub settle: Option<Duration>,
    /// How long after its acknowledgement a subscription may not be in force at other relays than the
    /// subscriber's: it goes towards the core, relay by relay.
    pub propagation: Duration,
    /// How long a session lives without a sign of life.
    pub lifetime: Duration,
    /// How long a subscription certainly lasts after its acknowledgement has arrived.
    pub unrefreshed: Duration,
    /// How long what came of a flipped bit can last in soft state.
    pub corruption: Duration,
    /// How long a participant may take to recover when nothing goes wrong any more; without this
    /// nobody is stuck.
    pub patience: Option<Duration>,
}

impl Rules {
    /// The rules where the network loses and delays nothing, as on a loopback, and only deliveries
    /// are judged: whoever keeps its subscription for `settle` after an update was published must
    /// get it within `patience` more.
    pub fn undisturbed(settle: Duration, patience: Duration) -> Rules {
        Rules {
            delivery: settle + patience,
            waits: Duration::ZERO,
            forgotten: settle + patience,
            settle: Some(settle),
            propagation: Duration::ZERO,
            lifetime: Duration::MAX,
            unrefreshed: Duration::MAX,
            corruption: Duration::ZERO,
            patience: None,
        }
    }

    /// The same for participants of several relays, where an update passes at most `hops` from relay
    /// to relay, a subscription no more, and each hop takes either of them `hop` at most. What one
    /// relay hands to its own participants is judged as before.
    pub fn over(self, hops: u32, hop: Duration) -> Rules {
        let way = hop * hops;
        Rules {
            delivery: self.delivery + way,
            forgotten: self.forgotten + way,
            settle: self.settle.map(|settle| settle + way),
            propagation: way,
            ..self
        }
    }
}
