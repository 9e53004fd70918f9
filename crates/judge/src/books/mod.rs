//! The books on one start of a relay: every datagram is accepted or counted as a drop, what is
//! sealed is accepted once and no number seals two packets, counters add up, tables stay within their
//! limits, what the relay sends parses, is for the session that is there and no longer than agreed
//! with it, an ip:port that has not brought back a cookie gets no session and is sent no more bytes
//! than came from it, and whom a server has restricted or thrown out is so.

mod account;
mod moved;
mod proofs;
mod seals;
mod sessions;
#[cfg(test)]
mod tests;

use crate::conduct::Conducts;
use account::Account;
use canopy_relay::{Counters, Relay, TableLimits};
use canopy_session::{GroupOpener, LoggedKeys};
use canopy_wire::{
    Class, Connect, DropReason, GroupKey, GroupKeyNumber, Kind, Packet, Rebind, Sealed, Tag,
    VERSION, WireError,
};
use moved::Moved;
use proofs::Proofs;
use seals::{Seal, Seals};
use sessions::Sessions;
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// What a relay's data threads are limited to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most sessions of a data thread.
    pub max_sessions: u32,
    /// The size of a data thread's tables.
    pub tables: TableLimits,
    /// An ip:port has at most one session at a time. With several data threads it may have one on
    /// each, until the thread with the older one hears of the newer; and some may be shared.
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

/// The books on one start of a relay, with all its data threads. What they hold grows with the ip:ports
/// and addresses that there are, and not with time.
#[derive(Debug)]
pub struct Books {
    limits: Limits,
    accounts: BTreeMap<SocketAddr, Account>,
    sessions: Sessions,
    /// By which the relay seals for all members of a comtree: those that it made last, and how many it
    /// had made before each.
    group_keys: VecDeque<(u64, GroupOpener)>,
    conducts: Conducts,
    seals: Seals,
    /// How many turns have ended.
    turns: u64,
    keys_changed: u64,
    proofs: Proofs,
}

type Verdict = Result<(), String>;

/// Group keys that are kept, of all comtrees and data threads together: what was sealed with an older
/// one is not on its way any more.
const MAX_GROUP_KEYS: usize = 4096;

/// The bits of the first byte that say whose a packet is.
const CLASS_BITS: u8 = 7;

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
            sessions: Sessions::default(),
            group_keys: VecDeque::new(),
            conducts: Conducts::default(),
            seals: Seals::default(),
            turns: 0,
            keys_changed: 0,
            proofs: Proofs::default(),
        }
    }

    /// The relay has opened a session, with these keys.
    pub fn opened(&mut self, keys: LoggedKeys) {
        self.proofs.opened(keys.nonce);
        if let Some((session, nonce)) = self.sessions.open(keys) {
            self.seals.forget(session, nonce);
            if !self.sessions.has(nonce) {
                self.conducts.forget(nonce);
            }
        }
    }

    /// The relay has made a key for all members of a comtree.
    pub fn made(&mut self, key: &GroupKey) {
        if self.group_keys.len() == MAX_GROUP_KEYS
            && let Some((made, _)) = self.group_keys.pop_front()
        {
            self.seals.forget_group_key(made);
        }
        let made = self.group_keys.back().map_or(0, |(made, _)| made + 1);
        self.group_keys.push_back((made, GroupOpener::new(key)));
    }

    /// What a datagram says: itself, or what is sealed in it. `None` if nobody can open it.
    pub fn read<'a>(&self, datagram: &'a [u8], from_relay: bool) -> Option<Cow<'a, [u8]>> {
        self.read_by(datagram, from_relay).map(|(read, _)| read)
    }

    /// The nonce of the session for which the relay has sealed a datagram.
    pub fn sealed_for(&self, datagram: &[u8]) -> Option<u64> {
        self.sessions.unseal(datagram, true).map(|(keys, _)| keys.nonce)
    }

    /// The same, with what sealed it.
    fn read_by<'a>(
        &self,
        datagram: &'a [u8],
        from_relay: bool,
    ) -> Option<(Cow<'a, [u8]>, Option<Seal>)> {
        if from_relay && is_of(Class::Group, datagram) {
            let number = GroupKeyNumber::of(datagram)?;
            let mut of_number = self.group_keys.iter().filter(|(_, key)| key.number() == number);
            let opened = |(made, key): &(u64, GroupOpener)| Some((*made, key.peek(datagram)?));
            let (made, read) = of_number.find_map(opened)?;
            return Some((Cow::Owned(read), Some(Seal::Group(made))));
        }
        if !is_sealed(datagram) {
            return Some((Cow::Borrowed(datagram), None));
        }
        let (keys, read) = self.sessions.unseal(datagram, from_relay)?;
        let LoggedKeys { session, nonce, .. } = *keys;
        let by = Seal::Session { session, nonce, is_relays: from_relay };
        Some((Cow::Owned(read), Some(by)))
    }

    /// Whoever sealed a packet that opens gave it a number of its own, and if it `is_sent` just now, one
    /// after all before.
    fn is_sealed_once(&mut self, by: Option<Seal>, datagram: &[u8], is_sent: bool) -> Verdict {
        let Some(by) = by else { return Ok(()) };
        if let Seal::Session { session, nonce, is_relays } = by {
            let is_first = self.sessions.follow((session, nonce), datagram, is_relays);
            self.keys_changed += u64::from(is_first);
        }
        match is_sent {
            true => self.seals.sent(self.turns, by, datagram),
            false => self.seals.came(by, datagram),
        }
    }

    /// How often a side of a session went on with its next key.
    pub fn keys_changed(&self) -> u64 {
        self.keys_changed
    }

    /// A participant sends a datagram, whatever becomes of it on its way. Returns whether it can be read:
    /// not if it was sealed in a session of the relay's life before.
    ///
    /// # Errors
    /// Its number is another's, or not later than all before.
    pub fn said(&mut self, datagram: &[u8]) -> Result<bool, String> {
        let Some((_, sealed_by)) = self.read_by(datagram, false) else { return Ok(false) };
        self.turns += 1;
        self.is_sealed_once(sealed_by, datagram, true).map(|()| true)
    }

    /// A datagram from an ip:port was handled, and the counters moved from `before` to `after`.
    ///
    /// # Errors
    /// It is neither accepted nor dropped for a reason, or both; it was accepted before; or its number
    /// was another's, too.
    pub fn handled(
        &mut self,
        page: &mut Page,
        from: SocketAddr,
        datagram: &[u8],
        (before, after): (&Counters, &Counters),
    ) -> Verdict {
        let (read, sealed_by) = self.read_by(datagram, false).unzip();
        self.is_sealed_once(sealed_by.flatten(), datagram, false)?;
        let account = self.accounts.entry(from).or_default();
        account.bytes_in += datagram.len() as u64;
        let cookie = read.as_deref().and_then(cookie_brought_back);
        if cookie.is_some_and(|cookie| account.brings(&cookie))
            && let Some(packet) = read.as_deref()
        {
            self.proofs.brought_back(from, packet);
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
        if is_sealed(datagram) {
            let (is_accepted, is_rebind) = (moved.is_accepted(), is_rebind(read.as_deref()));
            self.sessions.came(from, datagram, (is_accepted, is_rebind));
            // A rebind comes before its path is proved, so its number is not noted, and each copy of it is
            // accepted: the cookie in it counts.
            if is_accepted && !is_rebind && !self.sessions.take(datagram) {
                return Err(format!("a sealed datagram from {from} was accepted a second time"));
            }
        }
        // Another data thread hears of a verdict later than its server is answered.
        if self.limits.one_session { self.judged(from, datagram, &moved) } else { Ok(()) }
    }

    /// Holds what was accepted of a session to what servers have said of it, and notes what it asks.
    fn judged(&mut self, from: SocketAddr, datagram: &[u8], moved: &Moved) -> Verdict {
        let Some((keys, read)) = self.sessions.unseal(datagram, false) else { return Ok(()) };
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
                let of_address = |whom| self.sessions.with_address(comtree, whom);
                self.conducts.asks(nonce, &packet, of_address);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a datagram of a participant's, which is to be handled next, comes too late to be opened: so
    /// much of its session has come since that the relay has let go of its key, or does not know any more
    /// whether it has taken it. Then the relay drops it, even if it is the first copy that reaches it.
    pub fn is_too_late(&self, datagram: &[u8]) -> bool {
        self.sessions.is_too_late(datagram)
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
        let read = self.read_by(datagram, true);
        let (read, sealed_by) =
            read.ok_or_else(|| format!("the relay sent {to} what nobody can open"))?;
        self.is_sealed_once(sealed_by, datagram, true)?;
        let packet = Packet::new_checked(&read)
            .map_err(|error| format!("the relay sent {to} what is no packet: {error}"))?;
        if !self.proofs.may_be_told(to, &packet) {
            return Err(format!(
                "{to}, which proved nothing in this handshake, was told of a session"
            ));
        }
        let updates = updates_in(&packet)
            .map_err(|error| format!("the relay sent {to} updates that are none: {error}"))?;
        page.sent.datagrams += 1;
        page.sent.bytes += datagram.len() as u64;
        page.sent.updates += updates;
        let account = self.accounts.entry(to).or_default();
        account.bytes_out += datagram.len() as u64;
        account.hear(&packet, &mut self.sessions);
        let kind = packet.header().kind;
        let Account { bytes_in, bytes_out, .. } = *account;
        if !account.is_proved && bytes_out > bytes_in {
            return Err(format!(
                "{to}, which proved nothing, was sent {bytes_out} bytes for {bytes_in} (last: {kind:?})"
            ));
        }
        // That a part of what it sends is dropped, a participant is told beside all answers, and it is
        // asked what has arrived.
        if !matches!(kind, Kind::Updates | Kind::Busy | Kind::GroupKey | Kind::Probe) {
            page.unanswered = page.unanswered.saturating_sub(1);
        }
        if kind == Kind::Response && self.limits.one_session {
            let asker = self.sessions.unseal(datagram, true).map(|(keys, _)| keys.nonce);
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
    pub fn turn_ends(&mut self, relay: &Relay, page: &Page) -> Verdict {
        self.turns += 1;
        if let Some(nonce) = self.proofs.broken() {
            return Err(format!(
                "session {nonce:#x} was opened for an ip:port that proved nothing"
            ));
        }
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
        self.holds(opened, sessions)
    }

    /// A relay, or one of its data threads, has opened so many sessions in its life, and holds so many:
    /// it keeps nothing of who has not brought back a cookie, whatever else it was sent.
    ///
    /// # Errors
    /// They are more than were proved.
    pub fn holds(&self, opened: u64, sessions: u32) -> Verdict {
        let handshakes = self.proofs.handshakes();
        if opened > handshakes {
            return Err(format!(
                "{opened} sessions were opened, where {handshakes} handshakes proved a path"
            ));
        }
        let paths = self.accounts.values().filter(|account| account.is_proved).count();
        if self.limits.one_session && sessions as usize > paths {
            return Err(format!("there are {sessions} sessions, where {paths} paths were proved"));
        }
        Ok(())
    }

    /// Seals what is in a datagram anew under another number, as [`Reader::seal_as`] does: so that these
    /// books can be checked.
    ///
    /// [`Reader::seal_as`]: canopy_session::Reader::seal_as
    pub fn seal_as(&self, datagram: &[u8], from_relay: bool, number: u32) -> Option<Vec<u8>> {
        let (keys, _) = self.sessions.unseal(datagram, from_relay)?;
        let reader = if from_relay { &keys.from_relay } else { &keys.from_participant };
        reader.seal_as(datagram, number)
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

fn is_rebind(read: Option<&[u8]>) -> bool {
    let packet = read.and_then(|read| Packet::new_checked(read).ok());
    packet.is_some_and(|packet| packet.header().kind == Kind::Rebind)
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
