//! Who enters a world, changes what it may do, and leaves (Forest §3.4.2, §7).

use crate::error::Refusal;
use crate::ledger::Flow;
use crate::model::{Entry, Member, MemberState, Owner, RelayId, RelayState, WorldId};
use crate::name::Name;
use crate::op::{Effect, Event, Op};
use crate::shape::Load;
use crate::state::State;
use canopy_plan::{Limits, Rate};
use canopy_token::{Budget, ComtreeGrant, Grant, Scope, Unicast};
use canopy_wire::{Address, Comtree, Level, PORTABLE_SITES, Time};
use core::time::Duration;
use std::collections::BTreeMap;

/// The first endpoint number of a member: lower ones are the relays' own.
const FIRST_ENDPOINT: u16 = 64;
/// A world's addresses at one portable site, and at all of them.
const ADDRESSES_OF_SITE: u32 = (u16::MAX - FIRST_ENDPOINT) as u32 + 1;
const ADDRESSES: u32 =
    (*PORTABLE_SITES.end() - *PORTABLE_SITES.start() + 1) as u32 * ADDRESSES_OF_SITE;

/// A renewal that a controller has missed comes so much later at most: it is tried again after two seconds or so.
const RENEWED_LATE: Duration = Duration::from_secs(8);

/// The portable addresses in the order in which a world gives them: all of one site, then the next one's.
fn portable_address(number: u32) -> Address {
    let site = *PORTABLE_SITES.start() + (number / ADDRESSES_OF_SITE) as u16;
    Address::unicast(site, FIRST_ENDPOINT + (number % ADDRESSES_OF_SITE) as u16)
}

/// What an endpoint asks for, whose credential was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Enter {
    /// The world.
    pub world: Name,
    /// Who it is. Who asks again gets what it has.
    pub owner: Owner,
    /// What it sends and receives at most; the world's default if it does not say.
    pub limits: Option<Limits>,
    /// The relays that it has measured, and the time one way to each, microseconds.
    pub measured: Vec<(RelayId, u32)>,
    /// What it may have at most, whichever place it gets; anything if nothing.
    pub most: Option<Limits>,
    /// By what it is in, once it has the place.
    pub entry: Entry,
    /// What its credential, or its backend, calls it; the same for one owner.
    pub subject: String,
}

impl Enter {
    /// An endpoint that says no limits, is bounded by none, is in by nothing and has no name.
    pub fn new(world: Name, owner: Owner, measured: Vec<(RelayId, u32)>) -> Enter {
        let entry = Entry::default();
        Enter { world, owner, limits: None, measured, most: None, entry, subject: String::new() }
    }

    /// What it gets of these limits.
    pub(crate) fn bounded(&self, limits: Limits) -> Limits {
        let of = |one: Rate, most: Rate| Rate {
            bits: one.bits.min(most.bits),
            packets: one.packets.min(most.packets),
        };
        self.most.map_or(limits, |most| Limits {
            send: of(limits.send, most.send),
            receive: of(limits.receive, most.receive),
        })
    }
}

/// What an endpoint gets. It is reserved; the relay lets it in once
/// [`Event::Admitted`](crate::Event) says so, or `Renewed` if it was in already.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The world.
    pub world: WorldId,
    /// The relay that serves it.
    pub relay: RelayId,
    /// Its address on each comtree.
    pub address: Address,
    /// The world's comtrees.
    pub comtrees: Vec<Comtree>,
    /// What it sends and receives at most, on each comtree.
    pub limits: Limits,
    /// When the lease ends, unless it is renewed.
    pub until: Time,
    /// What its token grants.
    pub grant: Grant,
}

impl State {
    /// Lets an endpoint enter: the nearest relay by measured delay that has room gets it. Who has been a
    /// member lately gets the address that it had, at whichever relay. Who is in keeps its place, with what it may have
    /// of that.
    pub(crate) fn enter(
        &mut self,
        op: &mut Op,
        now: Time,
        ask: &Enter,
    ) -> Result<Admission, Refusal> {
        let world = self.world(&ask.world)?;
        let (id, default) = (world.id, world.default);
        self.may_enter(now, id, ask)?;
        if let Some(address) = self.owners.get(&(id, ask.owner)).copied() {
            let has = self.held(id, address)?.limits;
            let bounded = ask.bounded(has);
            if bounded != has {
                self.modify(op, id, address, bounded)?;
            }
            self.renew(op, now, id, address)?;
            self.set_entry(op, id, ask.owner, ask.entry);
            op.effects.push(Effect::Confirm(id, address));
            return self.admission(id, address);
        }
        if let Some(address) = self.readmit(op, now, id, ask) {
            return self.admission(id, address);
        }
        let limits = ask.limits.unwrap_or(default);
        let address = self.enter_nearest(op, now, id, ask, limits, |_, _| true)?;
        self.admission(id, address)
    }

    pub(crate) fn may_enter(&self, now: Time, id: WorldId, ask: &Enter) -> Result<(), Refusal> {
        if self.worlds.get(&id).is_none_or(|world| world.closing) {
            return Err(Refusal::Closing(ask.world.clone()));
        }
        let barred = self.bars.get(&(id, ask.owner)).copied().filter(|bar| *bar > now);
        barred.map_or(Ok(()), |until| {
            let seconds = until.since(now).as_secs_f64().ceil() as u64;
            Err(Refusal::Barred { world: ask.world.clone(), seconds })
        })
    }

    fn takes(&self, relay: RelayId) -> bool {
        let is_up = self.relays.get(&relay).is_some_and(|of| of.state == RelayState::Up);
        is_up && !self.silent.contains(&relay)
    }

    /// Who comes back before its relay has sent it away has its place again: all of it is still reserved.
    fn readmit(&mut self, op: &mut Op, now: Time, world: WorldId, ask: &Enter) -> Option<Address> {
        let address = *self.former.get(&(world, ask.owner))?;
        let before = self.members.get(&(world, address))?.clone();
        let is_near = ask.measured.iter().any(|(relay, _)| *relay == before.relay);
        if before.state != MemberState::Leaving || !is_near || !self.takes(before.relay) {
            return None;
        }
        let until = now + self.settings.lease;
        let token_until = before.token_until.max(until);
        let (limits, entry) = (ask.bounded(before.limits), ask.entry);
        let state = MemberState::Held;
        let member = Member { state, until, token_until, limits, entry, ..before };
        self.admit(op, &member);
        self.save_member(op, member);
        Some(address)
    }

    /// The nearest relay that takes members, has room, and suits gets it, with what it may have of these limits.
    pub(crate) fn enter_nearest(
        &mut self,
        op: &mut Op,
        now: Time,
        world: WorldId,
        ask: &Enter,
        limits: Limits,
        suits: impl Fn(RelayId, u32) -> bool,
    ) -> Result<Address, Refusal> {
        let mut measured = ask.measured.clone();
        measured.sort_by_key(|(relay, delay)| (*delay, *relay));
        measured.retain(|(relay, delay)| self.takes(*relay) && suits(*relay, *delay));
        let mut nearest = Refusal::NoRelay(ask.measured.len());
        for (place, (relay, _)) in measured.into_iter().enumerate() {
            match self.enter_at(op, now, world, relay, ask, limits) {
                Ok(address) => return Ok(address),
                Err(refusal) if place == 0 => nearest = refusal,
                Err(_) => {}
            }
        }
        Err(nearest)
    }

    fn enter_at(
        &mut self,
        op: &mut Op,
        now: Time,
        world: WorldId,
        relay: RelayId,
        ask: &Enter,
        limits: Limits,
    ) -> Result<Address, Refusal> {
        let (owner, entry, limits) = (ask.owner, ask.entry, ask.bounded(limits).whole());
        let rests = |address: &Address| {
            let member = self.members.get(&(world, *address));
            member.is_some_and(|member| member.state == MemberState::Resting)
        };
        let former = self.former.get(&(world, owner)).copied().filter(rests);
        let (address, next) = match former {
            Some(address) => (address, None),
            None => self.free_address(world).map(|(address, next)| (address, Some(next)))?,
        };
        self.place(op, world, relay, |(count, sum)| (count + 1, sum + limits), 1.0)?;
        next.into_iter().for_each(|next| _ = self.next_addresses.insert(world, next));
        let until = now + self.settings.lease;
        let (state, reserved) = (MemberState::Held, limits);
        let before = self.members.get(&(world, address));
        // What barred it once is over, and forgotten with the record.
        let barred = before.and_then(|before| before.barred);
        // It may have a token for another relay still.
        let token_until = before.map_or(until, |before| before.token_until.max(until));
        let member = Member {
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
            subject: ask.subject.clone(),
            token_until,
        };
        self.admit(op, &member);
        self.save_member(op, member);
        Ok(address)
    }

    /// Tells a member's relay of it, on all comtrees.
    fn admit(&self, op: &mut Op, member: &Member) {
        let comtrees = self.comtrees_of(member.world);
        op.effects.extend(comtrees.iter().map(|comtree| {
            Effect::Admit(*comtree, member.relay, State::member_item(*comtree, member))
        }));
    }

    fn dismiss(&self, op: &mut Op, member: &Member) {
        let comtrees = self.comtrees_of(member.world);
        let dismiss = |comtree: &Comtree| Effect::Dismiss(*comtree, member.relay, member.address);
        op.effects.extend(comtrees.iter().map(dismiss));
    }

    fn comtrees_of(&self, world: WorldId) -> &[Comtree] {
        self.worlds.get(&world).map_or(&[], |world| &world.comtrees)
    }

    /// The next address of a world that nobody has and that does not rest, and which is tried after that.
    fn free_address(&self, world: WorldId) -> Result<(Address, u32), Refusal> {
        let next = self.next_addresses.get(&world).copied().unwrap_or(0);
        let mut all = (next..ADDRESSES).chain(0..next);
        let is_free =
            |number: &u32| !self.members.contains_key(&(world, portable_address(*number)));
        let free = all.find(is_free).map(|number| (portable_address(number), number + 1));
        free.ok_or_else(|| match self.worlds.get(&world) {
            Some(world) => Refusal::NoAddress(world.name.clone()),
            None => Refusal::NoSuchWorld(world.0.to_string()),
        })
    }

    pub(crate) fn admission(&self, id: WorldId, address: Address) -> Result<Admission, Refusal> {
        let member = self.served(id, address)?;
        let Some(world) = self.worlds.get(&id) else {
            return Err(Refusal::NoSuchWorld(id.0.to_string()));
        };
        let Member { limits, until, .. } = member;
        let scope = || Scope { level: Level(world.levels), ..Scope::everything() };
        let of = |comtree: &Comtree| ComtreeGrant {
            comtree: *comtree,
            publish: scope(),
            subscribe: scope(),
            unicast: Unicast::Anybody,
        };
        let some = |number: f64| Some(number as u64);
        let budget = Budget {
            up_bits: some(limits.send.bits),
            up_packets: some(limits.send.packets),
            down_bits: some(limits.receive.bits),
            down_packets: some(limits.receive.packets),
        };
        let grant = Grant {
            world: world.name.to_string(),
            address: Some(address),
            // What is reserved for it is reserved there.
            site: Some(member.relay.0),
            comtrees: world.comtrees.iter().map(of).collect(),
            budget,
            roles: Vec::new(),
        };
        let (relay, comtrees) = (member.relay, world.comtrees.clone());
        Ok(Admission { world: id, relay, address, comtrees, limits: *limits, until: *until, grant })
    }

    pub(crate) fn held(&self, world: WorldId, address: Address) -> Result<&Member, Refusal> {
        self.one_of(world, address, &[MemberState::Held])
    }

    /// A member that its relay serves, or is to.
    fn served(&self, world: WorldId, address: Address) -> Result<&Member, Refusal> {
        self.one_of(world, address, &[MemberState::Held, MemberState::Moving])
    }

    fn one_of(
        &self,
        world: WorldId,
        address: Address,
        states: &[MemberState],
    ) -> Result<&Member, Refusal> {
        let member = self.members.get(&(world, address));
        member.filter(|member| states.contains(&member.state)).ok_or_else(|| {
            let name = self.worlds.get(&world).map(|world| world.name.to_string());
            Refusal::NoSuchMember {
                address: address.to_string(),
                world: name.unwrap_or_else(|| world.0.to_string()),
            }
        })
    }

    /// Prolongs a lease.
    pub(crate) fn renew(
        &mut self,
        op: &mut Op,
        now: Time,
        world: WorldId,
        address: Address,
    ) -> Result<Time, Refusal> {
        let until = now + self.settings.lease;
        let before = self.held(world, address)?.clone();
        let token_until = before.token_until.max(until);
        self.save_member(op, Member { until, token_until, ..before });
        Ok(until)
    }

    /// A controller has started, and does not know who was told of its place, and who has died since. Whoever is in renews
    /// its lease before a third of it is over; others give back their places then, and not when their leases end.
    /// Whom a backend has let in may not have come yet.
    pub(crate) fn await_renewals(&mut self, now: Time) {
        let by = now + self.settings.lease / 3 + RENEWED_LATE;
        let is_awaited = |member: &&Member| {
            member.state == MemberState::Held && member.entry.let_in == 0 && member.until > by
        };
        let awaited: Vec<Member> = self.members.values().filter(is_awaited).cloned().collect();
        for member in awaited {
            self.know_member(Member { until: by, ..member });
        }
    }

    /// Changes a member's limits. What is more is reserved before the relay is told, what is less is
    /// given back once the relay says that it is in force: see [`State::settle_limits`].
    pub(crate) fn modify(
        &mut self,
        op: &mut Op,
        world: WorldId,
        address: Address,
        limits: Limits,
    ) -> Result<(), Refusal> {
        let mut member = self.served(world, address)?.clone();
        let limits = limits.whole();
        let reserved = most(member.reserved, limits);
        let more = reserved - member.reserved;
        self.place(op, world, member.relay, |(count, sum)| (count, sum + more), 0.0)?;
        member.limits = limits;
        member.reserved = reserved;
        self.admit(op, &member);
        self.save_member(op, member);
        Ok(())
    }

    /// The relay holds a member to its limits: what is reserved beyond is given back.
    pub(crate) fn settle_limits(&mut self, op: &mut Op, world: WorldId, address: Address) {
        let Some(member) = self.members.get(&(world, address)).cloned() else { return };
        if self.served(world, address).is_ok() && member.reserved != member.limits {
            let less = member.reserved - member.limits;
            self.give_back(op, world, member.relay, |(count, sum)| (count, sum - less), 0.0);
            self.save_member(op, Member { reserved: member.limits, ..member });
        }
    }

    /// A member leaves: its relay is told, and what was reserved lasts until the relay says so. If it was
    /// about to move here, it stays where it was.
    pub(crate) fn leave(
        &mut self,
        op: &mut Op,
        world: WorldId,
        address: Address,
    ) -> Result<(), Refusal> {
        let before = self.served(world, address)?.clone();
        // Nothing by which it was in brings it back.
        let entry = Entry::default();
        let member = Member { state: MemberState::Leaving, entry, ..before.clone() };
        self.dismiss(op, &member);
        self.save_member(op, member);
        if before.state == MemberState::Held {
            self.stay(op, world, before.owner);
        }
        Ok(())
    }

    /// Sends a member away, from both relays while it moves; its owner may not enter again before
    /// `barred`. So with one whose relay was lost, and who may come back.
    pub(crate) fn kick(
        &mut self,
        op: &mut Op,
        world: WorldId,
        address: Address,
        barred: Time,
    ) -> Result<(), Refusal> {
        let given_up = self.members.get(&(world, address)).filter(|member| member.is_given_up());
        if let Some(member) = given_up.cloned() {
            // The record is what bars the owner, so it lasts as long.
            let (owner, until) = (member.owner, member.until.max(barred));
            self.stay_away(op, Member { until, barred: Some(barred), ..member });
            if !self.owners.contains_key(&(world, owner)) {
                return Ok(());
            }
            // It has come back under another address.
            return self.kick_owner(op, world, owner, barred);
        }
        let owner = self.served(world, address)?.owner;
        self.kick_owner(op, world, owner, barred)
    }

    /// Sends all away who are called so, from all places that they have, and bars them. Those who are leaving, have left
    /// or have lost their place are barred as well, as long as their addresses rest. Returns how many they are.
    pub(crate) fn kick_subject(
        &mut self,
        op: &mut Op,
        world: WorldId,
        subject: &str,
        barred: Time,
    ) -> usize {
        let all = || self.members.range((world, Address(0))..=(world, Address(u32::MAX)));
        let called = all().filter(|(_, member)| member.subject == subject);
        let mut owners: BTreeMap<Owner, Vec<Address>> =
            called.map(|(_, member)| (member.owner, Vec::new())).collect();
        for (key, member) in all() {
            owners.entry(member.owner).and_modify(|addresses| addresses.push(key.1));
        }
        for (owner, addresses) in &owners {
            self.depart(op, world, *owner);
            addresses.iter().for_each(|address| self.bar(op, (world, *address), barred));
            op.cut();
        }
        owners.len()
    }

    fn bar(&mut self, op: &mut Op, key: (WorldId, Address), barred: Time) {
        let Some(member) = self.members.get(&key).cloned() else { return };
        // The record is what bars the owner, so it lasts as long.
        let until = member.until.max(barred);
        let barred = member.barred.map_or(barred, |before| before.max(barred));
        self.stay_away(op, Member { until, barred: Some(barred), ..member });
    }

    fn kick_owner(
        &mut self,
        op: &mut Op,
        world: WorldId,
        owner: Owner,
        barred: Time,
    ) -> Result<(), Refusal> {
        for address in self.depart(op, world, owner) {
            if let Some(member) = self.members.get(&(world, address)).cloned() {
                self.save_member(op, Member { barred: Some(barred), ..member });
            }
        }
        Ok(())
    }

    /// A member that has lost its place comes back no more by what it was in.
    pub(crate) fn stay_away(&mut self, op: &mut Op, member: Member) {
        self.save_member(op, Member { entry: Entry::default(), ..member });
    }

    /// A member's relay serves it no more: what was reserved is given back, and the address rests as
    /// long as the member's token may still be used, and longer.
    pub(crate) fn release(&mut self, op: &mut Op, now: Time, world: WorldId, address: Address) {
        let Some(member) = self.members.get(&(world, address)).cloned() else { return };
        if member.state != MemberState::Leaving {
            return;
        }
        let reserved = member.reserved;
        self.give_back(op, world, member.relay, |(count, sum)| (count - 1, sum - reserved), 1.0);
        let until = member.until.max(member.token_until).max(now) + self.settings.rest;
        // The record is what bars the owner, so it lasts as long.
        let until = member.barred.map_or(until, |barred| barred.max(until));
        self.save_member(op, Member { state: MemberState::Resting, until, ..member });
        op.tell(Event::Left { world, address });
        self.close_if_empty(op, world);
    }

    fn give_back(
        &mut self,
        op: &mut Op,
        world: WorldId,
        relay: RelayId,
        change: impl Fn(Load) -> Load,
        members: f64,
    ) {
        self.ledger.enter(&[Flow::Members(relay, -members)]);
        for comtree in self.comtrees_of(world).to_vec() {
            let Some(running) = self.comtrees.get_mut(&comtree) else { continue };
            let Some(shape) = running.shape.as_mut().filter(|shape| shape.has(relay)) else {
                continue;
            };
            let load = change(shape.load(relay));
            if running.moving.is_some() {
                _ = self.change_in_move(op, comtree, relay, load, false);
                let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
                // What else has become idle goes when the move is done.
                if shape.is_some_and(|shape| shape.all_members() == 0) {
                    self.prune(op, comtree);
                }
                continue;
            }
            let (flows, relays) = shape.change(relay, load);
            self.ledger.enter(&flows);
            for at in relays {
                op.effects.push(Effect::Comtree(comtree, at, self.comtree_item(comtree, at)));
            }
            if load.0 == 0 {
                self.prune(op, comtree);
            }
        }
    }

    /// Ends leases and rests that are over: one at a time. Returns whether there was one.
    pub(crate) fn expire(&mut self, op: &mut Op, now: Time) -> bool {
        let Some((until, world, address)) = self.ends.first().copied() else { return false };
        if until > now {
            return false;
        }
        match self.members.get(&(world, address)).map(|member| member.state) {
            Some(MemberState::Held | MemberState::Moving) => _ = self.leave(op, world, address),
            Some(MemberState::Resting) => self.forget_member(op, (world, address)),
            _ => _ = self.ends.pop_first(),
        }
        true
    }

    /// Gives up a member whose relay is silent. It may come back by what it was in.
    pub(crate) fn give_up(&mut self, op: &mut Op, now: Time, world: WorldId, address: Address) {
        _ = self.lose(op, world, address);
        self.release(op, now, world, address);
    }

    /// A member loses its place by no doing of its own: as if it left, but it may come back by what it was in.
    pub(crate) fn lose(
        &mut self,
        op: &mut Op,
        world: WorldId,
        address: Address,
    ) -> Result<(), Refusal> {
        let Member { owner, entry, .. } = *self.served(world, address)?;
        self.leave(op, world, address)?;
        // Whoever was about to move is in at the other place still.
        if entry != Entry::default()
            && !self.owners.contains_key(&(world, owner))
            && let Some(member) = self.members.get(&(world, address)).cloned()
        {
            self.save_member(op, Member { entry, ..member });
        }
        Ok(())
    }
}

/// The larger of each number.
fn most(one: Limits, other: Limits) -> Limits {
    let of = |one: Rate, other: Rate| Rate {
        bits: one.bits.max(other.bits),
        packets: one.packets.max(other.packets),
    };
    Limits { send: of(one.send, other.send), receive: of(one.receive, other.receive) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Coded;
    use crate::settings::Settings;
    use canopy_plan::Rate;

    #[test]
    fn a_world_has_more_addresses_than_one_site() {
        let number = |number| portable_address(number);
        assert_eq!(number(0), Address::unicast(0x7000, 64));
        assert_eq!(number(65_471), Address::unicast(0x7000, u16::MAX));
        assert_eq!(number(65_472), Address::unicast(0x7001, 64));
        assert_eq!(number(ADDRESSES - 1), Address::unicast(0x7fff, u16::MAX));
        let some = (0..ADDRESSES).step_by(9973).map(portable_address);
        assert!(some.into_iter().all(|address| address.is_portable() && address.endpoint() >= 64));
    }

    fn member(address: Address, owner: u8, state: MemberState, until: u64) -> Member {
        let rate = Rate { bits: 1.0, packets: 1.0 };
        let limits = Limits { send: rate, receive: rate };
        let (relay, until) = (RelayId(3), Time::from_millis(until));
        let (world, owner, reserved, barred) = (WorldId(1), [owner; 16], limits, None);
        Member {
            world,
            address,
            relay,
            owner,
            limits,
            reserved,
            until,
            state,
            barred,
            entry: Entry::default(),
            subject: "player".to_owned(),
            token_until: until,
        }
    }

    #[test]
    fn an_address_rests_for_its_owner_and_of_several_the_last_one_does() {
        let mut state = State::new(Settings::default());
        let owner = (WorldId(1), [7; 16]);
        let [first, second] = [portable_address(0), portable_address(1)];
        // In whatever order they are read.
        for order in [[(first, 10), (second, 20)], [(second, 20), (first, 10)]] {
            for (address, until) in order {
                state.know_member(member(address, 7, MemberState::Resting, until));
            }
            assert_eq!(state.former.get(&owner), Some(&second));
        }
        state.know_member(member(second, 7, MemberState::Held, 30));
        assert_eq!(state.former.get(&owner), None);
        // Who leaves one has that again, and not what it left before.
        state.know_member(member(second, 7, MemberState::Leaving, 5));
        assert_eq!(state.former.get(&owner), Some(&second));
        state.know_member(member(first, 7, MemberState::Resting, 10));
        assert_eq!(state.former.get(&owner), Some(&second));
        state.know_member(member(second, 7, MemberState::Held, 30));
        // One of an earlier release is of its relay's site, and does not come along.
        state.know_member(member(Address::unicast(3, 70), 7, MemberState::Resting, 40));
        assert_eq!(state.former.get(&owner), None);
        // Both are taken.
        assert_eq!(state.free_address(WorldId(1)), Ok((portable_address(2), 3)));
    }

    #[test]
    fn a_record_of_an_earlier_release_says_its_relay_by_its_address_and_no_entry_nor_name() {
        let before = member(Address::unicast(3, 64), 7, MemberState::Held, 10);
        let before = Member { subject: String::new(), ..before };
        let bytes = before.to_bytes();
        let short = |less: usize| Member::of_bytes(&bytes[..bytes.len() - less]);
        // A token's end is what it lacks, or the name, the entry or the relay's number, too.
        let end = before.token_until.to_bytes().len();
        for less in [end, end + 1, end + 3, end + 4] {
            assert_eq!(short(less).as_ref(), Ok(&before));
        }
        let entry = Entry { let_in: u64::MAX, visit: 3 };
        let token_until = Time::from_millis(20);
        let now = Member { entry, subject: "player".to_owned(), token_until, ..before };
        assert_eq!(Member::of_bytes(&now.to_bytes()), Ok(now));
    }
}
