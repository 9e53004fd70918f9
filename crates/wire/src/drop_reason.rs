//! Every reason for which a relay lets a packet or an update go. One variant is one counter.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// Why a relay dropped a datagram, an update or a reply. One variant is one counter;
        /// nothing is dropped without one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $variant,)* }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// The reason's name in metrics and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }
        }
    };
}

drop_reasons! {
    /// A datagram without bytes.
    Empty => "empty",
    /// Too short, or a length or field that does not fit.
    Malformed => "malformed",
    /// Another version of the protocol.
    Version => "version",
    /// A packet kind that does not exist.
    UnknownKind => "unknown_kind",
    /// A packet kind that only relays send to participants, or that this release reserves.
    UnexpectedKind => "unexpected_kind",
    /// Longer than the largest datagram.
    Oversized => "oversized",
    /// A session that nobody has: before the handshake, or after expiry; or a neighbour relay that
    /// has no branch on the comtree.
    UnknownSource => "unknown_source",
    /// A session that is at another path, perhaps because it has moved; or an update in another's
    /// name.
    SpoofedSource => "spoofed_source",
    /// A comtree that this relay does not carry.
    UnknownComtree => "unknown_comtree",
    /// A unicast address that nobody has on the comtree, or whose owner left before the flush.
    UnknownDestination => "unknown_destination",
    /// A unicast, or an answer, that is to go on where no way leads: back where it came from, from one core
    /// peer to another, or to whoever has been forgotten.
    NotThisWay => "not_this_way",
    /// A unicast whose way is not known, and too many such are asked for already.
    RouteRequests => "route_requests",
    /// A cookie that this relay did not make, or made too long ago, or for another path.
    BadCookie => "bad_cookie",
    /// A packet that was not sealed with its session's key, or was altered; or a connect whose
    /// message was not made for this relay.
    Forged => "forged",
    /// A sealed packet that came before, or is too old to tell.
    Replayed => "replayed",
    /// A connect or rebind with an older cookie than the one that proved the path last: a late copy.
    Stale => "stale",
    /// A connect with no security suite that this relay takes.
    BadCredentials => "bad_credentials",
    /// A connect of somebody who shares its ip:port, to a comtree whose updates go out as one datagram
    /// for all.
    CannotShare => "cannot_share",
    /// A connect whose token names an address that somebody else has, or that is not this relay's.
    AddressTaken => "address_taken",
    /// A connect or a request without a token that this relay takes.
    BadToken => "bad_token",
    /// An update to a group that its publisher's token does not grant.
    PublishNotAllowed => "publish_not_allowed",
    /// An update to a group that its publisher's token grants, at a higher level than it grants.
    PublishLevelNotAllowed => "publish_level_not_allowed",
    /// A unicast to an address that its sender's token does not grant.
    UnicastNotAllowed => "unicast_not_allowed",
    /// A subscription to a group that the token does not grant.
    SubscribeNotAllowed => "subscribe_not_allowed",
    /// A subscription to a group that the token grants, up to a higher level than it grants.
    SubscribeLevelNotAllowed => "subscribe_level_not_allowed",
    /// An update or a subscription that a server has taken from its member.
    Restricted => "restricted",
    /// A request that only servers may make.
    RequestNotAllowed => "request_not_allowed",
    /// A request that is neither the next nor the last one.
    RequestOrder => "request_order",
    /// All places or addresses are taken; the participant was refused.
    SessionsFull => "sessions_full",
    /// A subscription refused because the group or subscription table is full.
    SubscriptionsFull => "subscriptions_full",
    /// A group that one participant may not open beside those that it has opened already.
    NewGroups => "new_groups",
    /// More changes of subscriptions than one participant may ask for.
    SubscribeRate => "subscribe_rate",
    /// More updates, or bits, than one participant may send.
    OverBudget => "over_budget",
    /// More updates, or bits, than a comtree's participants may send together.
    ComtreeOverBudget => "comtree_over_budget",
    /// More handshakes than an ip, its prefix, or those that fail may cost the relay.
    TooManyHandshakes => "too_many_handshakes",
    /// As many sessions as one ip may have.
    TooManySessions => "too_many_sessions",
    /// More answers than are sent to one ip:port that has no session.
    RepliesRate => "replies_rate",
    /// A subscribe packet that is neither the next nor the last one.
    SubscribeOrder => "subscribe_order",
    /// The relay is draining and takes no one new.
    Draining => "draining",
    /// The hop limit ran out.
    HopLimit => "hop_limit",
    /// More updates arrived between two flushes than there is room for.
    PendingFull => "pending_full",
    /// The queue of replies of one turn was full.
    RepliesFull => "replies_full",
    /// A data thread was too slow to take what another passed to it, or to hear what it told.
    SiblingsFull => "siblings_full",
    /// An update that a receiver's budget did not hold: a newer one of its flow took its place, there
    /// was no room for it to wait, or its flow sends without a credit and it was not its turn.
    Thinned => "thinned",
    /// An update that waited for a receiver's budget until newer ones needed its room; or for too long, if it is
    /// important or for one endpoint's eyes.
    WaitedTooLong => "waited_too_long",
    /// An update that both the old and the next parent of a comtree brought.
    Repeated => "repeated",
    /// The kernel refused a datagram.
    SendFailed => "send_failed",
    /// As much as can was waiting for a full device queue already.
    SendQueueFull => "send_queue_full",
    /// Nothing that is sent to the receiver's host arrives; it is left out for a while.
    Unreachable => "unreachable",
    /// The socket's receive buffer was full; the relay never saw the datagram.
    ReceiveQueueFull => "receive_queue_full",
    /// The same, of the socket for those who have no session.
    StrangersQueueFull => "strangers_queue_full",
    /// All free addresses of the comtree rest, because their last owners left not long ago; the
    /// participant was refused.
    AddressesResting => "addresses_resting",
    /// A report on a probe that was not sent, or is long past, or that tells of more than was sent.
    BadReport => "bad_report",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_index_the_list() {
        for (number, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number, "{}", reason.name());
        }
    }

    /// Readers look a counter up there.
    #[test]
    fn each_reason_stands_in_the_table_of_the_wire_format_and_no_other_does() {
        let text = include_str!("../../../docs/wire.md");
        let table = text.split_once("## What is dropped, and why").unwrap().1;
        let table = table.split_once("## Example").unwrap().0;
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
        let mut told: Vec<&str> = rows.map(|row| row.split_once('`').unwrap().0).collect();
        let mut names: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        told.sort_unstable();
        names.sort_unstable();
        assert_eq!(told, names);
    }
}
