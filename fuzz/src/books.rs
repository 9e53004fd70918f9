//! What a relay owes to whoever watches it from outside: every datagram is accepted or counted as
//! a drop, counters add up, tables stay within their limits, and an ip:port that has not brought
//! back a cookie is sent no more bytes than came from it.

use canopy_relay::{Counters, Relay, RelayConfig};
use canopy_wire::{
    Address, Challenge, Comtree, Connect, Connected, Cookie, DropReason, Keepalive, Kind, Packet,
    Rebind, Subscribe, Tag,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The books on one relay.
pub(crate) struct Books {
    config: RelayConfig,
    accounts: BTreeMap<SocketAddr, Account>,
    /// Datagrams that were accepted and are to be answered.
    unanswered: u64,
    sent: Sent,
}

/// What an ip:port and the relay have sent each other.
#[derive(Default)]
struct Account {
    bytes_in: u64,
    bytes_out: u64,
    /// The cookies that it was sent.
    cookies: BTreeSet<Tag>,
    /// It brought one of them back.
    is_proved: bool,
    /// The session that it was told of last.
    session: Option<(Comtree, Address)>,
}

/// All output, as counted outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sent {
    datagrams: u64,
    bytes: u64,
    updates: u64,
}

impl Books {
    pub(crate) fn new(config: RelayConfig) -> Books {
        Books { config, accounts: BTreeMap::new(), unanswered: 0, sent: Sent::default() }
    }

    /// A datagram came in from `from`, and the counters moved from `before` to `after`.
    pub(crate) fn take(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        before: &Counters,
        after: &Counters,
    ) {
        let account = self.accounts.entry(from).or_default();
        account.bytes_in += datagram.len() as u64;
        if let Some(cookie) = cookie_brought_back(datagram) {
            account.is_proved |= account.cookies.contains(&cookie);
        }
        assert_eq!(after.datagrams_in, before.datagrams_in + 1);
        assert_eq!(after.bytes_in, before.bytes_in + datagram.len() as u64);
        let moved = Moved::between(before, after);
        let is_accepted = moved.accounts_for(datagram, before, after);
        self.unanswered += u64::from(is_accepted && moved.replies_full == 0);
    }

    /// Another data thread handed a datagram over: only what it publishes is dropped, and counted.
    pub(crate) fn take_handover(&self, datagram: &[u8], before: &Counters, after: &Counters) {
        assert_eq!(
            (after.datagrams_in, after.updates_in),
            (before.datagrams_in, before.updates_in)
        );
        let Moved { drops, undeliverable, .. } = Moved::between(before, after);
        match Packet::new_checked(datagram) {
            Err(error) => {
                let reason = DropReason::from(error);
                assert_eq!((drops, after.dropped(reason)), (1, before.dropped(reason) + 1));
            }
            Ok(packet) if matches!(packet.header().kind, Kind::Data | Kind::Bundle) => {
                assert!(drops <= updates(&packet).unwrap_or(1));
            }
            Ok(_) => assert_eq!(drops, undeliverable),
        }
    }

    /// The relay sends a datagram.
    pub(crate) fn send(&mut self, to: SocketAddr, datagram: &[u8], counters: &Counters) {
        let packet = Packet::new_checked(datagram).unwrap();
        let header = packet.header();
        self.sent.datagrams += 1;
        self.sent.bytes += datagram.len() as u64;
        let account = self.accounts.entry(to).or_default();
        account.bytes_out += datagram.len() as u64;
        let (bytes_out, bytes_in) = (account.bytes_out, account.bytes_in);
        assert!(
            account.is_proved || bytes_out <= bytes_in,
            "{to} proved nothing and was sent {bytes_out} bytes for {bytes_in}"
        );
        match header.kind {
            Kind::Data | Kind::Bundle => {
                self.sent.updates += updates(&packet).expect("a bundle that is none");
                // A reply that there was no room for may have told of the session.
                if counters.dropped(DropReason::RepliesFull) == 0 {
                    account.expects(&packet);
                }
            }
            _ => {
                account.hear(&packet);
                self.unanswered = self.unanswered.saturating_sub(1);
            }
        }
    }

    /// The relay has sent what was due: its counters and its tables are as they should be.
    pub(crate) fn balance(&self, relay: &Relay) {
        let counters = relay.counters();
        let counted = Sent {
            datagrams: counters.datagrams_out,
            bytes: counters.bytes_out,
            updates: counters.deliveries_out,
        };
        assert_eq!(counted, self.sent);
        assert_eq!(self.unanswered, 0, "accepted and not answered");
        let limits = self.config.tables;
        assert!(relay.sessions() <= self.config.sessions.max_sessions);
        assert!(relay.subscriptions() <= limits.max_subscriptions);
        assert!(relay.groups() <= limits.max_groups);
        let most = relay.sessions() * limits.max_subscriptions_per_participant;
        assert!(relay.subscriptions() <= most);
        let (opened, ended) = (counters.sessions_opened, counters.sessions_ended);
        assert_eq!(u64::from(relay.sessions()), opened - ended);
        assert!(counters.sessions_expired <= ended);
    }
}

impl Account {
    /// Notes what the relay tells of cookies and sessions.
    fn hear(&mut self, packet: &Packet<'_>) {
        let (comtree, dst) = (packet.header().comtree, packet.header().dst);
        match packet.header().kind {
            Kind::Cookie => {
                self.cookies.insert(Cookie::decode(packet).unwrap().cookie);
            }
            Kind::Challenge => {
                self.cookies.insert(Challenge::decode(packet).unwrap().cookie);
            }
            Kind::Connected => {
                let address = Connected::decode(packet).unwrap().address;
                self.session = Some((comtree, address));
            }
            Kind::KeepaliveAck if dst != Address::UNSPECIFIED => {
                Keepalive::decode(packet).unwrap();
                self.session = Some((comtree, dst));
            }
            _ => {}
        }
    }

    /// Updates are for the session that is here: of its comtree, to a group or to itself.
    fn expects(&self, packet: &Packet<'_>) {
        let (comtree, address) = self.session.expect("updates without a session");
        assert_eq!(packet.header().comtree, comtree, "an update of another comtree");
        let is_ours = |dst: Address| dst.is_group() || dst == address;
        assert!(packet.updates().is_ok_and(|mut updates| updates.all(|u| is_ours(u.dst))));
    }
}

/// How far the counters moved with one datagram.
struct Moved {
    /// Without replies that there was no room for.
    drops: u64,
    /// Of these, updates that no session is there for.
    undeliverable: u64,
    replies_full: u64,
    updates: u64,
    changes: u64,
}

impl Moved {
    fn between(before: &Counters, after: &Counters) -> Moved {
        let total = |counters: &Counters| counters.drops.iter().sum::<u64>();
        let moved = |reason| after.dropped(reason) - before.dropped(reason);
        let replies_full = moved(DropReason::RepliesFull);
        assert!(replies_full <= 1, "two replies to one datagram");
        Moved {
            drops: total(after) - total(before) - replies_full,
            undeliverable: moved(DropReason::UnknownDestination),
            replies_full,
            updates: after.updates_in - before.updates_in,
            changes: after.subscription_changes - before.subscription_changes,
        }
    }

    /// That the datagram was accepted or dropped, never both. Returns whether it is to be answered.
    fn accounts_for(&self, datagram: &[u8], before: &Counters, after: &Counters) -> bool {
        let Moved { drops, undeliverable, updates: accepted, changes, .. } = *self;
        let packet = match Packet::new_checked(datagram) {
            Ok(packet) => packet,
            Err(error) => {
                let reason = DropReason::from(error);
                assert_eq!((drops, after.dropped(reason)), (1, before.dropped(reason) + 1));
                assert_eq!((accepted, changes), (0, 0));
                return false;
            }
        };
        match packet.header().kind {
            Kind::Data | Kind::Bundle => {
                let is_dropped_whole = (drops, accepted) == (1, 0);
                assert!(is_dropped_whole || Some(drops + accepted) == updates(&packet));
                assert_eq!(changes, 0);
                false
            }
            Kind::Subscribe => {
                let asked = Subscribe::new_checked(&packet).map(|all| all.changes().count() as u64);
                let is_applied = asked.is_ok_and(|asked| changes == asked && drops <= asked);
                let is_refused = (drops, changes) == (1, 0);
                assert!(accepted == 0 && (is_refused || is_applied));
                !is_refused
            }
            _ => {
                // The end of a session may be that of the updates that wait for it.
                let drops = drops - undeliverable;
                assert!(drops <= 1 && (accepted, changes) == (0, 0));
                drops == 0
            }
        }
    }
}

fn cookie_brought_back(datagram: &[u8]) -> Option<Tag> {
    let packet = Packet::new_checked(datagram).ok()?;
    match packet.header().kind {
        Kind::Connect => Connect::decode(&packet).ok().map(|connect| connect.cookie),
        Kind::Rebind => Rebind::decode(&packet).ok().map(|rebind| rebind.cookie),
        _ => None,
    }
}

/// How many updates a packet carries; `None` if it is a bundle that does not parse.
fn updates(packet: &Packet<'_>) -> Option<u64> {
    packet.updates().ok().map(|updates| updates.count() as u64)
}
