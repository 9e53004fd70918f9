//! What a relay counts: plain integers, exported by whoever runs it.

use canopy_wire::DropReason;

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident,)*) => {
        /// Totals since start. Each only grows.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Counters {
            $(#[doc = $doc] pub $name: u64,)*
            /// Drops, indexed by [`DropReason`].
            pub drops: [u64; DropReason::ALL.len()],
        }

        impl Default for Counters {
            fn default() -> Counters {
                Counters { $($name: 0,)* drops: [0; DropReason::ALL.len()] }
            }
        }

        impl Counters {
            /// Adds another thread's totals.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)*
                for (sum, drops) in self.drops.iter_mut().zip(other.drops) {
                    *sum += drops;
                }
            }

            /// Every total but the drops, with its name and what it counts.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), $doc, self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    #[doc = "Datagrams received."]
    datagrams_in,
    #[doc = "Bytes of UDP payload received."]
    bytes_in,
    #[doc = "Updates accepted from participants."]
    updates_in,
    #[doc = "Accepted updates that nobody at the relay had subscribed to."]
    updates_without_subscriber,
    #[doc = "Copies of updates passed to other data threads of the relay, which have subscribers."]
    updates_passed,
    #[doc = "Copies of updates taken from other data threads of the relay."]
    updates_taken,
    #[doc = "Copies of updates handed to receivers."]
    deliveries_out,
    #[doc = "Of the updates dropped as thinned, those that are important or for one endpoint's eyes."]
    urgent_thinned,
    #[doc = "Of the updates dropped as waited_too_long, those that are important or for one endpoint's eyes."]
    urgent_waited_too_long,
    #[doc = "Updates for limited receivers that found no room for a credit; receivers that share a row count once."]
    updates_without_credit,
    #[doc = "Copies of updates sent to their own publisher, which drops them: what a set is sent is the same for all."]
    echoes_out,
    #[doc = "Datagrams sent."]
    datagrams_out,
    #[doc = "Bytes of UDP payload sent, padding included."]
    bytes_out,
    #[doc = "Bytes sent that carry nothing: padding of segments and filler records."]
    padding_bytes_out,
    #[doc = "Sends of several datagrams at once to one receiver, however the engine sends them."]
    segmented_sends,
    #[doc = "Subscription changes taken, repeated ones included."]
    subscription_changes,
    #[doc = "Subscription changes asked of parents, refreshes included."]
    subscriptions_asked,
    #[doc = "Subscriptions that parents refused."]
    subscriptions_refused_above,
    #[doc = "Subscriptions that expired without a refresh."]
    subscriptions_expired,
    #[doc = "Connects passed to another data thread of the relay, as this one had no place or address left."]
    connects_passed,
    #[doc = "Sessions opened."]
    sessions_opened,
    #[doc = "Sessions ended, for whatever reason."]
    sessions_ended,
    #[doc = "Sessions that expired without a sign of life."]
    sessions_expired,
    #[doc = "Group keys made after the first of a comtree: somebody left, or the one in use had sealed much."]
    group_keys_made,
    #[doc = "Probes sent to participants, of the paths to them."]
    probes_out,
    #[doc = "Reports taken from participants, of what has arrived and what they ask for."]
    reports_in,
    #[doc = "Group keys sent to participants, repeated ones included."]
    group_keys_given,
    #[doc = "Ways to endpoints and sites learned from what passed."]
    routes_learned,
    #[doc = "Standby branches whose neighbour lost its parent and has come as a child."]
    standbys_used,
    #[doc = "Ways that lead over another branch than before."]
    routes_moved,
    #[doc = "Ways forgotten because nothing came from there for long."]
    routes_expired,
    #[doc = "Ways that could not be learned because the table was full."]
    routes_refused,
    #[doc = "Copies of updates sent to branches because the way was not known, which ask for it."]
    route_requests,
    #[doc = "Of those copies, the ones that ended at a relay that leads nowhere else."]
    route_requests_ended,
    #[doc = "Answers sent to whoever asked for a way."]
    route_replies,
    #[doc = "Flushes: ticks in periodic mode, receive batches in immediate mode."]
    flushes,
}

impl Counters {
    /// Counts one drop.
    pub fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// How often something was dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
}
