//! How states get from neighbour to neighbour: sent again until they are acknowledged, in small parts.

use super::{KnownLinks, KnownState, NEAR, Part, Rank, rank};
use canopy_session::PublicKey;
use canopy_wire::{
    LinkList, LinkState, LinkStateAck, LinkStateId, MAX_LINK_STATE_ACKS, SAFE_DATAGRAM, Time,
};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is not acknowledged is sent again after this, and then after twice as long each time.
const FIRST_REST: Duration = Duration::from_millis(250);
const MOST_REST: Duration = Duration::from_secs(4);
/// What is not acknowledged is not sent more often.
const MOST_TRIES: u32 = 8;
/// A neighbour that has not answered yet is sent one state, and that again, ever more seldom up to this: it may be of an
/// earlier release.
const MOST_SELDOM: Duration = Duration::from_secs(30);
/// How many states a neighbour is sent at once, and when the next are.
const MOST_AT_ONCE: usize = 32;
const PACE: Duration = Duration::from_millis(20);

/// What is sent to a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flooded {
    /// The neighbour's key.
    pub to: PublicKey,
    /// The packets, as if they were for cleartext.
    pub packets: Vec<Box<[u8]>>,
}

/// A state that a neighbour has yet to acknowledge.
#[derive(Clone, Copy, Debug)]
struct Sending {
    at: Time,
    tries: u32,
}

/// A neighbour whose link is up.
#[derive(Clone, Debug, Default)]
struct Neighbour {
    sending: BTreeMap<Part, Sending>,
    /// What it has sent, and is to be acknowledged.
    heard: BTreeSet<Part>,
    /// When it is sent more.
    next: Time,
    has_answered: bool,
    /// How long it has been waited for its first answer at last.
    knocked: Duration,
}

/// What all neighbours are sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Flood {
    neighbours: BTreeMap<PublicKey, Neighbour>,
    out: VecDeque<Flooded>,
}

impl Flood {
    /// A neighbour is there, and is told everything.
    pub(super) fn meet(&mut self, now: Time, key: PublicKey, known: &BTreeMap<Part, KnownState>) {
        let sending = known.keys().map(|part| (*part, Sending { at: now, tries: 0 })).collect();
        self.neighbours.insert(key, Neighbour { sending, ..Neighbour::default() });
    }

    /// A neighbour is there no more.
    pub(super) fn part(&mut self, key: &PublicKey) {
        self.neighbours.remove(key);
    }

    /// Something is new, which has come from that neighbour.
    pub(super) fn pass_on(&mut self, now: Time, part: Part, from: Option<&PublicKey>) {
        for (key, neighbour) in &mut self.neighbours {
            if Some(key) != from {
                neighbour.sending.insert(part, Sending { at: now, tries: 0 });
            }
        }
    }

    /// A neighbour has sent a state. It is told what is held now, and gets that if it is newer.
    pub(super) fn heard(
        &mut self,
        now: Time,
        from: &PublicKey,
        (id, distance): (LinkStateId, u8),
        known: &BTreeMap<Part, KnownState>,
    ) {
        let part = (id.relay, id.part);
        let Some(neighbour) = self.neighbours.get_mut(from) else { return };
        neighbour.answered(now);
        neighbour.heard.insert(part);
        let Some(state) = known.get(&part) else { return };
        // It holds one that has come by one link less.
        let holds = rank((id.life, id.number), distance.saturating_sub(1));
        if sent_rank(state) > holds {
            neighbour.sending.entry(part).or_insert(Sending { at: now, tries: 0 });
        } else {
            neighbour.sending.remove(&part);
        }
    }

    /// A neighbour holds this.
    pub(super) fn acknowledged(
        &mut self,
        now: Time,
        from: &PublicKey,
        (part, holds): (Part, Rank),
        known: &BTreeMap<Part, KnownState>,
    ) {
        let Some(neighbour) = self.neighbours.get_mut(from) else { return };
        neighbour.answered(now);
        if known.get(&part).is_none_or(|state| sent_rank(state) <= holds) {
            neighbour.sending.remove(&part);
        }
    }

    /// Makes packets of what is due.
    pub(super) fn send(&mut self, now: Time, known: &BTreeMap<Part, KnownState>) {
        for (key, neighbour) in &mut self.neighbours {
            let mut packets = neighbour.acks(known);
            if neighbour.next <= now {
                packets.extend(neighbour.states(now, known));
            }
            if !packets.is_empty() {
                self.out.push_back(Flooded { to: *key, packets });
            }
        }
    }

    /// What is to be sent next.
    pub(super) fn poll(&mut self) -> Option<Flooded> {
        self.out.pop_front()
    }

    /// When something is due.
    pub(super) fn due(&self) -> Option<Time> {
        let due = |neighbour: &Neighbour| {
            let first = neighbour.sending.values().map(|sending| sending.at).min()?;
            Some(first.max(neighbour.next))
        };
        self.neighbours.values().filter_map(due).min()
    }
}

impl Neighbour {
    fn answered(&mut self, now: Time) {
        if !self.has_answered {
            (self.has_answered, self.next) = (true, now);
        }
    }

    /// One state, to which it may answer.
    fn knock(&mut self, now: Time, known: &BTreeMap<Part, KnownState>) -> Vec<Box<[u8]>> {
        self.knocked = (self.knocked * 2).clamp(FIRST_REST, MOST_SELDOM);
        self.next = now + self.knocked;
        self.sending.retain(|part, _| known.contains_key(part));
        let first = self.sending.keys().find_map(|part| Some((*part, known.get(part)?)));
        first.and_then(|(part, state)| packet(now, part, state)).into_iter().collect()
    }

    fn acks(&mut self, known: &BTreeMap<Part, KnownState>) -> Vec<Box<[u8]>> {
        let held = core::mem::take(&mut self.heard);
        let held = held.into_iter().filter_map(|part| {
            let state = known.get(&part)?;
            Some((state.id(part), state.distance))
        });
        let held: Vec<(LinkStateId, u8)> = held.collect();
        let packet = |acks: &[(LinkStateId, u8)]| written(|out| LinkStateAck::encode(acks, out));
        held.chunks(MAX_LINK_STATE_ACKS).filter_map(packet).collect()
    }

    fn states(&mut self, now: Time, known: &BTreeMap<Part, KnownState>) -> Vec<Box<[u8]>> {
        if !self.has_answered {
            return if self.sending.is_empty() { Vec::new() } else { self.knock(now, known) };
        }
        let mut packets = Vec::new();
        let mut is_more = false;
        self.sending.retain(|part, sending| {
            let Some(state) = known.get(part) else { return false };
            if sending.at > now {
                return true;
            }
            if packets.len() >= MOST_AT_ONCE {
                is_more = true;
                return true;
            }
            let rest = (FIRST_REST * 2_u32.pow(sending.tries)).min(MOST_REST);
            (sending.at, sending.tries) = (now + rest, sending.tries + 1);
            packets.extend(packet(now, *part, state));
            sending.tries < MOST_TRIES
        });
        if is_more {
            self.next = now + PACE;
        }
        packets
    }
}

/// How a state is known to whoever it is sent to.
fn sent_rank(state: &KnownState) -> Rank {
    rank((state.life, state.number), state.distance.saturating_add(1))
}

/// A state as a neighbour is sent it: in detail if it is near to that.
fn packet(now: Time, part: Part, state: &KnownState) -> Option<Box<[u8]>> {
    let distance = state.distance.checked_add(1)?;
    let is_near = distance <= NEAR;
    let (is_detailed, links) = match &state.links {
        KnownLinks::Detailed(links) if is_near => {
            (true, links.iter().flat_map(|link| link.to_bytes()).collect::<Vec<u8>>())
        }
        links => (false, links.up().iter().flat_map(|link| link.to_be_bytes()).collect()),
    };
    let links = if is_detailed { LinkList::Detailed(&links) } else { LinkList::Summary(&links) };
    let age = state.age(now).as_secs().try_into().unwrap_or(u16::MAX);
    let KnownState { free_kbit, ref name, .. } = *state;
    let state = LinkState { id: state.id(part), age, distance, free_kbit, name, links };
    written(|out| state.encode(out))
}

fn written<E>(encode: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Option<Box<[u8]>> {
    let mut out = [0; SAFE_DATAGRAM];
    let len = encode(&mut out).ok()?;
    Some(out[..len].into())
}
