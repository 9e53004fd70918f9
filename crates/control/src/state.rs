//! Everything that the controller knows, and the operations on it. An operation changes the state at
//! once, and says what is to be written and done; see [`Op`].

use crate::damping::Damping;
use crate::delay::Delays;
use crate::error::Refusal;
use crate::ledger::{Account, Lack, Ledger};
use crate::model::{
    ComtreeRecord, Counters, Link, LinkId, Member, MemberState, Owner, Relay, RelayId, RelayState,
    RemovedRelay, TreeAsk, TreeHop, World, WorldId,
};
use crate::name::Name;
use crate::op::Op;
use crate::running::{Running, Standbys};
use crate::settings::Settings;
use crate::shape::Load;
use crate::signal::{Branch, Item};
use crate::storage::Table;
use canopy_plan::Rate;
use canopy_wire::{Address, Comtree, Time};
use std::collections::{BTreeMap, BTreeSet};

/// How a link is found by its ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    /// The ends that do not hear the other.
    pub(crate) deaf: BTreeSet<RelayId>,
    /// The ends that have said how they find it.
    pub(crate) reported: BTreeSet<RelayId>,
    pub(crate) damping: Damping,
    /// What its ends measure.
    pub(crate) delays: Delays,
    /// Whether it was usable when that was last looked at.
    pub(crate) was_usable: bool,
    /// Whether it is being taken away.
    pub(crate) is_retired: bool,
    /// Whether it is proposed no more, and goes once nothing runs over it.
    pub(crate) is_surplus: bool,
}

/// The state.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) relays: BTreeMap<RelayId, Relay>,
    pub(crate) relay_names: BTreeMap<Name, RelayId>,
    /// Relays that were removed, by the numbers that they had.
    pub(crate) removed: BTreeMap<RelayId, RemovedRelay>,
    pub(crate) links: BTreeMap<LinkId, Link>,
    pub(crate) health: BTreeMap<LinkId, Health>,
    /// Both ends have said of a link for the first time that they hear each other.
    pub(crate) links_have_come: bool,
    pub(crate) worlds: BTreeMap<WorldId, World>,
    pub(crate) world_names: BTreeMap<Name, WorldId>,
    pub(crate) comtrees: BTreeMap<Comtree, Running>,
    pub(crate) members: BTreeMap<(WorldId, Address), Member>,
    pub(crate) owners: BTreeMap<(WorldId, Owner), Address>,
    /// Where those are still served who move to another relay.
    pub(crate) moving: BTreeMap<(WorldId, Owner), Address>,
    /// Portable addresses of those who leave or have left, to whom they come back. Of several of one owner
    /// it is the last.
    pub(crate) former: BTreeMap<(WorldId, Owner), Address>,
    /// Which of a world's portable addresses is tried next.
    pub(crate) next_addresses: BTreeMap<WorldId, u32>,
    /// When leases and rests end.
    pub(crate) ends: BTreeSet<(Time, WorldId, Address)>,
    /// Relays that run and are not heard now.
    pub(crate) silent: BTreeSet<RelayId>,
    /// Relays that have not said how their links stand, nor whether they are on detours, since the controller has started
    /// or did not hear them.
    pub(crate) unheard: BTreeSet<RelayId>,
    /// Which of those were unheard together with a neighbour since they were heard last.
    pub(crate) apart: BTreeSet<RelayId>,
    /// On which comtrees relays are on detours, as they have said last.
    pub(crate) detours: BTreeMap<RelayId, BTreeSet<Comtree>>,
    /// Which ways relays have found by themselves, as they have said last: over which link, and over which not.
    pub(crate) ways: BTreeMap<Comtree, BTreeMap<RelayId, [LinkId; 2]>>,
    /// Which of those were to be let go of, and may be told of still.
    pub(crate) ended_ways: BTreeSet<(RelayId, Comtree)>,
    /// Comtrees of which relays may have become idle that stay for a detour.
    pub(crate) unpruned: BTreeSet<Comtree>,
    /// Who was sent away and may not come back yet: until when.
    pub(crate) bars: BTreeMap<(WorldId, Owner), Time>,
    pub(crate) ledger: Ledger,
}

impl State {
    pub(crate) fn new(settings: Settings) -> State {
        State {
            settings,
            counters: Counters::default(),
            relays: BTreeMap::new(),
            relay_names: BTreeMap::new(),
            removed: BTreeMap::new(),
            links: BTreeMap::new(),
            health: BTreeMap::new(),
            links_have_come: false,
            worlds: BTreeMap::new(),
            world_names: BTreeMap::new(),
            comtrees: BTreeMap::new(),
            members: BTreeMap::new(),
            owners: BTreeMap::new(),
            moving: BTreeMap::new(),
            former: BTreeMap::new(),
            next_addresses: BTreeMap::new(),
            ends: BTreeSet::new(),
            silent: BTreeSet::new(),
            unheard: BTreeSet::new(),
            apart: BTreeSet::new(),
            detours: BTreeMap::new(),
            ways: BTreeMap::new(),
            ended_ways: BTreeSet::new(),
            unpruned: BTreeSet::new(),
            bars: BTreeMap::new(),
            ledger: Ledger::new(settings.share.clamp(0.0, 1.0)),
        }
    }

    /// By world and relay: its members who have a reservation.
    pub(crate) fn loads(&self) -> BTreeMap<(WorldId, RelayId), Load> {
        let mut loads: BTreeMap<(WorldId, RelayId), Load> = BTreeMap::new();
        for member in self.members.values().filter(|m| m.state != MemberState::Resting) {
            let (count, sum) = loads.entry((member.world, member.relay)).or_default();
            *count += 1;
            *sum = *sum + member.reserved;
        }
        loads
    }

    pub(crate) fn know_relay(&mut self, relay: Relay) {
        self.ledger.open_relay(&relay);
        self.relay_names.insert(relay.name.clone(), relay.id);
        self.relays.insert(relay.id, relay);
    }

    pub(crate) fn know_link(&mut self, link: Link) {
        self.ledger.open_link(&link);
        self.health.entry(link.id).or_default().was_usable = true;
        self.links.insert(link.id, link);
    }

    pub(crate) fn know_world(&mut self, world: World) {
        self.world_names.insert(world.name.clone(), world.id);
        for comtree in &world.comtrees {
            self.comtrees.entry(*comtree).or_insert_with(|| Running {
                world: world.id,
                shape: None,
                standbys: Standbys::new(),
                spares: BTreeMap::new(),
                moving: None,
                undone: None,
                overlap: None,
                asked: TreeAsk::default(),
                no_next_peers: BTreeSet::new(),
                why: "it has no members yet".to_owned(),
                kept: None,
                rests_since: None,
                ended_moves: 0,
                broken: None,
                expects_members: None,
            });
        }
        self.worlds.insert(world.id, world);
    }

    pub(crate) fn know_member(&mut self, member: Member) {
        let key = (member.world, member.address);
        if let Some(before) = self.members.get(&key) {
            self.ends.remove(&(before.until, key.0, key.1));
        }
        // Who is leaving waits for the relay's word, not for a time.
        if member.state != MemberState::Leaving {
            self.ends.insert((member.until, key.0, key.1));
        }
        self.disown(&member);
        match member.state {
            MemberState::Held => _ = self.owners.insert((key.0, member.owner), key.1),
            MemberState::Moving => _ = self.moving.insert((key.0, member.owner), key.1),
            MemberState::Leaving | MemberState::Resting => self.note_former(&member),
        }
        if let Some(until) = member.barred {
            let bar = self.bars.entry((key.0, member.owner)).or_insert(until);
            *bar = until.max(*bar);
        }
        self.members.insert(key, member);
    }

    /// A portable address is kept for who leaves it, unless another that was left later is.
    fn note_former(&mut self, member: &Member) {
        let owner = (member.world, member.owner);
        let other = self.former.get(&owner).and_then(|of| self.members.get(&(member.world, *of)));
        let last = |of: &Member| (of.state == MemberState::Leaving, of.until);
        let is_last = other
            .is_none_or(|other| other.address == member.address || last(other) <= last(member));
        if member.address.is_portable() && is_last {
            self.former.insert(owner, member.address);
        }
    }

    fn disown(&mut self, member: &Member) {
        let owner = (member.world, member.owner);
        for places in [&mut self.owners, &mut self.moving, &mut self.former] {
            if places.get(&owner) == Some(&member.address) {
                places.remove(&owner);
            }
        }
    }

    /// Writes a member, or removes it from storage and from here.
    pub(crate) fn save_member(&mut self, op: &mut Op, member: Member) {
        op.write(Table::Members, member_key(member.world, member.address), Some(&member));
        self.know_member(member);
    }

    pub(crate) fn forget_member(&mut self, op: &mut Op, key: (WorldId, Address)) {
        if let Some(member) = self.members.remove(&key) {
            self.ends.remove(&(member.until, key.0, key.1));
            self.disown(&member);
            let bar = (member.world, member.owner);
            if member.barred.is_some() && member.barred == self.bars.get(&bar).copied() {
                self.bars.remove(&bar);
            }
            op.write::<Member>(Table::Members, member_key(key.0, key.1), None);
        }
    }

    pub(crate) fn save_relay(&mut self, op: &mut Op, relay: Relay) {
        op.write(Table::Relays, number(u32::from(relay.id.0)), Some(&relay));
        self.know_relay(relay);
    }

    pub(crate) fn save_counters(&self, op: &mut Op) {
        op.write(Table::Controller, COUNTERS.to_vec(), Some(&self.counters));
    }

    pub(crate) fn save_comtree(&self, op: &mut Op, id: Comtree) {
        let Some(running) = self.comtrees.get(&id) else { return };
        let tree = running.shape.as_ref().map_or_else(Vec::new, |shape| shape.hops().to_vec());
        let standby = |(relay, above): (&RelayId, &(RelayId, LinkId))| TreeHop {
            relay: *relay,
            above: Some(*above),
        };
        // While it is moved nobody has a standby parent.
        let standbys = running.standbys.iter().filter(|_| running.moving.is_none());
        let standbys = standbys.map(standby).collect();
        let (world, asked) = (running.world, running.asked);
        let step = running.step_on_relays();
        let mesh = running.shape.as_ref().map_or_else(Vec::new, |shape| shape.mesh().to_vec());
        let overlap = running.overlap.clone();
        let heading = running.heading();
        let record =
            ComtreeRecord { id, world, tree, standbys, asked, mesh, step, overlap, heading };
        op.write(Table::Comtrees, number(id.0), Some(&record));
    }

    /// Whether members of a relay are served, and its links can be used.
    pub(crate) fn is_running(&self, relay: RelayId) -> bool {
        let state = self.relays.get(&relay).map(|relay| relay.state);
        matches!(state, Some(RelayState::Up | RelayState::Draining))
    }

    /// Whether a link can be used.
    pub(crate) fn is_usable(&self, link: LinkId) -> bool {
        let health = self.health.get(&link);
        let is_well = health.is_some_and(|health| health.was_usable && !health.is_retired);
        is_well
            && self
                .links
                .get(&link)
                .is_some_and(|link| link.ends.iter().all(|e| self.is_running(*e)))
    }

    /// Whether both ends of a link have said how they find it.
    pub(crate) fn is_heard(&self, link: LinkId) -> bool {
        self.health.get(&link).is_some_and(|of| of.reported.len() == 2)
    }

    /// Whether there are links that count as usable, and of which no word has come yet from one of their ends.
    pub(crate) fn has_unheard_links(&self) -> bool {
        self.links.keys().any(|link| self.is_usable(*link) && !self.is_heard(*link))
    }

    /// Whether a link is to go once nothing runs over it.
    pub(crate) fn is_surplus(&self, link: LinkId) -> bool {
        self.is_being_removed(link) || self.health.get(&link).is_some_and(|of| of.is_surplus)
    }

    /// Whether comtrees move off a link so that it can go, whatever that costs them.
    pub(crate) fn is_being_removed(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.removing)
    }

    /// Whether a relay could carry another comtree.
    pub(crate) fn has_room_for_comtree(&self, relay: RelayId) -> bool {
        self.ledger.free(Account::Comtrees(relay)).bits >= 1.0
    }

    /// A relay's name, for people.
    pub(crate) fn relay_name(&self, relay: RelayId) -> String {
        self.relays.get(&relay).map_or_else(|| relay.0.to_string(), |relay| relay.name.to_string())
    }

    /// What is lacking, with names.
    pub(crate) fn refusal(&self, lack: Lack) -> Refusal {
        let what = match lack.account {
            Account::Link(link, from) => {
                let to = self.links.get(&link).map_or(from, |link| link.other(from));
                let [from, to] = [from, to].map(|end| self.relay_name(end));
                format!("the link {} from {from} to {to}", link.0)
            }
            Account::Out(relay) => format!("the uplink of {}, sending", self.relay_name(relay)),
            Account::In(relay) => format!("the uplink of {}, receiving", self.relay_name(relay)),
            Account::Places(relay) => format!("the places of {}", self.relay_name(relay)),
            Account::Comtrees(relay) => {
                format!("the room for comtrees of {}", self.relay_name(relay))
            }
        };
        let words = |Rate { bits, packets }: Rate| match lack.account {
            Account::Places(_) => format!("{bits} places"),
            Account::Comtrees(_) if bits == 1.0 => "1 comtree".to_owned(),
            Account::Comtrees(_) => format!("{bits} comtrees"),
            _ => format!("{bits} bit/s and {packets} packets/s"),
        };
        let free = Rate { bits: lack.free.bits.max(0.0), packets: lack.free.packets.max(0.0) };
        Refusal::Full { what, asked: words(lack.asked), free: words(free) }
    }

    /// A comtree as one of its relays is to have it; nothing if it is not on the tree.
    pub(crate) fn comtree_item(&self, id: Comtree, relay: RelayId) -> Option<Item> {
        let running = self.comtrees.get(&id)?;
        running.shape.as_ref().filter(|shape| shape.has(relay))?;
        self.comtree_base(id, relay, running.branches(relay))
    }

    /// A comtree with these branches.
    pub(crate) fn comtree_base(
        &self,
        id: Comtree,
        relay: RelayId,
        branches: Vec<Branch>,
    ) -> Option<Item> {
        let world = self.worlds.get(&self.comtrees.get(&id)?.world)?;
        Some(Item::Comtree {
            id,
            world: world.name.clone(),
            site: relay.0,
            mode: world.mode,
            downlink: world.downlink,
            levels: world.levels,
            sharing: world.sharing,
            branches,
        })
    }

    /// A link as one of its ends is to have it.
    pub(crate) fn link_item(&self, link: &Link, end: RelayId) -> Option<Item> {
        let other = self.relays.get(&link.other(end))?;
        Some(Item::Link {
            id: link.id,
            key: other.key,
            native: other.native,
            calls: link.ends[0] == end,
            capacity: link.rate,
        })
    }

    /// A member as its relay is to have it.
    pub(crate) fn member_item(comtree: Comtree, member: &Member) -> Item {
        Item::Member { comtree, address: member.address, limits: member.limits }
    }
}

/// Where the counters are.
pub(crate) const COUNTERS: &[u8] = b"counters";

/// A record's key by its number.
pub(crate) fn number(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// A member's key: the members of a world are next to each other, in order of their addresses.
pub(crate) fn member_key(world: WorldId, address: Address) -> Vec<u8> {
    [world.0.to_be_bytes(), address.0.to_be_bytes()].concat()
}
