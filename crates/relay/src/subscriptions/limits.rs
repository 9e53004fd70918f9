//! How much there may be, of all and of one.

/// How much a data thread's tables may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// The most groups that have subscribers.
    pub max_groups: u32,
    /// The most subscriptions.
    pub max_subscriptions: u32,
    /// The most ways to endpoints and sites that are learned.
    pub max_routes: u32,
    /// The most subscriptions of one participant.
    pub max_subscriptions_per_participant: u32,
    /// The most groups that one participant may be the first to subscribe to, as long as it stays
    /// subscribed.
    pub max_new_groups_per_participant: u32,
    /// The most pairs of a receiver that cannot be sent everything and a flow that it wants. Other flows
    /// send without a credit.
    pub max_flow_pairs: u32,
}

impl Default for TableLimits {
    fn default() -> TableLimits {
        TableLimits {
            max_groups: 1 << 16,
            max_subscriptions: 1 << 18,
            max_routes: 1 << 17,
            max_subscriptions_per_participant: 4096,
            max_new_groups_per_participant: 1024,
            max_flow_pairs: 1 << 20,
        }
    }
}

/// What one port may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) subscriptions: u32,
    /// Groups that it was the first to subscribe to.
    pub(crate) new_groups: u32,
}

impl Most {
    /// No limit but the table's.
    pub(crate) const ANYTHING: Most = Most { subscriptions: u32::MAX, new_groups: u32::MAX };
}
