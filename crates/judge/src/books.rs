//! The books on one start of a relay: every datagram is accepted or counted as a drop, what is
//! sealed is accepted once, counters add up, tables stay within their limits, what the relay sends
//! parses, is for the session that is there and no longer than agreed with it, an ip:port that has
//! not brought back a cookie is sent no more bytes than came from it, and whom a server has
//! restricted or thrown out is so.

use crate::conduct::{Conducts, Nonce};
use canopy_relay::{Counters, Relay, TableLimits};
use canopy_session::{GroupOpener, LoggedKeys};
use canopy_wire::{
    Address, Challenge, Class, Comtree, Connect, Connected, Cookie, Downlink, DropReason, GroupKey,
    GroupKeyNumber, Joined, Kind, Packet, Rebind, SEAL_LEN, Sealed, SessionId, Subscribe, Tag,
    VERSION, WireError,
};
use std::borrow::Cow;
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
    /// What was agreed with the latest session of each number.
    sessions: BTreeMap<SessionId, Agreed>,
    /// The keys of the sessions of each number, the latest last.
    keys: BTreeMap<SessionId, Vec<LoggedKeys>>,
    /// The tags of the sealed packets that were accepted. No two packets have the same.
    accepted: BTreeSet<Tag>,
    /// By which the relay seals for all members of a comtree.
    group_keys: Vec<GroupOpener>,
    /// The session that was given an address last.
    by_address: BTreeMap<(Comtree, Address), Nonce>,
    conducts: Conducts,
}

/// What the relay told a participant of its session.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    id: SessionId,
    nonce: Nonce,
    comtree: Comtree,
    address: Address,
    max_datagram: u16,
    downlink: Downlink,
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
    session: Option<Agreed>,
}

type Verdict = Result<(), String>;

/// Of the first byte, those that say whose a packet is.
const CLASS_BITS: u8 = 7;

/// No shorter datagram is told that there is no such session.
const LEAST_UNKNOWN: usize = 24;

impl Agreed {
    fn with(keys: &LoggedKeys) -> Agreed {
        let LoggedKeys { session: id, nonce, comtree, joined, .. } = *keys;
        let Joined { address, max_datagram, downlink, .. } = joined;
        Agreed { id, nonce, comtree, address, max_datagram, downlink }
    }
}

impl Page {
    /// A turn begins.
    pub fn begin(relay: &Relay) -> Page {
        Page { before: relay.counters().clone(), sent: Sent::default(), unanswered: 0 }
    }
}

impl Books {
    /// The books on a relay that was just started.
    pub fn new(limits: Limits) -> Books {
        Books {
            limits,
            accounts: BTreeMap::new(),
            sessions: BTreeMap::new(),
            keys: BTreeMap::new(),
            accepted: BTreeSet::new(),
            group_keys: Vec::new(),
            by_address: BTreeMap::new(),
            conducts: Conducts::default(),
        }
    }

    /// The relay has opened a session, with these keys.
    pub fn opened(&mut self, keys: LoggedKeys) {
        self.by_address.insert((keys.comtree, keys.joined.address), keys.nonce);
        self.keys.entry(keys.session).or_default().push(keys);
    }

    /// The relay has made a key for all members of a comtree.
    pub fn made(&mut self, key: &GroupKey) {
        self.group_keys.push(GroupOpener::new(key));
    }

    /// What a datagram says: itself, or what is sealed in it. `None` if nobody can open it.
    pub fn read<'a>(&self, datagram: &'a [u8], from_relay: bool) -> Option<Cow<'a, [u8]>> {
        if from_relay && is_of(Class::Group, datagram) {
            let number = GroupKeyNumber::of(datagram)?;
            let mut of_number = self.group_keys.iter().filter(|key| key.number() == number);
            return of_number.find_map(|key| key.peek(datagram)).map(Cow::Owned);
        }
        if !is_sealed(datagram) {
            return Some(Cow::Borrowed(datagram));
        }
        self.unseal(datagram, from_relay).map(|(_, read)| Cow::Owned(read))
    }

    /// What is sealed in a datagram, and for which session.
    fn unseal(&self, datagram: &[u8], from_relay: bool) -> Option<(&LoggedKeys, Vec<u8>)> {
        let Sealed { session: id, .. } = Sealed::of(datagram)?;
        let opened = |keys: &LoggedKeys| match from_relay {
            true => keys.from_relay.peek(datagram),
            false => keys.from_participant.peek(datagram),
        };
        let mut of_number = self.keys.get(&id)?.iter().rev();
        of_number.find_map(|keys| Some((keys, opened(keys)?)))
    }

    /// A datagram from an ip:port was handled, and the counters moved from `before` to `after`.
    ///
    /// # Errors
    /// It is neither accepted nor dropped for a reason, or both; or it was accepted before.
    pub fn handled(
        &mut self,
        page: &mut Page,
        from: SocketAddr,
        datagram: &[u8],
        (before, after): (&Counters, &Counters),
    ) -> Verdict {
        let read = self.read(datagram, false);
        let account = self.accounts.entry(from).or_default();
        account.bytes_in += datagram.len() as u64;
        if let Some(cookie) = read.as_deref().and_then(cookie_brought_back) {
            account.is_proved |= account.cookies.contains(&cookie);
        }
        let is_counted = after.datagrams_in == before.datagrams_in + 1
            && after.bytes_in == before.bytes_in + datagram.len() as u64;
        let moved = Moved::between(before, after);
        let Some(wants_answer) =
            moved.accounts_for(datagram, read.as_deref()).filter(|_| is_counted)
        else {
            return Err(refused("a datagram", from, datagram, &moved));
        };
        page.unanswered += u64::from(wants_answer && moved.replies_full == 0);
        if is_sealed(datagram) && moved.is_accepted() && !self.is_first(datagram, read.as_deref()) {
            return Err(format!("a sealed datagram from {from} was accepted a second time"));
        }
        // Another data thread hears of a verdict later than its server is answered.
        if self.limits.one_session { self.judged(from, datagram, &moved) } else { Ok(()) }
    }

    /// Holds what was accepted of a session to what servers have said of it, and notes what it asks.
    fn judged(&mut self, from: SocketAddr, datagram: &[u8], moved: &Moved) -> Verdict {
        let Some((keys, read)) = self.unseal(datagram, false) else { return Ok(()) };
        let Ok(packet) = Packet::new_checked(&read) else { return Ok(()) };
        let LoggedKeys { nonce, comtree, .. } = *keys;
        if self.conducts.is_thrown_out(nonce) && moved.is_accepted() {
            return Err(format!("what {from} sent was accepted, whom a server had thrown out"));
        }
        match packet.header().kind {
            Kind::Updates => {
                let allowed = packet.updates().map_or(0, |all| {
                    all.filter(|one| self.conducts.may_publish(nonce, one)).count() as u64
                });
                if moved.updates > allowed {
                    let accepted = moved.updates;
                    return Err(format!(
                        "of updates from {from} {accepted} were accepted where servers leave {allowed}"
                    ));
                }
            }
            Kind::Request if moved.drops == moved.dropped(DropReason::UnknownDestination) => {
                let by_address = &self.by_address;
                let of_address = |whom| by_address.get(&(comtree, whom)).copied();
                self.conducts.asks(nonce, &packet, of_address);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a sealed datagram that was accepted had not been before. A rebind comes before its path
    /// is proved, so its number is not noted, and each copy of it is accepted: the cookie in it counts.
    fn is_first(&mut self, datagram: &[u8], read: Option<&[u8]>) -> bool {
        let packet = read.and_then(|read| Packet::new_checked(read).ok());
        let is_rebind = packet.is_some_and(|packet| packet.header().kind == Kind::Rebind);
        let is_new = datagram.last_chunk().is_none_or(|tag| self.accepted.insert(*tag));
        is_new || is_rebind
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
        let read = self.read(datagram, true);
        let read = read.ok_or_else(|| format!("the relay sent {to} what nobody can open"))?;
        let packet = Packet::new_checked(&read)
            .map_err(|error| format!("the relay sent {to} what is no packet: {error}"))?;
        let updates = updates_in(&packet)
            .map_err(|error| format!("the relay sent {to} updates that are none: {error}"))?;
        page.sent.datagrams += 1;
        page.sent.bytes += datagram.len() as u64;
        page.sent.updates += updates;
        let account = self.accounts.entry(to).or_default();
        account.bytes_out += datagram.len() as u64;
        account.hear(&packet, &self.keys, &mut self.sessions);
        let kind = packet.header().kind;
        let Account { bytes_in, bytes_out, .. } = *account;
        if !account.is_proved && bytes_out > bytes_in {
            return Err(format!(
                "{to}, which proved nothing, was sent {bytes_out} bytes for {bytes_in} (last: {kind:?})"
            ));
        }
        // That a part of what it sends is dropped, a participant is told beside all answers.
        if !matches!(kind, Kind::Updates | Kind::Busy | Kind::GroupKey) {
            page.unanswered = page.unanswered.saturating_sub(1);
        }
        if kind == Kind::Response && self.limits.one_session {
            let asker = self.unseal(datagram, true).map(|(keys, _)| keys.nonce);
            if asker.is_some_and(|asker| !self.conducts.answers(asker, &packet)) {
                return Err(format!("{to} asked twice and was answered in two ways"));
            }
        }
        let Some(account) = self.accounts.get(&to) else { return Ok(()) };
        // A reply that there was no room for may have told of the session.
        if self.limits.one_session && counters.dropped(DropReason::RepliesFull) == 0 {
            account.expects(to, &packet, datagram[0] & CLASS_BITS)?;
            return account.may_hear(to, &packet, &self.conducts);
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
    fn hear(
        &mut self,
        packet: &Packet<'_>,
        keys: &BTreeMap<SessionId, Vec<LoggedKeys>>,
        sessions: &mut BTreeMap<SessionId, Agreed>,
    ) {
        let id = packet.header().session;
        let cookie = match packet.header().kind {
            Kind::Cookie => Cookie::decode(packet).ok().map(|cookie| cookie.cookie),
            Kind::Challenge => Challenge::decode(packet).ok().map(|challenge| challenge.cookie),
            Kind::Connected => {
                let nonce = Connected::decode(packet).ok().map(|connected| connected.nonce);
                let keys = keys.values().flatten().find(|keys| Some(keys.nonce) == nonce);
                self.session = keys.map(Agreed::with);
                sessions.extend(self.session.map(|agreed| (agreed.id, agreed)));
                None
            }
            Kind::KeepaliveAck => {
                // It stayed, or has moved here.
                self.session = sessions.get(&id).copied();
                None
            }
            _ => None,
        };
        self.cookies.extend(cookie);
    }

    /// A session is sent nothing that a server has taken from it.
    fn may_hear(&self, to: SocketAddr, packet: &Packet<'_>, conducts: &Conducts) -> Verdict {
        let (Some(agreed), Ok(mut updates)) = (self.session, packet.updates()) else {
            return Ok(());
        };
        match updates.find(|one| !conducts.may_hear(agreed.nonce, one)) {
            Some(one) => {
                Err(format!("{to} was sent an update to {:?}, which servers forbid", one.dst))
            }
            None => Ok(()),
        }
    }

    /// What a session is sent is for the one that is there: updates of its comtree, to a group or to
    /// itself, and acknowledgements under its number. None is longer than agreed, with room for a seal.
    fn expects(&self, to: SocketAddr, packet: &Packet<'_>, class: u8) -> Verdict {
        let header = packet.header();
        if !matches!(header.kind, Kind::Updates | Kind::SubscribeAck) {
            return Ok(());
        }
        let Some(agreed) = self.session else {
            return Err(format!("{to} was sent {:?} and has no session", header.kind));
        };
        // What all members can read, or everybody, is for all; and there only, the same goes to many.
        let is_to_many = class != Class::Sealed as u8;
        let is_ours =
            |dst: Address| dst.is_group() || (dst == agreed.address && class != Class::Group as u8);
        let is_for_it = packet.updates().is_ok_and(|mut all| all.all(|one| is_ours(one.dst)));
        let is_its_number = header.session == if is_to_many { SessionId::NONE } else { agreed.id };
        let is_right = match (header.kind, agreed.downlink) {
            (Kind::Updates, Downlink::None) => class == Class::Session as u8,
            (Kind::Updates, Downlink::Group) => class != Class::Session as u8,
            _ => class == Class::Sealed as u8,
        };
        if !is_right {
            return Err(format!("{to} has {agreed:?}, and {:?} of class {class}", header.kind));
        }
        if header.comtree != agreed.comtree || !is_for_it || !is_its_number {
            return Err(format!("{to} has {agreed:?} and was sent another's {:?}", header.kind));
        }
        let (len, most) = (packet.datagram_len() + SEAL_LEN, agreed.max_datagram);
        if len > usize::from(most) {
            return Err(format!("{to} was sent {len} bytes, seal included, where {most} may be"));
        }
        Ok(())
    }
}

/// How far the counters moved with one datagram.
#[derive(Debug)]
struct Moved {
    /// Without replies that there was no room for, or that were too many to one ip:port.
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
        let replies_full = by_reason[DropReason::RepliesFull as usize]
            + by_reason[DropReason::RepliesRate as usize];
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

    fn is_accepted(&self) -> bool {
        self.drops == 0 || self.updates > 0 || self.changes > 0
    }

    fn is_one_drop(&self, reason: DropReason) -> bool {
        (self.drops, self.dropped(reason), self.updates, self.changes) == (1, 1, 0, 0)
    }

    /// Whether the counters moved as this datagram can move them: what does not parse is one drop
    /// for its reason; an update or a subscribe packet is accepted or dropped, never both. If so,
    /// whether it is to be answered.
    fn accounts_for(&self, datagram: &[u8], read: Option<&[u8]>) -> Option<bool> {
        let Moved { drops, updates, changes, .. } = *self;
        if self.replies_full > 1 {
            return None;
        }
        if is_sealed(datagram) {
            // A seal that the relay does not know, or knows already. Whoever has no session is told.
            let is_unknown = self.is_one_drop(DropReason::UnknownSource);
            let reasons = [DropReason::Forged, DropReason::Replayed, DropReason::Malformed];
            let is_dropped = is_unknown || reasons.into_iter().any(|one| self.is_one_drop(one));
            if read.is_none() || (is_dropped && !self.is_one_drop(DropReason::Malformed)) {
                let is_told = is_unknown && read.is_none() && datagram.len() >= LEAST_UNKNOWN;
                return is_dropped.then_some(is_told);
            }
        }
        let read = read?;
        let packet = match Packet::new_checked(read) {
            Ok(packet) => packet,
            Err(error) => return self.is_one_drop(error.into()).then_some(false),
        };
        let is_of_session = packet.header().kind.class() == Class::Session;
        if is_of_session && !is_sealed(datagram) {
            return self.is_one_drop(DropReason::Forged).then_some(false);
        }
        match packet.header().kind {
            Kind::Updates => {
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
            // A request that is refused is answered too, unless its asker may not ask at all.
            Kind::Request => {
                let drops = drops - self.dropped(DropReason::UnknownDestination);
                let refused = [DropReason::RequestNotAllowed, DropReason::BadToken];
                let is_answered = drops == 0 || refused.iter().any(|one| self.dropped(*one) == 1);
                (drops <= 1 && (updates, changes) == (0, 0)).then_some(is_answered)
            }
            // Whoever brings no good token is told so.
            Kind::Connect if self.is_one_drop(DropReason::BadToken) => Some(true),
            // It is answered only if there is a newer key.
            Kind::GroupKeyHeld => (drops <= 1 && (updates, changes) == (0, 0)).then_some(false),
            _ => {
                // The end of a session is also that of the updates that wait for it.
                let drops = drops - self.dropped(DropReason::UnknownDestination);
                let is_answered_here = self.passed == 0 && drops == 0;
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

fn is_sealed(datagram: &[u8]) -> bool {
    Sealed::of(datagram).is_some()
}

/// Whether a datagram says that it is of a class.
fn is_of(class: Class, datagram: &[u8]) -> bool {
    datagram.first() == Some(&(VERSION | class as u8))
}

/// How many updates a packet carries.
fn updates_in(packet: &Packet<'_>) -> Result<u64, WireError> {
    Ok(packet.updates()?.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_relay::{
        ADDRESS_REST, Budgets, ComtreeConfig, Gate, Mode, Places, RelayConfig, Siblings,
    };
    use canopy_session::{GroupKeyMaker, Keyring, Session, SessionConfig, SessionLimits};
    use canopy_wire::{
        Flags, Group, Header, Hello, Level, MAX_DATAGRAM, Record, SAFE_DATAGRAM, Suite, Time,
        encode_update,
    };

    fn relay() -> Relay {
        let config = RelayConfig {
            mode: Mode::Immediate,
            comtrees: vec![ComtreeConfig::new(Comtree(1), 1)],
            trust: None,
            origin: canopy_relay::UnixTime(0),
            places: Places::new(2),
            max_sessions: 2,
            max_datagram: SAFE_DATAGRAM as u16,
            address_rest: ADDRESS_REST,
            life: None,
            log_keys: true,
            limits: SessionLimits::default(),
            tables: TableLimits::default(),
            budgets: Budgets::default(),
            gate: Gate::open(),
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
        relay.handle_datagram(Time::ZERO, stranger(), &mut hello());
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
    fn what_is_sealed_for_no_session_is_to_be_answered() {
        let (mut relay, mut books) = (relay(), books());
        let (mut page, before) = (Page::begin(&relay), relay.counters().clone());
        let mut sealed = [7; 40];
        sealed[0] = VERSION | Class::Sealed as u8;
        relay.handle_datagram(Time::ZERO, stranger(), &mut sealed.clone());
        let moved = (&before, relay.counters());
        assert_eq!(books.handled(&mut page, stranger(), &sealed, moved), Ok(()));
        let error = books.turn_ends(&relay, &page).unwrap_err();
        assert!(error.contains("not answered"), "{error}");
    }

    #[test]
    fn what_is_sealed_and_accepted_a_second_time_is_found() {
        let (mut relay, mut books) = (relay(), books());
        let mut session = Session::new(SessionConfig::new(Comtree(1), [3; 16]));
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = session.poll_transmit(Time::ZERO, &mut out) {
            relay.handle_datagram(Time::ZERO, stranger(), &mut out[..len]);
            relay.transmit(Time::ZERO, |batch| {
                for transmit in batch.transmits() {
                    let mut said: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                    session.handle_datagram(Time::ZERO, &mut said, |_| {}).unwrap();
                }
            });
        }
        books.opened(relay.poll_key_log().unwrap());
        let dst = Group::new(3).address();
        let len = session.publish(dst, Level(0), Flags(0), b"an update", &mut out).unwrap();
        let (mut page, before) = (Page::begin(&relay), relay.counters().clone());
        relay.handle_datagram(Time::ZERO, stranger(), &mut out[..len].to_vec());
        let moved = (&before, relay.counters());
        assert_eq!(books.handled(&mut page, stranger(), &out[..len], moved), Ok(()));
        let error = books.handled(&mut page, stranger(), &out[..len], moved).unwrap_err();
        assert!(error.contains("a second time"), "{error}");
    }

    #[test]
    fn more_than_came_is_not_sent_to_who_proved_nothing() {
        let error = sent(&mut books(), &hello()).unwrap_err();
        assert!(error.contains("proved nothing"), "{error}");
    }

    fn sent(books: &mut Books, datagram: &[u8]) -> Verdict {
        let page = &mut Page::begin(&relay());
        books.sends(page, stranger(), datagram, &Counters::default())
    }

    /// The books on a relay that has told someone of session 5, which may be sent 1,232 bytes, and of
    /// whose updates nothing is sealed.
    fn books_on_a_session() -> Books {
        let mut books = books();
        let account = books.accounts.entry(stranger()).or_default();
        (account.bytes_in, account.is_proved) = (60, true);
        account.session = Some(Agreed {
            id: SessionId::new(5),
            nonce: 1,
            comtree: Comtree(1),
            address: Address::unicast(1, 7),
            max_datagram: SAFE_DATAGRAM as u16,
            downlink: Downlink::None,
        });
        books
    }

    fn update(comtree: u32, dst: Address, session: SessionId) -> Vec<u8> {
        let mut out = [0; MAX_DATAGRAM];
        let header = Header::new(Kind::Updates, session, Comtree(comtree));
        let len = encode_update(&header, &Record::new(dst, 0, b"an update"), &mut out).unwrap();
        out[..len].to_vec()
    }

    #[test]
    fn what_is_not_for_the_session_there_is_found() {
        let (own, group) = (Address::unicast(1, 7), Group::new(3).address());
        let mut books = books_on_a_session();
        for dst in [own, group] {
            assert_eq!(sent(&mut books, &update(1, dst, SessionId::NONE)), Ok(()));
        }
        let wrong = [
            update(1, Address::unicast(1, 8), SessionId::NONE),
            update(2, group, SessionId::NONE),
            update(1, group, SessionId::new(5)),
        ];
        for datagram in wrong {
            let error = sent(&mut books, &datagram).unwrap_err();
            assert!(error.contains("another's"), "{error}");
        }
        // Acknowledgements are sealed always.
        let stray = Header::new(Kind::SubscribeAck, SessionId::new(5), Comtree(1));
        let error = sent(&mut books, &[&stray.encode(0)[..], &[0; 4]].concat()).unwrap_err();
        assert!(error.contains("of class 1"), "{error}");
    }

    #[test]
    fn what_all_members_could_read_is_for_all() {
        let mut books = books_on_a_session();
        let account = books.accounts.get_mut(&stranger()).unwrap();
        account.session = account.session.map(|it| Agreed { downlink: Downlink::Group, ..it });
        let mut sealer = GroupKeyMaker::new(&[1; 16], 0, 1).make(Suite::Aes128Gcm);
        let mut sealed = |dst| {
            let mut datagram = update(1, dst, SessionId::NONE);
            datagram.resize(datagram.len() + SEAL_LEN, 0);
            assert!(sealer.seal(&mut datagram));
            datagram
        };
        let (to_all, to_one) = (sealed(Group::new(3).address()), sealed(Address::unicast(1, 7)));
        let error = sent(&mut books, &to_all).unwrap_err();
        assert!(error.contains("nobody can open"), "{error}");
        books.made(&sealer.to_tell());
        assert_eq!(sent(&mut books, &to_all), Ok(()));
        let error = sent(&mut books, &to_one).unwrap_err();
        assert!(error.contains("another's"), "{error}");
        let clear = update(1, Group::new(3).address(), SessionId::NONE);
        let error = sent(&mut books, &clear).unwrap_err();
        assert!(error.contains("of class 1"), "{error}");
    }

    #[test]
    fn a_longer_datagram_than_agreed_is_found() {
        let mut books = books_on_a_session();
        let mut datagram = update(1, Group::new(3).address(), SessionId::NONE);
        datagram.resize(SAFE_DATAGRAM - SEAL_LEN, 0);
        assert_eq!(sent(&mut books, &datagram), Ok(()));
        datagram.push(0);
        let error = sent(&mut books, &datagram).unwrap_err();
        assert!(error.contains("1233 bytes"), "{error}");
    }
}
