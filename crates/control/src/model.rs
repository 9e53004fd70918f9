//! What the controller knows and keeps: relays, links, worlds, comtrees, members.
//!
//! These are records, as they are stored. What follows from them, which is every reservation, is
//! worked out anew when they are read, so that there is none that belongs to nobody.

use crate::codec::{CodecError, Coded, Reader, coded, coded_enum};
pub use crate::comtree::{ComtreeRecord, PeerLink, TreeAsk, TreeHop};
use crate::name::Name;
use canopy_plan::{Limits, Rate};
use canopy_wire::{Address, Comtree, PORTABLE_SITES, Time};
use core::net::SocketAddr;
use core::ops::RangeInclusive;

/// A relay's number, which is its site on every comtree: 1 to [`RelayId::MAX`]. A number is given
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayId(pub u16);

impl RelayId {
    /// The largest: from the next one on, sites are portable, and no relay's.
    pub const MAX: u16 = *PORTABLE_SITES.start() - 1;
}

/// A link's number. A number is given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A world's number. A number is given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorldId(pub u32);

/// By what a relay is known to others: its public key.
pub type Key = [u8; 32];

/// Who a member is, whatever its address: a digest of the credential that was checked. Whoever asks
/// again with the same gets what it has.
pub type Owner = [u8; 16];

/// What a relay is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayState {
    /// Registered, and not yet heard from by the neighbours.
    Joining,
    /// Carries comtrees, and takes members.
    Up,
    /// Carries comtrees, and takes no new members.
    Draining,
    /// Silent for so long that its members were given up.
    Gone,
}

/// A relay.
#[derive(Clone, Debug, PartialEq)]
pub struct Relay {
    /// Its number, and its site.
    pub id: RelayId,
    /// Its name.
    pub name: Name,
    /// Its public key.
    pub key: Key,
    /// Where participants and neighbours reach it.
    pub native: SocketAddr,
    /// What it can send and receive altogether, a second.
    pub uplink: Limits,
    /// How many members it has room for.
    pub places: u32,
    /// How many comtrees it can carry.
    pub comtrees: u32,
    /// What it is about.
    pub state: RelayState,
    /// Whether it is being removed: it drains, and goes once nothing of it is needed.
    pub removing: bool,
}

/// A relay that was removed. Its key registers no more until that is allowed again. Numbers are not given twice, so there
/// are no more of these than there are numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct RemovedRelay {
    /// The number that it had.
    pub id: RelayId,
    /// Its name.
    pub name: Name,
    /// Its public key.
    pub key: Key,
}

/// How many comtrees a relay can carry that says nothing else.
pub const COMTREES_OF_RELAY: u32 = 1024;

/// The most links of a relay.
pub const MOST_LINKS: usize = 128;

/// A link between two relays.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its number.
    pub id: LinkId,
    /// The relays at its ends. The first calls.
    pub ends: [RelayId; 2],
    /// What can be sent over it, each way.
    pub rate: Rate,
    /// The time one way, microseconds: what was given, until its ends have measured another one.
    pub delay_us: u32,
    /// Whose choice it is.
    pub origin: Origin,
    /// Whether it is being removed: comtrees move off it, and it goes once none runs over it.
    pub removing: bool,
}

/// Whose choice a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was given by an operator, who alone takes it away.
    Given,
    /// It was proposed when nothing was measured: the other relay had the fewest links.
    Unmeasured,
    /// The same, but it carried a tree when it was measured, and others would gain too little.
    Kept,
    /// It was proposed as one of the shortest that join all relays.
    Joins,
    /// It was proposed because one relay's failure would part others without it.
    Spare,
    /// It was proposed because the way round is long.
    Shortens,
}

impl Origin {
    /// Whether the controller has chosen it.
    pub fn is_proposed(self) -> bool {
        self != Origin::Given
    }
}

impl Link {
    /// The other end.
    pub fn other(&self, end: RelayId) -> RelayId {
        if self.ends[0] == end { self.ends[1] } else { self.ends[0] }
    }
}

/// When updates leave a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At once.
    Immediate,
    /// Every so many milliseconds.
    Periodic(u16),
}

/// How updates to participants are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downlink {
    /// Each copy with its receiver's key.
    Member,
    /// Once, with a key that all members have.
    Group,
    /// Not at all.
    None,
}

/// Which relays of a comtree are its core (Forest §3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Core {
    /// The root of its tree.
    Center,
    /// The root and its neighbours.
    CenterAndNeighbours,
    /// All.
    All,
    /// Relays of the tree each of which has a link with every other: they hear each other directly
    /// (federated games §3.1).
    Mesh,
}

/// A named family of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its name.
    pub name: Name,
    /// The first group.
    pub first: u32,
    /// How many groups there are, one after another.
    pub groups: u32,
}

/// What relays do where members of a world cannot be sent everything, and what those of a comtree have together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharing {
    /// Whoever is over its budget still gets an update so often of each publisher in its groups, milliseconds: one of
    /// [`Sharing::FLOORS_MS`].
    pub floor_ms: u16,
    /// Whether beyond the floor updates of higher levels go only where none of a lower level waits.
    pub levels_first: bool,
    /// What the members of a comtree send and receive together at most at a relay. A number that is 0 is what the relay's
    /// own settings say.
    pub together: Limits,
}

impl Sharing {
    /// How often whoever is over its budget can get updates, milliseconds.
    pub const FLOORS_MS: RangeInclusive<u16> = 100..=60_000;
}

impl Default for Sharing {
    fn default() -> Sharing {
        Sharing { floor_ms: 2_000, levels_first: false, together: Limits::default() }
    }
}

/// A shared space.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// Its number.
    pub id: WorldId,
    /// Its name.
    pub name: Name,
    /// Its comtrees, in order.
    pub comtrees: Vec<Comtree>,
    /// Its channels.
    pub channels: Vec<Channel>,
    /// The highest level that its members publish at and subscribe to.
    pub levels: u8,
    /// When updates leave.
    pub mode: Mode,
    /// How they are protected.
    pub downlink: Downlink,
    /// The limits of a member that asks for none.
    pub default: Limits,
    /// The rule for the core of its comtrees.
    pub core: Core,
    /// What members get who cannot be sent everything.
    pub sharing: Sharing,
    /// Whether it is being deleted: nobody enters, and who is in leaves.
    pub closing: bool,
}

/// Where a membership stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has a reservation, and its relay lets it in or is being told to.
    Held,
    /// The same, but its owner has another place, to which it moves: that one is held, and this one
    /// lasts until it is given back or its lease ends. If the other one ends first, this one is held.
    Moving,
    /// Its relay is being told that it has left; the reservation lasts until the relay says so.
    Leaving,
    /// It has nothing any more but its address, which nobody else gets before [`Member::until`].
    Resting,
}

/// An endpoint's lease in a world.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The world.
    pub world: WorldId,
    /// Its address on each of the world's comtrees. It is portable, so that it stays the same at another
    /// relay.
    pub address: Address,
    /// The relay that serves it, or did.
    pub relay: RelayId,
    /// Who it is.
    pub owner: Owner,
    /// What it sends and receives at most, on each comtree.
    pub limits: Limits,
    /// What is reserved for it: as much, or more as long as its relay may still let it do more.
    pub reserved: Limits,
    /// When its lease ends, or the rest of its address.
    pub until: Time,
    /// Where the membership stands.
    pub state: MemberState,
    /// Until when its owner may not enter again, if it was sent away so.
    pub barred: Option<Time>,
    /// By what it is in.
    pub entry: Entry,
    /// What its credential, or its backend, calls it; empty if nobody has said.
    pub subject: String,
    /// When the last of the tokens ends that name the address. A place may end before that.
    pub token_until: Time,
}

impl Member {
    /// Whether it has lost its place by no doing of its own, and may come back by what it was in.
    pub fn is_given_up(&self) -> bool {
        let has_left = matches!(self.state, MemberState::Leaving | MemberState::Resting);
        has_left && self.entry != Entry::default()
    }
}

/// By what a member is in: what came before it counts for its place no more. Whoever has left is in by nothing; whom its
/// relay has lost, or did not let in, may come back by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The number that the tokens of its place name, if a backend has let it in; 0 if it came by itself.
    pub let_in: u64,
    /// The number that its client has given to its visit, from a join to the leave; 0 if none. Of two visits, the one
    /// that has begun later has the higher number.
    pub visit: u64,
}

/// The numbers that are given next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The next relay's.
    pub relay: u16,
    /// The next link's.
    pub link: u32,
    /// The next world's.
    pub world: u32,
    /// The next comtree's. The numbers below [`Counters::FIRST_COMTREE`] are for control.
    pub comtree: u32,
}

impl Counters {
    /// The first comtree of a world.
    pub const FIRST_COMTREE: u32 = 16;
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { relay: 1, link: 1, world: 1, comtree: Counters::FIRST_COMTREE }
    }
}

coded! {
    RelayId { 0 }
    LinkId { 0 }
    WorldId { 0 }
    Channel { name, first, groups }
    RemovedRelay { id, name, key }
    Counters { relay, link, world, comtree }
    Entry { let_in, visit }
}
coded_enum!(Origin { Given = 0, Unmeasured = 1, Kept = 2, Joins = 3, Spare = 4, Shortens = 5 });
coded_enum!(RelayState { Joining = 0, Up = 1, Draining = 2, Gone = 3 });
coded_enum!(Downlink { Member = 0, Group = 1, None = 2 });
coded_enum!(Core { Center = 0, CenterAndNeighbours = 1, All = 2, Mesh = 3 });
coded_enum!(MemberState { Held = 0, Leaving = 1, Resting = 2, Moving = 3 });

impl Coded for Relay {
    fn put(&self, out: &mut Vec<u8>) {
        let Relay { id, name, key, native, uplink, places, comtrees, state, removing } = self;
        id.put(out);
        name.put(out);
        key.put(out);
        native.put(out);
        uplink.put(out);
        places.put(out);
        state.put(out);
        // Earlier releases read nothing behind that, or behind the next one.
        let is_usual = *comtrees == COMTREES_OF_RELAY;
        if *removing || !is_usual {
            removing.put(out);
        }
        if !is_usual {
            comtrees.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Relay, CodecError> {
        let (id, name, key) = (Coded::take(from)?, Coded::take(from)?, Coded::take(from)?);
        let (native, uplink) = (Coded::take(from)?, Coded::take(from)?);
        let (places, state) = (Coded::take(from)?, Coded::take(from)?);
        // Records that an earlier release has written end here: relays were removed at once.
        let removing = if from.is_at_end() { false } else { Coded::take(from)? };
        // Or here: relays did not say how many comtrees they carry.
        let comtrees = if from.is_at_end() { COMTREES_OF_RELAY } else { Coded::take(from)? };
        Ok(Relay { id, name, key, native, uplink, places, comtrees, state, removing })
    }
}

impl Coded for Sharing {
    fn put(&self, out: &mut Vec<u8>) {
        let Sharing { floor_ms, levels_first, together } = self;
        floor_ms.put(out);
        levels_first.put(out);
        together.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Sharing, CodecError> {
        let floor_ms = u16::take(from)?;
        if !Sharing::FLOORS_MS.contains(&floor_ms) {
            return Err(CodecError::Value("floor"));
        }
        Ok(Sharing { floor_ms, levels_first: Coded::take(from)?, together: Coded::take(from)? })
    }
}

impl Coded for World {
    fn put(&self, out: &mut Vec<u8>) {
        let World { id, name, comtrees, channels, levels, mode, downlink, .. } = self;
        let World { default, core, sharing, closing, .. } = self;
        id.put(out);
        name.put(out);
        comtrees.put(out);
        channels.put(out);
        levels.put(out);
        mode.put(out);
        downlink.put(out);
        default.put(out);
        core.put(out);
        closing.put(out);
        // An earlier release reads nothing behind that.
        if *sharing != Sharing::default() {
            sharing.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<World, CodecError> {
        Ok(World {
            id: Coded::take(from)?,
            name: Coded::take(from)?,
            comtrees: Coded::take(from)?,
            channels: Coded::take(from)?,
            levels: Coded::take(from)?,
            mode: Coded::take(from)?,
            downlink: Coded::take(from)?,
            default: Coded::take(from)?,
            core: Coded::take(from)?,
            closing: Coded::take(from)?,
            // Records that an earlier release has written end here: relays had settings of their own for that.
            sharing: if from.is_at_end() { Sharing::default() } else { Coded::take(from)? },
        })
    }
}

impl Coded for Link {
    fn put(&self, out: &mut Vec<u8>) {
        let Link { id, ends, rate, delay_us, origin, removing } = self;
        id.put(out);
        ends.put(out);
        rate.put(out);
        delay_us.put(out);
        origin.put(out);
        // An earlier release reads nothing behind that.
        if *removing {
            removing.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Link, CodecError> {
        let (id, ends) = (Coded::take(from)?, Coded::take(from)?);
        let (rate, delay_us) = (Coded::take(from)?, Coded::take(from)?);
        // Records that an earlier release has written end here. Whose choice they were nobody knows, so
        // nobody but an operator takes them away.
        let origin = if from.is_at_end() { Origin::Given } else { Coded::take(from)? };
        // Or here: links were removed at once.
        let removing = if from.is_at_end() { false } else { Coded::take(from)? };
        Ok(Link { id, ends, rate, delay_us, origin, removing })
    }
}

impl Coded for Member {
    fn put(&self, out: &mut Vec<u8>) {
        let Member { world, address, relay, owner, limits, reserved, .. } = self;
        let Member { until, state, barred, entry, subject, token_until, .. } = self;
        world.put(out);
        address.put(out);
        owner.put(out);
        limits.put(out);
        reserved.put(out);
        until.put(out);
        state.put(out);
        barred.put(out);
        relay.put(out);
        entry.put(out);
        subject.put(out);
        token_until.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Member, CodecError> {
        let (world, address): (_, Address) = (Coded::take(from)?, Coded::take(from)?);
        let (owner, limits, reserved) =
            (Coded::take(from)?, Coded::take(from)?, Coded::take(from)?);
        let (until, state, barred) = (Coded::take(from)?, Coded::take(from)?, Coded::take(from)?);
        // Records that an earlier release has written end here: an address was of its relay's site.
        let relay = if from.is_at_end() { RelayId(address.site()) } else { Coded::take(from)? };
        // Or here: a backend lets its players in anew.
        let entry = if from.is_at_end() { Entry::default() } else { Coded::take(from)? };
        // Or here: members had no names.
        let subject = if from.is_at_end() { String::new() } else { Coded::take(from)? };
        // Or here: a token ended with the place, or before.
        let token_until = if from.is_at_end() { until } else { Coded::take(from)? };
        Ok(Member {
            world,
            address,
            relay,
            owner,
            limits,
            reserved,
            until,
            state,
            barred,
            entry,
            subject,
            token_until,
        })
    }
}

impl Coded for [RelayId; 2] {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|end| end.put(out));
    }

    fn take(from: &mut Reader<'_>) -> Result<[RelayId; 2], CodecError> {
        Ok([RelayId::take(from)?, RelayId::take(from)?])
    }
}

impl Coded for (RelayId, LinkId) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<(RelayId, LinkId), CodecError> {
        Ok((RelayId::take(from)?, LinkId::take(from)?))
    }
}

impl Coded for Mode {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Mode::Immediate => 0_u16,
            Mode::Periodic(tick_ms) => *tick_ms,
        }
        .put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Mode, CodecError> {
        Ok(match u16::take(from)? {
            0 => Mode::Immediate,
            tick_ms => Mode::Periodic(tick_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relays_record_of_an_earlier_release_says_nothing_of_comtrees_and_is_read() {
        let relay = Relay {
            id: RelayId(3),
            name: Name::new("r").unwrap(),
            key: [7; 32],
            native: ([127, 0, 0, 1], 4040).into(),
            uplink: Limits::bits(7.0, 8.0),
            places: 9,
            comtrees: COMTREES_OF_RELAY,
            state: RelayState::Draining,
            removing: false,
        };
        let bytes = relay.to_bytes();
        assert_eq!(bytes.last(), Some(&2), "it ends with what the relay is about, as it did");
        let going = Relay { removing: true, ..relay.clone() };
        assert_eq!(going.to_bytes(), [&bytes[..], &[1]].concat());
        let small = Relay { comtrees: 8, ..relay.clone() };
        for of in [relay, going, small] {
            assert_eq!(Relay::of_bytes(&of.to_bytes()), Ok(of));
        }
    }

    #[test]
    fn a_worlds_record_of_an_earlier_release_says_nothing_of_sharing_and_is_read() {
        let world = World {
            id: WorldId(3),
            name: Name::new("w").unwrap(),
            comtrees: vec![Comtree(16)],
            channels: Vec::new(),
            levels: 2,
            mode: Mode::Periodic(50),
            downlink: Downlink::Group,
            default: Limits::bits(7.0, 8.0),
            core: Core::Mesh,
            sharing: Sharing::default(),
            closing: true,
        };
        let bytes = world.to_bytes();
        assert_eq!(World::of_bytes(&bytes).as_ref(), Ok(&world));
        assert_eq!(bytes.last(), Some(&1), "it ends with whether it is being deleted, as it did");
        let together = Limits::bits(0.0, 1e9);
        let sharing = Sharing { floor_ms: 100, levels_first: true, together };
        let world = World { sharing, ..world };
        let longer = world.to_bytes();
        assert_eq!(World::of_bytes(&longer).as_ref(), Ok(&world));
        assert_eq!(longer[..bytes.len()], bytes);
        for floor_ms in [0, 99, 60_001] {
            let nonsense = World { sharing: Sharing { floor_ms, ..sharing }, ..world.clone() };
            assert_eq!(World::of_bytes(&nonsense.to_bytes()), Err(CodecError::Value("floor")));
        }
    }
}
