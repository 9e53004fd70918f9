//! Link states: each relay tells all others how its links stand and what is free on them, from neighbour to neighbour,
//! without a controller (Forest §3.1). Who is near hears all of it, who is far a summary: which links are up, and the
//! most that is free on one of them.
//!
//! A relay says something [new](own) when a link comes up or fails, when what is measured or reserved has changed much, and
//! every now and then. Each such *state* has a number; whoever hears one that is newer than what it has passes it on to
//! all neighbours but the one that it came from, and again until they acknowledge it. Neighbours that have just found
//! each other tell each other everything. What is not said again is forgotten.

use canopy_session::PublicKey;
use canopy_wire::{Kind, LinkDetail, LinkList, LinkState, LinkStateAck, LinkStateId, Packet, Time};
use core::cmp::Reverse;
use core::time::Duration;
use flood::Flood;
use own::Own;
use std::collections::{BTreeMap, BTreeSet};

pub use flood::Flooded;

mod flood;
mod own;

/// How many links away relays are told in detail.
pub const NEAR: u8 = 3;
/// What a relay has not said again for so long is forgotten.
const GONE: Duration = Duration::from_secs(100);
/// It is looked for what is to be forgotten this often.
const FORGETS: Duration = Duration::from_secs(1);
/// How many states are known at most: of that many relays, unless they have more links than one state takes.
const MOST_KNOWN: usize = 8_192;

/// How many parts a relay's links have at most: it has 128 of them by its controller.
const MOST_PARTS: u8 = 4;

/// The relay whose links they are, and which part of them.
type Part = (PublicKey, u8);

/// The links of a relay, or of a part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownLinks {
    /// The links of one that is near.
    Detailed(Vec<LinkDetail>),
    /// The numbers of those that are up, of one that is far.
    Summary(Vec<u32>),
}

impl KnownLinks {
    /// The numbers of the links that are up.
    pub fn up(&self) -> Vec<u32> {
        match self {
            KnownLinks::Detailed(links) => {
                links.iter().filter(|link| link.is_up).map(|link| link.link).collect()
            }
            KnownLinks::Summary(up) => up.clone(),
        }
    }
}

/// What is known of a relay's links, or of a part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownState {
    life: u64,
    number: u32,
    /// When it has come here, and how old it was then.
    came: Time,
    age: Duration,
    /// How many links away the relay is; 0 for this one itself.
    pub distance: u8,
    /// What is free on the one of its links that has the most left, kbit/s.
    pub free_kbit: u32,
    /// What people call it.
    pub name: String,
    /// The links.
    pub links: KnownLinks,
}

impl KnownState {
    /// For how long it has been known anywhere.
    pub fn age(&self, now: Time) -> Duration {
        self.age + now.since(self.came)
    }

    fn id(&self, (relay, part): Part) -> LinkStateId {
        LinkStateId { relay, part, life: self.life, number: self.number }
    }

    fn rank(&self) -> Rank {
        rank((self.life, self.number), self.distance)
    }
}

/// Which of two states of one relay counts: the newer one, and of the same the one that has come the shorter way, as it
/// may say more.
type Rank = (u64, u32, Reverse<u8>);

fn rank((life, number): (u64, u32), distance: u8) -> Rank {
    (life, number, Reverse(distance.min(NEAR + 1)))
}

/// A relay as the states show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRelay<'a> {
    /// Its key.
    pub key: PublicKey,
    /// Whether links that both ends find up lead there.
    pub is_reachable: bool,
    /// What it has said, in parts.
    pub states: Vec<&'a KnownState>,
}

/// What is known of all relays' links.
#[derive(Clone, Debug)]
pub struct LinkStates {
    own: Own,
    /// When it is looked next what is to be forgotten.
    next_forget: Time,
    known: BTreeMap<Part, KnownState>,
    flood: Flood,
}

impl LinkStates {
    /// What a relay knows that has just started in this life, its time of day in nanoseconds.
    pub fn new(own: PublicKey, name: &str, life: u64) -> LinkStates {
        LinkStates {
            own: Own::new(own, name, life),
            next_forget: Time::ZERO,
            known: BTreeMap::new(),
            flood: Flood::default(),
        }
    }

    /// How this relay's links stand, all of them, by the neighbour's key. What follows is sent by [`LinkStates::review`].
    pub fn set_links(&mut self, now: Time, links: BTreeMap<PublicKey, LinkDetail>) {
        for (key, link) in &links {
            let was_up = self.own.links.get(key).is_some_and(|before| before.is_up);
            match link.is_up {
                true if !was_up => self.flood.meet(now, *key, &self.known),
                true => {}
                false => self.flood.part(key),
            }
        }
        let gone = self.own.links.keys().filter(|key| !links.contains_key(*key));
        gone.for_each(|key| self.flood.part(key));
        self.own.links = links;
        self.renew(now);
    }

    /// A link has come up, or gone down, as with [`LinkStates::set_links`]. Who was up before may have forgotten everything since.
    pub fn hear_link(&mut self, now: Time, neighbour: &PublicKey, up: bool) {
        let Some(link) = self.own.links.get_mut(neighbour) else { return };
        link.is_up = up;
        match up {
            true => self.flood.meet(now, *neighbour, &self.known),
            false => self.flood.part(neighbour),
        }
        self.renew(now);
    }

    /// Takes what a neighbour has said: a packet that can be read.
    pub fn hear(&mut self, now: Time, neighbour: &PublicKey, packet: &[u8]) {
        let Ok(packet) = Packet::new_checked(packet) else { return };
        match packet.header().kind {
            Kind::LinkStateAck => {
                let Ok(acks) = LinkStateAck::decode(&packet) else { return };
                for (id, distance) in acks.states() {
                    let holds = rank((id.life, id.number), distance);
                    let part = (id.relay, id.part);
                    self.flood.acknowledged(now, neighbour, (part, holds), &self.known);
                }
            }
            _ => {
                let Ok(state) = LinkState::decode(&packet) else { return };
                self.hear_state(now, neighbour, &state);
            }
        }
    }

    fn hear_state(&mut self, now: Time, from: &PublicKey, state: &LinkState<'_>) {
        let LinkStateId { relay, part, life, number } = state.id;
        if part >= MOST_PARTS {
            return;
        }
        let age = Duration::from_secs(state.age.into());
        let key = (relay, part);
        let heard = rank((life, number), state.distance);
        let known = self.known.get(&key);
        if relay == self.own.key {
            // It is still told, maybe from another life. What this relay says next is newer.
            if known.is_none_or(|known| (known.life, known.number) < (life, number)) {
                self.own.hear(part, (life, number));
            }
        } else if known.is_none_or(|known| known.rank() < heard)
            && age < GONE
            && (self.known.len() < MOST_KNOWN || known.is_some())
            && self.parts_of(relay).all(|(_, known)| known.life <= life)
        {
            // It may have had more parts in its life before.
            let is_former = |(_, known): (&Part, &KnownState)| known.life < life;
            if self.parts_of(relay).any(is_former) {
                self.known.retain(|(of, _), known| *of != relay || known.life >= life);
            }
            let links = match state.links {
                LinkList::Detailed(_) => KnownLinks::Detailed(state.links.details().collect()),
                LinkList::Summary(_) => KnownLinks::Summary(state.links.up().collect()),
            };
            let (distance, free_kbit) = (state.distance, state.free_kbit);
            let (came, name) = (now, state.name.to_owned());
            let known = KnownState { life, number, came, age, distance, free_kbit, name, links };
            self.known.insert(key, known);
            self.flood.pass_on(now, key, Some(from));
        }
        self.flood.heard(now, from, (state.id, state.distance), &self.known);
    }

    fn parts_of(&self, relay: PublicKey) -> impl Iterator<Item = (&Part, &KnownState)> {
        self.known.range((relay, 0)..(relay, MOST_PARTS))
    }

    /// Says and forgets what is to be, and sends what is due.
    pub fn review(&mut self, now: Time) {
        self.renew(now);
        self.flood.send(now, &self.known);
    }

    /// Says and forgets what is to be.
    fn renew(&mut self, now: Time) {
        if now >= self.next_forget {
            self.next_forget = now + FORGETS;
            let own = &self.own;
            self.known.retain(|part, state| own.has_part(*part) || state.age(now) < GONE);
        }
        if self.own.due(self.known.len()).is_some_and(|due| due <= now) {
            for (part, state) in self.own.say(now) {
                self.known.insert(part, state);
                self.flood.pass_on(now, part, None);
            }
        }
    }

    /// What is to be sent to a neighbour next.
    pub fn poll_flooded(&mut self) -> Option<Flooded> {
        self.flood.poll()
    }

    /// When [`LinkStates::review`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.flood.due().into_iter().chain(self.own.due(self.known.len())).min()
    }

    /// The relays to which links lead that both their ends find up, without this one.
    pub fn reachable(&self) -> BTreeSet<PublicKey> {
        let own = self.own.key;
        let mut ends: BTreeMap<u32, BTreeSet<PublicKey>> = BTreeMap::new();
        let others = self.known.iter().filter(|((relay, _), _)| *relay != own);
        for ((relay, _), state) in others {
            for link in state.links.up() {
                ends.entry(link).or_default().insert(*relay);
            }
        }
        for link in self.own.links.values().filter(|link| link.is_up) {
            ends.entry(link.link).or_default().insert(own);
        }
        let mut links: BTreeMap<PublicKey, Vec<u32>> = BTreeMap::new();
        for (link, ends) in &ends {
            ends.iter().for_each(|end| links.entry(*end).or_default().push(*link));
        }
        let (mut reached, mut next) = (BTreeSet::from([own]), vec![own]);
        while let Some(at) = next.pop() {
            for link in links.remove(&at).unwrap_or_default() {
                let of = ends.remove(&link).unwrap_or_default();
                next.extend(of.into_iter().filter(|to| reached.insert(*to)));
            }
        }
        reached.remove(&own);
        reached
    }

    /// All relays that are known, this one with them.
    pub fn relays(&self) -> Vec<KnownRelay<'_>> {
        let reachable = self.reachable();
        let mut relays: BTreeMap<PublicKey, Vec<&KnownState>> = BTreeMap::new();
        for ((relay, _), state) in &self.known {
            relays.entry(*relay).or_default().push(state);
        }
        let relay = |(key, states)| KnownRelay {
            key,
            is_reachable: key == self.own.key || reachable.contains(&key),
            states,
        };
        relays.into_iter().map(relay).collect()
    }
}
