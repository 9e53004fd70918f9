//! What must hold of the relay whatever happens, seen from outside: its counters add up, its
//! tables stay within their limits, what it sends parses, and an ip:port that has not brought back
//! a cookie is sent no more bytes than came from it.

use canopy_relay::{Counters, Relay, TableLimits};
use canopy_wire::{Challenge, Connect, Cookie, DropReason, Kind, Packet, Rebind, Subscribe, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// What an ip:port and the relay have sent each other.
#[derive(Default)]
struct Account {
    bytes_in: u64,
    bytes_out: u64,
    /// The cookies that it was sent.
    cookies: BTreeSet<Tag>,
    /// It brought one of them back.
    proved: bool,
}

/// One turn's output of a data thread, as counted outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    datagrams: u64,
    bytes: u64,
    updates: u64,
}

/// The books on one start of the relay.
pub(crate) struct Books {
    accounts: BTreeMap<SocketAddr, Account>,
    max_sessions: u32,
    tables: TableLimits,
}

type Verdict = Result<(), String>;

impl Books {
    pub(crate) fn new(max_sessions: u32, tables: TableLimits) -> Books {
        Books { accounts: BTreeMap::new(), max_sessions, tables }
    }

    /// A datagram was handled, and the counters moved from `before` to `after`.
    pub(crate) fn handled(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        before: &Counters,
        after: &Counters,
    ) -> Verdict {
        let account = self.accounts.entry(from).or_default();
        account.bytes_in += datagram.len() as u64;
        if let Some(cookie) = cookie_brought_back(datagram) {
            account.proved |= account.cookies.contains(&cookie);
        }
        let is_counted = after.datagrams_in == before.datagrams_in + 1
            && after.bytes_in == before.bytes_in + datagram.len() as u64
            && is_accounted_for(datagram, before, after);
        let kind = Packet::new_checked(datagram).map(|packet| packet.header().kind);
        is_counted.then_some(()).ok_or_else(|| {
            format!("a datagram ({kind:?}) from {from} is neither accepted nor counted as a drop")
        })
    }

    /// The relay sends a datagram.
    pub(crate) fn sends(
        &mut self,
        to: SocketAddr,
        datagram: &[u8],
        output: &mut Output,
    ) -> Verdict {
        let packet = Packet::new_checked(datagram)
            .map_err(|error| format!("the relay sent {to} what is no packet: {error}"))?;
        output.datagrams += 1;
        output.bytes += datagram.len() as u64;
        let updates = packet
            .updates()
            .map_err(|error| format!("the relay sent {to} a bundle that is none: {error}"))?;
        output.updates += updates.count() as u64;
        self.charge(to, &packet)
    }

    /// A turn is over: the counters moved from `before` to what the relay says now.
    pub(crate) fn turn_ends(&self, relay: &Relay, before: &Counters, output: Output) -> Verdict {
        let after = relay.counters();
        let counted = Output {
            datagrams: after.datagrams_out - before.datagrams_out,
            bytes: after.bytes_out - before.bytes_out,
            updates: after.deliveries_out + after.echoes_out
                - before.deliveries_out
                - before.echoes_out,
        };
        if counted != output {
            return Err(format!("the relay counted {counted:?} where it sent {output:?}"));
        }
        let sizes = [relay.sessions(), relay.subscriptions(), relay.groups()];
        let limits = [self.max_sessions, self.tables.max_subscriptions, self.tables.max_groups];
        if sizes.iter().zip(limits).any(|(size, limit)| *size > limit) {
            return Err(format!("sessions, subscriptions, groups {sizes:?} exceed {limits:?}"));
        }
        Ok(())
    }

    fn charge(&mut self, to: SocketAddr, packet: &Packet<'_>) -> Verdict {
        let account = self.accounts.entry(to).or_default();
        account.bytes_out += packet.datagram_len() as u64;
        let cookie = match packet.header().kind {
            Kind::Cookie => Cookie::decode(packet).ok().map(|cookie| cookie.cookie),
            Kind::Challenge => Challenge::decode(packet).ok().map(|challenge| challenge.cookie),
            _ => None,
        };
        account.cookies.extend(cookie);
        let Account { bytes_in, bytes_out, proved, .. } = account;
        if !*proved && bytes_out > bytes_in {
            let kind = packet.header().kind;
            return Err(format!(
                "{to}, which proved nothing, was sent {bytes_out} bytes for {bytes_in} (last: {kind:?})"
            ));
        }
        Ok(())
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

/// Whether counters moved as this datagram can move them: what does not parse is one drop for its
/// reason; an update, a record or a subscribe packet is accepted or dropped, never both.
fn is_accounted_for(datagram: &[u8], before: &Counters, after: &Counters) -> bool {
    let drops = total_drops(after) - total_drops(before);
    let updates = after.updates_in - before.updates_in;
    let changes = after.subscription_changes - before.subscription_changes;
    let packet = match Packet::new_checked(datagram) {
        Ok(packet) => packet,
        Err(error) => {
            let reason = DropReason::from(error);
            return drops == 1 && after.dropped(reason) == before.dropped(reason) + 1;
        }
    };
    match packet.header().kind {
        Kind::Data | Kind::Bundle => {
            let records = packet.updates().map_or(1, |updates| updates.count() as u64);
            (drops + updates == records || (drops, updates) == (1, 0)) && changes == 0
        }
        Kind::Subscribe => {
            let asked = Subscribe::new_checked(&packet).map_or(0, |s| s.changes().count() as u64);
            let refused = (drops, changes) == (1, 0);
            updates == 0 && (refused || (changes == asked && drops <= asked))
        }
        // The end of a session is also that of the updates that wait for it.
        _ => {
            let undeliverable = DropReason::UnknownDestination;
            let undeliverable = after.dropped(undeliverable) - before.dropped(undeliverable);
            drops - undeliverable <= 1 && updates == 0 && changes == 0
        }
    }
}

fn total_drops(counters: &Counters) -> u64 {
    counters.drops.iter().sum()
}
