//! The books on one start of a relay: every datagram is accepted or counted as a drop, counters
//! add up, tables stay within their limits, what the relay sends parses, and an ip:port that has
//! not brought back a cookie is sent no more bytes than came from it.

use canopy_relay::{Counters, Relay, TableLimits};
use canopy_wire::{
    Address, Bundle, Challenge, Comtree, Connect, Connected, Cookie, DropReason, Kind, Packet,
    Rebind, Subscribe, Tag, WireError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// What a relay's data threads are limited to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most sessions of a data thread.
    pub max_sessions: u32,
    /// The size of a data thread's tables.
    pub tables: TableLimits,
    /// An ip:port has at most one session at a time. With several data threads it may have one on
    /// each, until the thread with the older one hears of the newer.
    pub one_session: bool,
}

/// A page of the books: what one turn of a data thread read and sent, as counted outside. Begun
/// before the turn, and closed by [`Books::turn_ends`].
#[derive(Debug)]
pub struct Page {
    before: Counters,
    sent: Sent,
    /// Datagrams that were accepted and are to be answered.
    unanswered: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sent {
    datagrams: u64,
    bytes: u64,
    updates: u64,
}

/// The books on one start of a relay, with all its data threads.
#[derive(Debug)]
pub struct Books {
    limits: Limits,
    accounts: BTreeMap<SocketAddr, Account>,
}

/// What an ip:port and the relay have sent each other.
#[derive(Debug, Default)]
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

type Verdict = Result<(), String>;

impl Page {
    /// A turn begins.
    pub fn begin(relay: &Relay) -> Page {
        Page { before: relay.counters().clone(), sent: Sent::default(), unanswered: 0 }
    }
}

impl Books {
    /// The books on a relay that was just started.
    pub fn new(limits: Limits) -> Books {
        Books { limits, accounts: BTreeMap::new() }
    }

    /// A datagram from an ip:port was handled, and the counters moved from `before` to `after`.
    ///
    /// # Errors
    /// It is neither accepted nor dropped for a reason, or both.
    pub fn handled(
        &mut self,
        page: &mut Page,
        from: SocketAddr,
        datagram: &[u8],
        (before, after): (&Counters, &Counters),
    ) -> Verdict {
        let account = self.accounts.entry(from).or_default();
        account.bytes_in += datagram.len() as u64;
        if let Some(cookie) = cookie_brought_back(datagram) {
            account.is_proved |= account.cookies.contains(&cookie);
        }
        let is_counted = after.datagrams_in == before.datagrams_in + 1
            && after.bytes_in == before.bytes_in + datagram.len() as u64;
        let moved = Moved::between(before, after);
        let Some(wants_answer) = moved.accounts_for(datagram).filter(|_| is_counted) else {
            return Err(refused("a datagram", from, datagram, &moved));
        };
        page.unanswered += u64::from(wants_answer && moved.replies_full == 0);
        Ok(())
    }

    /// The relay sends a datagram.
    ///
    /// # Errors
    /// It does not parse, is not for the session there, or is more than an ip:port may be sent.
    pub fn sends(
        &mut self,
        page: &mut Page,
        to: SocketAddr,
        datagram: &[u8],
        counters: &Counters,
    ) -> Verdict {
        let packet = Packet::new_checked(datagram)
            .map_err(|error| format!("the relay sent {to} what is no packet: {error}"))?;
        let updates = updates_in(&packet)
            .map_err(|error| format!("the relay sent {to} a bundle that is none: {error}"))?;
        page.sent.datagrams += 1;
        page.sent.bytes += datagram.len() as u64;
        page.sent.updates += updates;
        let account = self.accounts.entry(to).or_default();
        account.bytes_out += datagram.len() as u64;
        account.hear(&packet);
        let kind = packet.header().kind;
        let Account { bytes_in, bytes_out, .. } = *account;
        if !account.is_proved && bytes_out > bytes_in {
            return Err(format!(
                "{to}, which proved nothing, was sent {bytes_out} bytes for {bytes_in} (last: {kind:?})"
            ));
        }
        if !matches!(kind, Kind::Data | Kind::Bundle) {
            page.unanswered = page.unanswered.saturating_sub(1);
        // A reply that there was no room for may have told of the session.
        } else if self.limits.one_session && counters.dropped(DropReason::RepliesFull) == 0 {
            return account.expects(to, &packet);
        }
        Ok(())
    }

    /// A turn is over: the relay has sent what was due.
    ///
    /// # Errors
    /// Its counters are not what was sent, a question has no answer, or a table is over its limit.
    pub fn turn_ends(&self, relay: &Relay, page: &Page) -> Verdict {
        let (before, after) = (&page.before, relay.counters());
        // What a set is sent is the same for all of it, so publishers get their own back: an echo
        // is an update on the wire, though not a delivery.
        let updates = |counters: &Counters| counters.deliveries_out + counters.echoes_out;
        let counted = Sent {
            datagrams: after.datagrams_out - before.datagrams_out,
            bytes: after.bytes_out - before.bytes_out,
            updates: updates(after) - updates(before),
        };
        if counted != page.sent {
            return Err(format!("the relay counted {counted:?} where it sent {:?}", page.sent));
        }
        if page.unanswered > 0 {
            return Err(format!("{} datagrams were accepted and not answered", page.unanswered));
        }
        let tables = &self.limits.tables;
        let each = tables.max_subscriptions_per_participant;
        let sizes = [relay.sessions(), relay.subscriptions(), relay.groups()];
        let [sessions, subscriptions, _] = sizes;
        let limits = [self.limits.max_sessions, tables.max_subscriptions, tables.max_groups];
        let is_over = sizes.iter().zip(limits).any(|(size, limit)| *size > limit);
        if is_over || u64::from(subscriptions) > u64::from(sessions) * u64::from(each) {
            return Err(format!("sessions, subscriptions, groups {sizes:?} exceed {limits:?}"));
        }
        let (opened, ended) = (after.sessions_opened, after.sessions_ended);
        if u64::from(sessions) != opened - ended || after.sessions_expired > ended {
            return Err(format!(
                "{opened} sessions opened, {ended} ended, and there are {sessions}"
            ));
        }
        Ok(())
    }
}

impl Account {
    /// Notes what the relay tells of cookies and sessions.
    fn hear(&mut self, packet: &Packet<'_>) {
        let (comtree, dst) = (packet.header().comtree, packet.header().dst);
        let cookie = match packet.header().kind {
            Kind::Cookie => Cookie::decode(packet).ok().map(|cookie| cookie.cookie),
            Kind::Challenge => Challenge::decode(packet).ok().map(|challenge| challenge.cookie),
            Kind::Connected => {
                let connected = Connected::decode(packet).ok();
                self.session = connected.map(|connected| (comtree, connected.address));
                None
            }
            Kind::KeepaliveAck if dst != Address::UNSPECIFIED => {
                self.session = Some((comtree, dst));
                None
            }
            _ => None,
        };
        self.cookies.extend(cookie);
    }

    /// Updates are for the session that is there: of its comtree, to a group or to itself.
    fn expects(&self, to: SocketAddr, packet: &Packet<'_>) -> Verdict {
        let Some((comtree, address)) = self.session else {
            return Err(format!("{to} was sent updates and has no session"));
        };
        let is_ours = |dst: Address| dst.is_group() || dst == address;
        let is_for_it = match packet.header().kind {
            Kind::Bundle => Bundle::new_checked(packet)
                .is_ok_and(|bundle| bundle.records().all(|record| is_ours(record.dst))),
            _ => is_ours(packet.header().dst),
        };
        if packet.header().comtree != comtree || !is_for_it {
            return Err(format!(
                "{to} has the session {address} of comtree {} and was sent another's update",
                comtree.0
            ));
        }
        Ok(())
    }
}

/// How far the counters moved with one datagram.
#[derive(Debug)]
struct Moved {
    /// Without replies that there was no room for.
    drops: u64,
    replies_full: u64,
    updates: u64,
    changes: u64,
    /// Connects that another data thread will answer.
    passed: u64,
    by_reason: [u64; DropReason::ALL.len()],
}

impl Moved {
    fn between(before: &Counters, after: &Counters) -> Moved {
        let by_reason = std::array::from_fn(|reason| after.drops[reason] - before.drops[reason]);
        let replies_full = by_reason[DropReason::RepliesFull as usize];
        Moved {
            drops: by_reason.iter().sum::<u64>() - replies_full,
            replies_full,
            updates: after.updates_in - before.updates_in,
            changes: after.subscription_changes - before.subscription_changes,
            passed: after.connects_passed - before.connects_passed,
            by_reason,
        }
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.by_reason[reason as usize]
    }

    fn is_one_drop(&self, reason: DropReason) -> bool {
        (self.drops, self.dropped(reason), self.updates, self.changes) == (1, 1, 0, 0)
    }

    /// Whether the counters moved as this datagram can move them: what does not parse is one drop
    /// for its reason; an update, a record or a subscribe packet is accepted or dropped, never
    /// both. If so, whether it is to be answered.
    fn accounts_for(&self, datagram: &[u8]) -> Option<bool> {
        let Moved { drops, updates, changes, .. } = *self;
        if self.replies_full > 1 {
            return None;
        }
        let packet = match Packet::new_checked(datagram) {
            Ok(packet) => packet,
            Err(error) => return self.is_one_drop(error.into()).then_some(false),
        };
        match packet.header().kind {
            Kind::Data | Kind::Bundle => {
                let is_dropped_whole = (drops, updates) == (1, 0);
                let is_each_counted = updates_in(&packet) == Ok(drops + updates);
                ((is_dropped_whole || is_each_counted) && changes == 0).then_some(false)
            }
            Kind::Subscribe => {
                let asked = Subscribe::new_checked(&packet).map(|all| all.changes().count() as u64);
                let is_applied = asked.is_ok_and(|asked| changes == asked && drops <= asked);
                let is_refused = (drops, changes) == (1, 0);
                (updates == 0 && (is_refused || is_applied)).then_some(!is_refused)
            }
            _ => {
                // The end of a session is also that of the updates that wait for it.
                let drops = drops - self.dropped(DropReason::UnknownDestination);
                let is_answered_here = drops == 0 && self.passed == 0;
                (drops <= 1 && (updates, changes) == (0, 0)).then_some(is_answered_here)
            }
        }
    }
}

fn refused(what: &str, from: SocketAddr, datagram: &[u8], moved: &Moved) -> String {
    let kind = Packet::new_checked(datagram).map(|packet| packet.header().kind);
    format!("{what} ({kind:?}) from {from} is neither accepted nor counted as a drop: {moved:?}")
}

fn cookie_brought_back(datagram: &[u8]) -> Option<Tag> {
    let packet = Packet::new_checked(datagram).ok()?;
    match packet.header().kind {
        Kind::Connect => Connect::decode(&packet).ok().map(|connect| connect.cookie),
        Kind::Rebind => Rebind::decode(&packet).ok().map(|rebind| rebind.cookie),
        _ => None,
    }
}

/// How many updates a packet carries.
fn updates_in(packet: &Packet<'_>) -> Result<u64, WireError> {
    Ok(packet.updates()?.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_relay::{ComtreeConfig, Mode, Places, RelayConfig, Siblings};
    use canopy_session::{Keyring, SessionLimits};
    use canopy_wire::{Hello, Time};

    fn relay() -> Relay {
        let config = RelayConfig {
            mode: Mode::Immediate,
            comtrees: vec![ComtreeConfig::new(Comtree(1), 1)],
            places: Places::new(2),
            max_sessions: 2,
            limits: SessionLimits::default(),
            tables: TableLimits::default(),
            smallest_set: None,
        };
        Relay::new(config, Siblings::alone(), Keyring::new([1; 16]), &[2; 16])
    }

    fn books() -> Books {
        let tables = TableLimits::default();
        Books::new(Limits { max_sessions: 2, tables, one_session: true })
    }

    fn stranger() -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 7], 7))
    }

    fn hello() -> Vec<u8> {
        let mut out = [0; 100];
        let len = Hello { nonce: 1 }.encode(Comtree(1), &mut out).unwrap();
        out[..len].to_vec()
    }

    /// A relay is greeted; what it answers is noted if `noted`.
    fn greeted(noted: bool) -> Verdict {
        let (mut relay, mut books) = (relay(), books());
        let mut page = Page::begin(&relay);
        let before = relay.counters().clone();
        relay.handle_datagram(Time::ZERO, stranger(), &hello());
        books.handled(&mut page, stranger(), &hello(), (&before, relay.counters()))?;
        let mut sent = Vec::new();
        relay.transmit(Time::ZERO, |batch| {
            for transmit in batch.transmits() {
                sent.push(batch.parts(transmit).flatten().copied().collect::<Vec<u8>>());
            }
        });
        assert_eq!(sent.len(), 1);
        if noted {
            books.sends(&mut page, stranger(), &sent[0], relay.counters())?;
        }
        books.turn_ends(&relay, &page)
    }

    #[test]
    fn a_send_that_was_not_counted_or_not_made_is_found() {
        assert_eq!(greeted(true), Ok(()));
        assert!(greeted(false).unwrap_err().contains("the relay counted"));
    }

    #[test]
    fn a_datagram_that_is_not_counted_is_found() {
        let (counters, mut page) = (Counters::default(), Page::begin(&relay()));
        let moved = (&counters, &counters);
        assert!(books().handled(&mut page, stranger(), &hello(), moved).is_err());
        let mut after = counters.clone();
        (after.datagrams_in, after.bytes_in) = (1, 3);
        assert!(books().handled(&mut page, stranger(), b"abc", (&counters, &after)).is_err());
        after.drop(DropReason::Version);
        assert_eq!(books().handled(&mut page, stranger(), b"abc", (&counters, &after)), Ok(()));
    }

    #[test]
    fn more_than_came_is_not_sent_to_who_proved_nothing() {
        let (counters, mut page) = (Counters::default(), Page::begin(&relay()));
        let error = books().sends(&mut page, stranger(), &hello(), &counters).unwrap_err();
        assert!(error.contains("proved nothing"), "{error}");
    }
}
