//! The controller: what it is asked (here), what relays say (`heard`) or say no more
//! (`silent`), who was not let in (`not_let_in`), what relays measure and which links are proposed for that
//! (`measuring`), what is committed and told to relays then (`commits`), whom a relay that has started again is
//! to keep out (`dismissed`), what it knows (`known`), and the
//! areas of worlds (`areas`).

mod areas;
mod commits;
mod dismissed;
mod heard;
mod known;
mod measuring;
mod not_let_in;
mod silent;

pub use areas::NewAreas;
pub use known::TreeOnTheWay;
pub use not_let_in::NotLetIn;

use crate::admission::{Admission, Enter};
use crate::agent::Agent;
use crate::codec::Coded;
use crate::error::{LoadError, Refusal};
use crate::measuring::Measuring;
use crate::model::{LinkId, Origin, Owner, Relay, RelayId, RelayState, TreeAsk, World, WorldId};
use crate::name::Name;
use crate::op::{Effect, Event, Op};
use crate::planned::MovePlan;
use crate::proposing::Underway;
use crate::repair::NewRelay;
use crate::rollouts::Rollouts;
use crate::settings::Settings;
use crate::signal::{Message, Retry};
use crate::state::State;
use crate::storage::{Batch, Condition, Revision, Storage, Table, Write};
use crate::worlds::{NewWorld, WorldChanges};
use canopy_areas::Guide;
use canopy_plan::{Limits, Rate};
use canopy_wire::{Address, Comtree, Time};
use core::time::Duration;
use not_let_in::Refusals;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Where the number of the controller's life is.
const LIFE: &[u8] = b"life";
/// Links are looked at this often, whatever is reported.
const REVIEW: Duration = Duration::from_secs(1);
/// A relay that is found has its links up within this. A tree that they would make whole waits so long for them.
const LINKS_COME: Duration = Duration::from_secs(1);
/// How long relays that their neighbours hear have to say which ways they have found, since another one has connected. They
/// keep those for longer.
pub const WORD_COMES: Duration = Duration::from_secs(8);
/// Trees are looked for so often that go round relays which drain.
const MOVES: Duration = Duration::from_secs(5);

/// After a better tree was looked for, it is for so long not for another comtree, and for so many times as long
/// as the look took: relays and participants are heard in between.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSES: u32 = 4;

/// When a controller starts, relays have so long to connect again before the usual silence counts:
/// they know nothing of its start, and pause between their calls.
const RETURN: Duration = Duration::from_secs(5);

/// The controller, in one of its lives.
///
/// Time is counted from an origin that all its lives have in common, such as 1970. An operation is
/// decided at once. Nothing of it shows outside, neither to relays nor as an [`Event`], before it is
/// committed. If a commit fails the controller is to be dropped, and started from storage again.
#[derive(Debug)]
pub struct Controller {
    state: State,
    life: u32,
    /// The commit that wrote the life. It fences off whoever ran before.
    fence: Revision,
    retry: Retry,
    agents: BTreeMap<RelayId, Agent>,
    rollouts: Rollouts,
    /// How many changes of comtrees, and how many members' ends, were told to relays.
    changes: u64,
    lost: BTreeSet<RelayId>,
    /// Relays that were taken away, and are still told so.
    departing: BTreeSet<RelayId>,
    /// Links that are to go at a relay, once nothing that it is yet to be told runs over them.
    unlinking: BTreeSet<(RelayId, LinkId)>,
    ops: VecDeque<Op>,
    committing: Option<Vec<Effect>>,
    /// Members that a relay is about to let in, and on which comtrees.
    admitting: BTreeMap<(WorldId, Address), BTreeSet<Comtree>>,
    /// Members that a relay is about to send away: the numbers of their ends, by comtree.
    leaving: BTreeMap<(WorldId, Address), BTreeMap<Comtree, u64>>,
    events: VecDeque<Event>,
    refusals: Refusals,
    next_review: Time,
    /// When a relay that may have found ways was heard last, or the start.
    word_from: Time,
    /// Until when a comtree waits for relays to say which ways they have found.
    word_due: Option<Time>,
    /// When no relay was heard last.
    alone_until: Time,
    next_moves: Time,
    /// When a better tree is looked for next.
    next_better: Time,
    /// When the last look for one began, if its time is not known yet.
    looked_at: Option<Time>,
    /// Who leads through the areas of a world.
    guides: BTreeMap<WorldId, Guide>,
    next_areas: Time,
    measuring: Measuring,
    /// The relay that was told something last.
    last_told: RelayId,
    /// What relays are to be asked: whom to measure, and after whom.
    asks: VecDeque<(RelayId, Message)>,
    /// When relays were asked after others last, and which one was the last of them.
    asked_after: Time,
    last_asked_after: RelayId,
    /// When proposed links are looked at next, and when they were last.
    next_proposals: Option<Time>,
    last_proposals: Time,
    /// The proposal that is being worked out.
    underway: Option<Underway>,
    /// The comtree that was looked at last whether it runs over a link that is to go.
    last_left: Comtree,
    /// The same for links that are being removed.
    last_moved_off: Comtree,
    /// The same for relays that drain.
    last_drained: Comtree,
}

impl Controller {
    /// Starts a controller on a store: whoever ran on it before can write there no more.
    ///
    /// # Errors
    /// Storage fails, or what it has cannot be read.
    pub fn start(
        settings: Settings,
        retry: Retry,
        now: Time,
        storage: &mut impl Storage,
    ) -> Result<Controller, LoadError> {
        let found = storage.get(Table::Controller, LIFE)?;
        let before = found.as_ref().map_or(Ok(0), |entry| u32::of_bytes(&entry.value));
        let life = before.map_err(|error| LoadError::Contradiction(error.to_string()))? + 1;
        let revision = found.map_or(Revision(0), |entry| entry.revision);
        let key = LIFE.to_vec();
        let value = Some(life.to_bytes());
        let fence = storage.commit(&Batch {
            conditions: vec![Condition { table: Table::Controller, key: key.clone(), revision }],
            writes: vec![Write { table: Table::Controller, key, value }],
        })?;
        let mut state = State::load(settings, storage)?;
        state.await_renewals(now);
        state.unheard = state.relays.keys().copied().collect();
        state.note_apart();
        let agent = |relay: &RelayId| (*relay, Agent::new(*relay, life, retry, now + RETURN));
        let is_lost = |relay: &&Relay| relay.state == RelayState::Gone;
        let mut controller = Controller {
            agents: state.relays.keys().map(agent).collect(),
            lost: state.relays.values().filter(is_lost).map(|relay| relay.id).collect(),
            life,
            fence,
            retry,
            rollouts: Rollouts::new(),
            changes: 0,
            departing: BTreeSet::new(),
            unlinking: BTreeSet::new(),
            ops: VecDeque::new(),
            committing: None,
            admitting: BTreeMap::new(),
            leaving: BTreeMap::new(),
            events: VecDeque::new(),
            refusals: Refusals::default(),
            next_review: now,
            word_from: now,
            word_due: None,
            alone_until: Time::ZERO,
            next_moves: now,
            next_better: now,
            looked_at: None,
            guides: areas::load(now, &state, storage)?,
            next_areas: now,
            measuring: Measuring::default(),
            last_told: RelayId(0),
            asks: VecDeque::new(),
            asked_after: Time::ZERO,
            last_asked_after: RelayId(0),
            next_proposals: None,
            last_proposals: Time::ZERO,
            underway: None,
            last_left: Comtree(0),
            last_moved_off: Comtree(0),
            last_drained: Comtree(0),
            state,
        };
        let effects = controller.state.all_effects();
        controller.apply(now, effects);
        controller.resume(now);
        Ok(controller)
    }

    /// Goes on with what its life before has begun and not ended.
    fn resume(&mut self, now: Time) {
        for relay in self.lost.clone() {
            self.give_up_members(now, relay);
        }
        let closing = self.state.worlds.values().filter(|world| world.closing);
        for name in closing.map(|world| world.name.clone()).collect::<Vec<_>>() {
            _ = self.delete_world(&name);
        }
        self.repair(now);
    }

    /// The number of its life.
    pub fn life(&self) -> u32 {
        self.life
    }

    /// Lets an endpoint whose credential was checked enter a world. What it gets is reserved at
    /// once, and may be told to it with [`Event::Admitted`], or [`Event::Renewed`] if it was in already.
    ///
    /// # Errors
    /// Why not; of several relays, what the nearest lacks. [`Event::NotLetIn`] tells of what is for want of room.
    pub fn enter(&mut self, now: Time, ask: &Enter) -> Result<Admission, Refusal> {
        let result = self.decide(|state, op| state.enter(op, now, ask));
        self.note(now, ask, result)
    }

    /// Prolongs a participant's lease, as [`Controller::enter`] does. If its relay drains, or another is
    /// nearer by far, it gets a place there, too: its own from then on. It has the old one until it gives it
    /// back by [`Controller::give_up_place`], or until that one's lease ends, which nothing prolongs.
    ///
    /// # Errors
    /// As there; or its relay drains, and no other takes it. Then it has what it had.
    pub fn relocate(&mut self, now: Time, ask: &Enter) -> Result<Admission, Refusal> {
        let result = self.decide(|state, op| state.relocate(op, now, ask));
        let is_in = |world: &World| self.held_by(world.id, ask.owner).is_some();
        if self.world(&ask.world).is_ok_and(is_in) {
            // It stays where it is.
            return result;
        }
        self.note(now, ask, result)
    }

    /// A participant gives back one of its places. If that is the one to which it moves, it stays where it
    /// was. If it has lost that one, it does not come back to it by what it was in.
    ///
    /// # Errors
    /// It has no place of this address.
    pub fn give_up_place(
        &mut self,
        world: WorldId,
        owner: Owner,
        address: Address,
    ) -> Result<(), Refusal> {
        self.decide(|state, op| state.give_up_place(op, world, owner, address))
    }

    /// A participant leaves with all places that it has, and comes back no more by what it was in if it has lost its
    /// place. Returns whether it had one, or could have come back.
    pub fn depart(&mut self, world: WorldId, owner: Owner) -> bool {
        let mut op = Op::default();
        let had = !self.state.depart(&mut op, world, owner).is_empty();
        let was_in = had || self.state.renounce(&mut op, world, owner);
        if !op.is_empty() {
            self.ops.push_back(op);
        }
        was_in
    }

    /// Prolongs a member's lease. Returns until when.
    ///
    /// # Errors
    /// Nobody has the address.
    pub fn renew(&mut self, now: Time, world: WorldId, address: Address) -> Result<Time, Refusal> {
        self.decide(|state, op| state.renew(op, now, world, address))
    }

    /// Changes what a member may send and receive.
    ///
    /// # Errors
    /// Nobody has the address, or a link or relay has too little left.
    pub fn modify(
        &mut self,
        world: WorldId,
        address: Address,
        limits: Limits,
    ) -> Result<(), Refusal> {
        self.decide(|state, op| state.modify(op, world, address, limits))
    }

    /// Sends a member away; [`Event::Left`] says when it is gone.
    ///
    /// # Errors
    /// Nobody has the address.
    pub fn leave(&mut self, world: WorldId, address: Address) -> Result<(), Refusal> {
        self.decide(|state, op| state.leave(op, world, address))
    }

    /// Sends a member away, and lets its owner in again only after so long. [`Event::Left`] says
    /// when it is gone. One whose relay was lost is gone already, and does not come back.
    ///
    /// # Errors
    /// Nobody has the address.
    pub fn kick(
        &mut self,
        now: Time,
        world: WorldId,
        address: Address,
        bar: Duration,
    ) -> Result<(), Refusal> {
        self.decide(|state, op| state.kick(op, world, address, now + bar))
    }

    /// The same for all who are called so, whatever places they have. Those who are leaving or have just left do not come
    /// back meanwhile either. Returns how many they are.
    pub fn kick_subject(
        &mut self,
        now: Time,
        world: WorldId,
        subject: &str,
        bar: Duration,
    ) -> usize {
        let mut op = Op::default();
        let kicked = self.state.kick_subject(&mut op, world, subject, now + bar);
        if !op.is_empty() {
            self.ops.push_back(op);
        }
        kicked
    }

    /// Creates a world.
    ///
    /// # Errors
    /// There is one of that name.
    pub fn create_world(&mut self, new: NewWorld) -> Result<WorldId, Refusal> {
        self.decide(|state, op| state.create_world(op, new))
    }

    /// Changes a world. Channels and default limits concern who comes; levels, core and
    /// sharing are told to the relays, while members are in.
    ///
    /// # Errors
    /// There is none of that name, it is being deleted, the mode or the downlink is to change while
    /// it has members, its areas have a higher level, or a link has too little left for the core.
    pub fn set_world(&mut self, name: &Name, changes: WorldChanges) -> Result<(), Refusal> {
        if let Some(levels) = changes.levels {
            self.check_levels_of_areas(name, levels)?;
        }
        self.decide(|state, op| state.set_world(op, name, changes))
    }

    /// Deletes a world: nobody enters any more, and all members are sent away.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn delete_world(&mut self, name: &Name) -> Result<(), Refusal> {
        let id = self.state.world(name)?.id;
        for address in self.decide(|state, op| state.close_world(op, name))? {
            // Those who are leaving already, or rest, need not be told again.
            _ = self.leave(id, address);
        }
        Ok(())
    }

    /// Takes a relay that registers: it gets the number that it had, or a new one.
    ///
    /// # Errors
    /// A relay of that name has another key, or it was removed.
    pub fn register(&mut self, now: Time, new: NewRelay) -> Result<RelayId, Refusal> {
        let id = self.decide(|state, op| state.register(op, new))?;
        let (life, retry) = (self.life, self.retry);
        self.agents.entry(id).or_insert_with(|| Agent::new(id, life, retry, now));
        Ok(id)
    }

    /// Joins two relays by a link of this rate each way, which is given: the controller does not take it
    /// away by itself.
    ///
    /// # Errors
    /// There is no such relay, both are the same, or one has as many links as it can have.
    pub fn add_link(
        &mut self,
        ends: [RelayId; 2],
        rate: Rate,
        delay_us: u32,
    ) -> Result<LinkId, Refusal> {
        self.decide(|state, op| state.add_link(op, ends, rate, delay_us, Origin::Given))
    }

    /// Lets nobody new in at a relay, or again. Its members get places elsewhere when they ask for them, by
    /// [`Controller::relocate`]. Comtrees on which a draining relay has no members move
    /// off it, as [`Controller::move_tree`] does.
    ///
    /// # Errors
    /// There is no such relay.
    pub fn drain(&mut self, relay: RelayId, drains: bool) -> Result<(), Refusal> {
        let state = if drains { RelayState::Draining } else { RelayState::Up };
        let has_changed = self.state.relays.get(&relay).is_some_and(|of| of.state != state);
        self.decide(|of, op| match of.relay(relay)?.state {
            before @ (RelayState::Up | RelayState::Draining) => {
                if before != state {
                    op.tell(match drains {
                        true => Event::RelayDraining(relay),
                        false => Event::RelayServing(relay),
                    });
                }
                of.set_relay(op, relay, state)
            }
            _ if !drains && of.relay(relay)?.removing => of.keep_lost_relay(op, relay),
            _ => Err(Refusal::NoSuchRelay(of.relay_name(relay))),
        })?;
        if has_changed {
            self.hurry_proposals();
        }
        Ok(())
    }

    /// Lets a relay that drains take members again. It is not removed then, also if it was lost meanwhile: it takes
    /// members once it comes back.
    ///
    /// # Errors
    /// There is no such relay.
    pub fn undrain(&mut self, relay: RelayId) -> Result<(), Refusal> {
        self.drain(relay, false)
    }

    /// Takes a link away for good. Comtrees that run over it move to other trees without loss, as
    /// [`Controller::move_tree`] does, and nothing new comes over it. [`Event::LinkRemoved`] says when it is gone;
    /// that may be at once. Asking again changes nothing.
    ///
    /// # Errors
    /// There is no such link, or comtrees cannot do without it. Then nothing changes.
    pub fn remove_link(&mut self, link: LinkId) -> Result<(), Refusal> {
        let links = self.state.links.len();
        self.decide(|state, op| state.remove_link(op, link))?;
        self.hurry_if_cut_off(links);
        Ok(())
    }

    /// The same, but comtrees that run over it get other trees at once: what is on its way may be lost.
    ///
    /// # Errors
    /// As there.
    pub fn remove_link_at_once(&mut self, link: LinkId) -> Result<(), Refusal> {
        let links = self.state.links.len();
        self.decide(|state, op| state.remove_link_at_once(op, link))?;
        self.hurry_if_cut_off(links);
        Ok(())
    }

    /// Keeps a link that was to be removed: trees may run over it again. Asking again changes nothing.
    ///
    /// # Errors
    /// There is no such link, or no longer.
    pub fn keep_link(&mut self, link: LinkId) -> Result<(), Refusal> {
        self.decide(|state, op| state.keep_link(op, link))
    }

    /// Takes a relay away for good, with its links. It drains, as by [`Controller::drain`], and goes once its members
    /// are at other relays and no comtree leads over it. [`Event::RelayRemoved`] says when; that may be at once. Asking
    /// again changes nothing, and [`Controller::undrain`] takes it back until then. Its number is not given again.
    ///
    /// # Errors
    /// There is no such relay, a comtree that has no members there finds no tree without it, or it serves members and no
    /// other relay takes any. Then nothing changes.
    pub fn remove_relay(&mut self, relay: RelayId) -> Result<(), Refusal> {
        self.decide(|state, op| state.remove_relay(op, relay))
    }

    /// The same, but comtrees get other trees at once: what is on its way may be lost.
    ///
    /// # Errors
    /// There is no such relay, it serves members, or a comtree finds no tree without it. Then nothing changes.
    pub fn remove_relay_at_once(&mut self, relay: RelayId) -> Result<(), Refusal> {
        self.decide(|state, op| state.remove_relay_at_once(op, relay))
    }

    /// Lets relays of this name register again that were removed.
    ///
    /// # Errors
    /// None of that name was removed.
    pub fn allow_relay(&mut self, name: &Name) -> Result<(), Refusal> {
        self.decide(|state, op| state.allow_relay(op, name))
    }

    /// Looks for a better tree for a comtree, and moves to it if it gains enough. Returns why it does or
    /// does not. Nothing is lost on the way; see [`Controller::move_tree`].
    pub fn improve(&mut self, comtree: Comtree) -> String {
        let mut op = Op::default();
        let why = self.state.improve(&mut op, comtree);
        if !op.is_empty() {
            self.ops.push_back(op);
        }
        why
    }

    /// Moves a comtree to another tree, without loss: its relays get other parents one after the other,
    /// which takes some four seconds for each, and its root walks over the tree. Relays that drain and have
    /// no members there are left out. Relays join and leave a meshed core, which has the root, one after the
    /// other. From then on trees are improved by the same rule.
    /// [`Event::Reshaped`] says when it is done, or has ended before.
    ///
    /// # Errors
    /// A link or relay has too little left for both trees and what is between them, the tree is not
    /// whole or is being moved, a relay of it is on a detour, members of one that was given up are coming back, or the
    /// root cannot be used or is in none of the largest meshed cores. Then nothing changes.
    pub fn move_tree(&mut self, comtree: Comtree, ask: TreeAsk) -> Result<MovePlan, Refusal> {
        self.decide(|state, op| state.move_tree(op, comtree, ask))
    }

    /// Moves all comtrees of a world, as [`Controller::move_tree`] does: all, or none.
    ///
    /// # Errors
    /// As there, or there is no such world.
    pub fn move_world(&mut self, name: &Name, ask: TreeAsk) -> Result<Vec<MovePlan>, Refusal> {
        self.decide(|state, op| {
            let comtrees = state.world(name)?.comtrees.clone();
            state.all_or_nothing(op, &comtrees, |state, op| {
                comtrees.iter().map(|comtree| state.move_tree(op, *comtree, ask)).collect()
            })
        })
    }

    /// What [`Controller::move_world`] would do now. Nothing changes.
    ///
    /// # Errors
    /// As there.
    pub fn plan_move(&mut self, name: &Name, ask: TreeAsk) -> Result<Vec<MovePlan>, Refusal> {
        let comtrees = self.state.world(name)?.comtrees.clone();
        self.state.plan_moves(&comtrees, ask)
    }

    fn decide<T>(
        &mut self,
        operation: impl FnOnce(&mut State, &mut Op) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut op = Op::default();
        let result = operation(&mut self.state, &mut op)?;
        if !op.is_empty() {
            self.ops.push_back(op);
        }
        Ok(result)
    }
}
