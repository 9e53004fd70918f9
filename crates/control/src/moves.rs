//! Planned changes of a tree, in which nothing is lost (Forest §3.5): one relay after the other gets
//! another parent, as its data plane can, until the tree is the one that is wanted.
//!
//! ```text
//!  T1 ── relays that are new come ──▶ ── a swap for each relay with another parent ──▶ ── relays go ──▶ T2
//!
//!  a swap:  q: child ──▶ c: next parent ──▶ c says that it is the way to the core ──▶ p: gone ──▶ c: parent
//! ```
//!
//! Where the root or the core changes, there are other steps besides, over links that stay. First
//! everything flows over a link both ways, and later only what is wanted:
//!
//! ```text
//!  c joins the core:   p: c is core ──▶ c: p is core
//!  c leaves the core:  c: p is next parent ──▶ c says that p knows all that is wanted ──▶ p: c is child
//! ```
//!
//! The swaps are in breadth-first order of the new tree, so a relay's new parent is never below it:
//! all above that have their places by then. What all trees on the way need is reserved at the
//! start, and given back as they are passed.
//!
//! Where the core is a mesh, relays join that and leave it by steps of their own: see `mesh`.
//!
//! The tree that is in force is stored, and the step that is under way, until its relays have what follows from it,
//! or have taken it back: the next step begins only then, so there is one at most of which relays may have something. A
//! controller that starts finds both, goes on with the step or takes it back in the same order as one that lives
//! (`starting`), and then goes on with the move (`resuming`). What the core of the world's rule needs is reserved all the time, as a move that ends
//! early takes that.

use crate::comtree::{Peering, Phase, Step};
use crate::ledger::Lack;
use crate::mesh::{ARRIVAL, ways_to};
use crate::model::{Core, LinkId, RelayId, TreeHop, WorldId};
use crate::op::{Effect, Event, Op};
use crate::overlap::Picture;
use crate::running::{Move, Running};
use crate::shape::{Load, Shape};
use crate::state::State;
use crate::steps::{Turn, Way, same_tree};
use canopy_wire::{Comtree, Time};
use core::time::Duration;
use std::collections::BTreeSet;

/// A step that is not done within this is taken back, and the move ends.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is sent over a link arrives within its delay and this: relays take one for lost that brings nothing for so long.
const LATEST: Duration = Duration::from_millis(200);
/// A link's delay is what relays say, and nothing waits for more of it than this.
const MOST_DELAY: Duration = Duration::from_secs(1);

impl State {
    /// Moves a comtree to another tree and core without loss. Returns how many relays get another place.
    ///
    /// # Errors
    /// Why that cannot be; then nothing changes.
    pub(crate) fn begin_move(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        end: &Shape,
        why: &str,
    ) -> Result<usize, String> {
        let ways = self.plan_move(comtree, end)?;
        let Some(running) = self.comtrees.get(&comtree) else { return Ok(0) };
        let Some(old) = running.shape.clone() else { return Ok(0) };
        // Relays of a mesh are beside each other, whoever is the root.
        let is_peer = |shape: &Shape, relay| !shape.mesh().is_empty() && shape.is_core(relay);
        let has_moved = |hop: &&TreeHop| match [&old, end].map(|of| is_peer(of, hop.relay)) {
            [true, true] => false,
            [false, false] => old.above(hop.relay) != hop.above,
            _ => true,
        };
        let moved = end.hops().iter().filter(|hop| old.has(hop.relay)).filter(has_moved).count();
        let mut refused = None;
        for way in ways {
            match self.take_way(op, comtree, way, why.to_owned()) {
                Ok(()) => return Ok(moved),
                Err(lack) => _ = refused.get_or_insert(lack),
            }
        }
        Err(refused.map_or_else(|| "there is no way".to_owned(), |of| self.refusal(of).to_string()))
    }

    /// Takes a comtree over other trees to the last of them, once all of that is booked.
    pub(crate) fn take_way(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        way: Way,
        why: String,
    ) -> Result<(), Lack> {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return Ok(()) };
        let (before, flows) = (running.picture(), running.flows());
        running.moving = Some(Move::over(way, why));
        let asked = running.instead_of(&flows);
        if let Err(lack) = self.ledger.book(&asked) {
            running.moving = None;
            return Err(lack);
        }
        // Who uses a standby parent leaves it before anybody gets another parent.
        self.tell_changed(op, comtree, &before, &[]);
        op.effects.push(Effect::Barrier(comtree));
        self.advance(op, comtree);
        Ok(())
    }

    /// The ways from the tree in force to another. At least one.
    fn plan_move(&self, comtree: Comtree, end: &Shape) -> Result<Vec<Way>, String> {
        let running = self.comtrees.get(&comtree).ok_or("there is no such comtree")?;
        let world = self.worlds.get(&running.world).ok_or("it has no world")?;
        let old = running.shape.as_ref().ok_or("it has no members")?;
        if running.moving.is_some() {
            return Err("it is on its way to another tree".to_owned());
        }
        if running.undone.is_some() {
            return Err("its last move is being taken back; wait a moment".to_owned());
        }
        if running.expects_members.is_some() {
            let why = "members of a relay that was given up are coming back; wait a moment";
            return Err(why.to_owned());
        }
        // A move would take their standby parents from relays that are on detours.
        if let Some(why) = old.relays().find_map(|relay| self.detour_in_words(comtree, relay)) {
            return Err(why);
        }
        if !self.found_ways(comtree).is_empty() {
            return Err(
                "relays have found other ways, which are yet to be its tree; wait a moment"
                    .to_owned(),
            );
        }
        if world.core != Core::Mesh {
            return Ok(vec![Way::between(old, end.hops(), &world.core)?]);
        }
        let ways = ways_to(old, end)?;
        let refuses = |way: &Way| {
            let trees = || [old].into_iter().chain(&way.later);
            let mut steps = trees().zip(&way.later);
            steps.find_map(|(now, next)| {
                let step = Peering::between(now, next)?;
                running.no_next_peers.iter().find(|at| step.is_doubled_at(**at)).copied()
            })
        };
        match ways.iter().map(refuses).collect::<Option<Vec<RelayId>>>() {
            Some(refusing) => Err(format!(
                "its core would change, and {} takes no next peers, as its links are of several data threads",
                refusing.first().map_or_else(String::new, |at| self.relay_name(*at))
            )),
            None => Ok(ways.into_iter().filter(|way| refuses(way).is_none()).collect()),
        }
    }

    /// A relay says that its next parent is the way to the core; or that the parent which was a core
    /// neighbour knows all that is wanted.
    pub(crate) fn succeeded(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        relay: RelayId,
        over: LinkId,
    ) {
        let step = self.comtrees.get(&comtree).and_then(Running::step);
        if let Some(step) = step.filter(|step| step.waits_for(relay, over)) {
            self.finish_step(op, comtree, step);
        }
    }

    /// A step is done: relays are told what follows from it.
    fn finish_step(&mut self, op: &mut Op, comtree: Comtree, step: Step) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let (before, flows) = (running.picture(), running.flows());
        let relay = step.relay();
        let parent = running.shape.as_ref().and_then(|shape| shape.above(relay));
        let first: Vec<RelayId> = match &step {
            Step::Swap(_) => parent.into_iter().map(|(above, _)| above).chain([relay]).collect(),
            Step::Leave(leave) => vec![leave.above],
            Step::Peer(peering) => vec![peering.above],
        };
        let Some(moving) = &mut running.moving else { return };
        running.shape = moving.take_next();
        (moving.step, moving.passed, moving.since) = (None, Some(step.clone()), None);
        moving.is_told = false;
        let given = running.instead_of(&flows);
        self.ledger.enter(&given);
        self.save_comtree(op, comtree);
        op.effects.push(Effect::Barrier(comtree));
        self.tell_changed(op, comtree, &before, &first);
        op.effects.extend([Effect::Barrier(comtree), Effect::Passed(comtree, Some(step))]);
    }

    /// The relays of this step have what follows from it, or those of a move that is resumed what it begins with: the
    /// move goes on. If it has ended meanwhile, the step is forgotten, and no other.
    pub(crate) fn go_on(&mut self, op: &mut Op, comtree: Comtree, passed: Option<&Step>) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        match &mut running.moving {
            Some(moving) if moving.step.is_none() && moving.passed.as_ref() == passed => {
                (moving.passed, moving.since) = (None, None);
                self.advance(op, comtree);
            }
            None if passed.is_some() && running.undone.as_ref() == passed => {
                self.forget_undone(op, comtree);
            }
            _ => {}
        }
    }

    /// Goes on with a move as far as no relay's word is needed, or ends it.
    fn advance(&mut self, op: &mut Op, comtree: Comtree) {
        loop {
            let Some(running) = self.comtrees.get_mut(&comtree) else { return };
            let (Some(moving), Some(shape)) = (&mut running.moving, &running.shape) else { return };
            let is_last = moving.later.len() == 1;
            match moving.later.front().and_then(|next| Turn::between(shape, next)) {
                Some(Turn::Step(step)) => return self.begin_step(op, comtree, step),
                Some(Turn::Join { relay, above }) => self.pass(op, comtree, &[above, relay]),
                Some(Turn::Resize) if !is_last => self.pass(op, comtree, &[]),
                Some(Turn::Resize) | None => return self.finish(op, comtree),
            }
        }
    }

    /// Relays are told of a step, or of its next phase.
    fn begin_step(&mut self, op: &mut Op, comtree: Comtree, step: Step) {
        let running = self.comtrees.get_mut(&comtree);
        let Some(moving) = running.and_then(|running| running.moving.as_mut()) else { return };
        (moving.step, moving.is_told, moving.since) = (Some(step.clone()), false, None);
        // A controller that starts finds it before any relay knows of it.
        self.save_comtree(op, comtree);
        for group in step.told() {
            op.effects.push(Effect::Barrier(comtree));
            for relay in group {
                let item = self.comtree_item(comtree, relay);
                op.effects.push(Effect::Comtree(comtree, relay, item));
            }
        }
        if matches!(step, Step::Peer(_)) {
            op.effects.extend([Effect::Barrier(comtree), Effect::Told(comtree)]);
        }
    }

    /// All relays have the phase of a step that is under way.
    pub(crate) fn told(&mut self, op: &mut Op, comtree: Comtree) {
        let running = self.comtrees.get_mut(&comtree);
        let Some(moving) = running.and_then(|running| running.moving.as_mut()) else { return };
        let Some(Step::Peer(peering)) = &moving.step else { return };
        match peering.waits() {
            true => (moving.is_told, moving.since) = (true, None),
            false => self.go_on_peering(op, comtree),
        }
    }

    /// Begins the next phase of a step, or ends it if a relay's word is not needed for that.
    fn go_on_peering(&mut self, op: &mut Op, comtree: Comtree) {
        let step = self.comtrees.get(&comtree).and_then(Running::step);
        let Some(Step::Peer(peering)) = step else { return };
        match (peering.next(), peering.phase) {
            (Some(phase), _) => {
                self.begin_step(op, comtree, Step::Peer(Peering { phase, ..peering }));
            }
            (None, Phase::Below) => {}
            (None, _) => self.finish_step(op, comtree, Step::Peer(peering)),
        }
    }

    /// Takes the next tree at once: these relays are told first, one after the other.
    fn pass(&mut self, op: &mut Op, comtree: Comtree, first: &[RelayId]) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let (before, flows) = (running.picture(), running.flows());
        let Some(moving) = &mut running.moving else { return };
        running.shape = moving.take_next();
        let given = running.instead_of(&flows);
        self.ledger.enter(&given);
        self.save_comtree(op, comtree);
        op.effects.push(Effect::Barrier(comtree));
        self.tell_changed(op, comtree, &before, first);
    }

    /// The last relay has its parent: those that are not needed any more go.
    fn finish(&mut self, op: &mut Op, comtree: Comtree) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let (before, flows) = (running.picture(), running.flows());
        let Some(mut moving) = running.moving.take() else { return };
        if let Some(last) = moving.later.pop_front() {
            running.shape = Some(last);
        }
        running.why.clone_from(&moving.why);
        (running.kept, running.rests_since, running.ended_moves) = (None, None, 0);
        let given = running.instead_of(&flows);
        self.ledger.enter(&given);
        self.renew_standbys(comtree);
        op.effects.push(Effect::Barrier(comtree));
        self.await_left(op, comtree);
        self.reshape_effects(op, comtree, before, None, (false, false));
        op.tell(Event::Reshaped { comtree, why: moving.why });
        self.prune(op, comtree);
        self.heal_mesh(op, comtree);
    }

    /// Ends a move where it is: a step that is not done is taken back, first at the relay whose word was
    /// waited for. The core is what the rule says.
    pub(crate) fn end_move(&mut self, op: &mut Op, comtree: Comtree, reason: &str) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let (mut before, flows) = (running.picture(), running.flows());
        let Some(moving) = running.moving.take() else { return };
        let hops = running.shape.as_ref().map_or(&[][..], Shape::hops);
        if let Some(end) = moving.ends.iter().find(|end| same_tree(end.hops(), hops)) {
            running.shape = Some(end.clone());
        }
        let step = moving.step.map(Step::given_up);
        // One that goes on in another life may have ended before the step of the life before was taken back.
        running.undone = step.clone().or(moving.passed).or(running.undone.take());
        running.why = format!("a move ended before its end: {reason}");
        (running.kept, running.rests_since) = (None, None);
        running.ended_moves = running.ended_moves.saturating_add(1);
        let why = running.why.clone();
        let given = running.instead_of(&flows);
        self.ledger.enter(&given);
        self.renew_standbys(comtree);
        self.save_comtree(op, comtree);
        // The other relay of the step is next: as long as it has its branch, what it brings over it must
        // not be taken for that of a standby parent, nor that of a standby child as long as it may be under way.
        let mut first = Vec::new();
        let taken_back = step.as_ref().map(|_| Effect::TakenBack(comtree));
        if let Some(step) = step {
            self.take_back(op, comtree, &step, &mut before);
            first.extend(step.undone_by().last());
        }
        let after = self.picture_without_standbys(comtree);
        self.tell_towards(op, comtree, (&before, &after), &first);
        op.effects.push(Effect::Barrier(comtree));
        if !self.is_hurt(comtree) {
            self.await_left(op, comtree);
        }
        self.tell_changed(op, comtree, &after, &[]);
        op.effects.extend(taken_back);
        op.tell(Event::Reshaped { comtree, why });
        self.prune(op, comtree);
    }

    /// Takes a step back at the relay whose word was waited for; what follows waits until that relay has
    /// done so. Who was to leave a meshed core is beside the others again before that. It may be under way there still, and needs the branch at the other relay as long. The step is
    /// stored until both have, as [`Running::undone`].
    pub(crate) fn take_back(
        &self,
        op: &mut Op,
        comtree: Comtree,
        step: &Step,
        before: &mut Picture,
    ) {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        // In a repair the new tree is whole, and the one of before was not.
        let was_well = before.values().flatten().all(|branch| self.is_usable(branch.link));
        let again = step.told_again(before, shape);
        for relay in &again {
            let item = self.comtree_base(comtree, *relay, before[relay].clone());
            op.effects.push(Effect::Comtree(comtree, *relay, item));
        }
        op.effects.push(Effect::Barrier(comtree));
        if was_well {
            self.await_heard(op, comtree, &again);
        }
        let [relay, _] = step.undone_by();
        if let Some(branches) = before.get_mut(&relay) {
            *branches = step.taken_back(branches);
            let item = self.comtree_base(comtree, relay, branches.clone());
            op.effects.push(Effect::Comtree(comtree, relay, item));
        }
        op.effects.push(Effect::Barrier(comtree));
        self.await_last(op, comtree, step);
    }

    /// What follows waits until relays that are next peers again hear each other, which takes them half a second. A
    /// repair does not wait.
    pub(crate) fn await_heard(&self, op: &mut Op, comtree: Comtree, again: &[RelayId]) {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        if !again.is_empty() && shape.is_some_and(|shape| self.is_whole(shape)) {
            op.effects.extend([Effect::Arrival(comtree, ARRIVAL), Effect::Barrier(comtree)]);
        }
    }

    /// What follows waits until what the first relay has sent before it took a step back has come to the second, which
    /// passes it on as long as it has the branch. A repair does not wait.
    pub(crate) fn await_last(&self, op: &mut Op, comtree: Comtree, step: &Step) {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        let link = step.link_of_last().filter(|link| self.is_usable(*link));
        if let Some(link) = link.and_then(|link| self.links.get(&link))
            && shape.is_some_and(|shape| self.is_whole(shape))
        {
            let within = Duration::from_micros(link.delay_us.into()).min(MOST_DELAY) + LATEST;
            op.effects.extend([Effect::Arrival(comtree, within), Effect::Barrier(comtree)]);
        }
    }

    /// What follows, standby branches among it, waits until what was sent over their links has arrived: they may have been
    /// of a tree on the way, and what a parent has sent there would pass as a child's, and once more over the tree.
    pub(crate) fn await_left(&self, op: &mut Op, comtree: Comtree) {
        let standbys = self.comtrees.get(&comtree).map(|running| &running.standbys);
        let links = standbys.into_iter().flat_map(|standbys| standbys.values());
        let delay = links.filter_map(|(_, link)| self.links.get(link)).map(|link| link.delay_us);
        if let Some(delay_us) = delay.max() {
            let within = Duration::from_micros(delay_us.into()).min(MOST_DELAY) + LATEST;
            op.effects.extend([Effect::Arrival(comtree, within), Effect::Barrier(comtree)]);
        }
    }

    /// The relays of the last step have taken it back.
    pub(crate) fn forget_undone(&mut self, op: &mut Op, comtree: Comtree) {
        let undone = self.comtrees.get_mut(&comtree).and_then(|running| running.undone.take());
        if undone.is_some() {
            self.save_comtree(op, comtree);
        }
    }

    /// Tells the relays whose branches have changed since; these first, one after the other.
    pub(crate) fn tell_changed(
        &self,
        op: &mut Op,
        comtree: Comtree,
        before: &Picture,
        first: &[RelayId],
    ) {
        let Some(running) = self.comtrees.get(&comtree) else { return };
        self.tell_towards(op, comtree, (before, &running.picture()), first);
    }

    /// The same of what they are to have for now.
    fn tell_towards(
        &self,
        op: &mut Op,
        comtree: Comtree,
        (before, after): (&Picture, &Picture),
        first: &[RelayId],
    ) {
        let tell = |relay: RelayId| {
            let branches = after.get(&relay).cloned();
            let item = branches.and_then(|of| self.comtree_base(comtree, relay, of));
            Effect::Comtree(comtree, relay, item)
        };
        for relay in first {
            op.effects.extend([tell(*relay), Effect::Barrier(comtree)]);
        }
        let relays: BTreeSet<RelayId> = before.keys().chain(after.keys()).copied().collect();
        for relay in relays.into_iter().filter(|relay| !first.contains(relay)) {
            if before.get(&relay) != after.get(&relay) {
                op.effects.push(tell(relay));
            }
        }
    }

    fn picture_without_standbys(&self, comtree: Comtree) -> Picture {
        let running = self.comtrees.get(&comtree);
        let mut picture = running.map(Running::picture).unwrap_or_default();
        for branches in picture.values_mut() {
            branches.retain(|branch| !branch.role.is_standby());
        }
        picture
    }

    /// Members of a comtree's world may come back until then, and nothing planned begins meanwhile.
    pub(crate) fn expect_members(&mut self, world: WorldId, until: Time) {
        for comtree in self.worlds.get(&world).into_iter().flat_map(|world| &world.comtrees) {
            if let Some(running) = self.comtrees.get_mut(comtree) {
                running.expects_members = running.expects_members.max(Some(until));
            }
        }
    }

    /// Members are expected no more whose time is over. Returns whether there were any.
    pub(crate) fn cease_to_expect(&mut self, now: Time) -> bool {
        let mut has_ceased = false;
        for running in self.comtrees.values_mut() {
            if running.expects_members.is_some_and(|until| until <= now) {
                running.expects_members = None;
                has_ceased = true;
            }
        }
        has_ceased
    }

    /// Ends moves that do not get on, and goes on with those for which what was on its way has arrived.
    pub(crate) fn review_moves(&mut self, op: &mut Op, now: Time) {
        let (mut over, mut arrived) = (Vec::new(), Vec::new());
        for (comtree, running) in &mut self.comtrees {
            // Between two steps, and before the first of a move that is resumed, relays have yet to be told.
            let moving = running.moving.as_mut().filter(|moving| moving.step.is_some());
            let Some(moving) = moving else { continue };
            let since = *moving.since.get_or_insert(now);
            match moving.is_told {
                true if since + ARRIVAL <= now => arrived.push(*comtree),
                false if since + PATIENCE <= now => over.push(*comtree),
                _ => {}
            }
        }
        for comtree in arrived {
            self.go_on_peering(op, comtree);
            op.cut();
        }
        for comtree in over {
            let seconds = PATIENCE.as_secs();
            self.end_move(
                op,
                comtree,
                &format!("a relay was not where it was to be after {seconds} s"),
            );
            op.cut();
        }
    }

    /// A relay refuses what it was told of a comtree, perhaps with next peers: a step that cannot be done without is
    /// taken back.
    pub(crate) fn refuse_step(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        relay: RelayId,
        (has_next_peers, why): (bool, &str),
    ) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let Some(step) = running.step().filter(|step| step.needs(relay)) else { return };
        match (&step, has_next_peers) {
            (Step::Peer(_), true) => _ = running.no_next_peers.insert(relay),
            (Step::Peer(_), false) => return,
            _ => {}
        }
        let reason = format!("{} refused: {why}", self.relay_name(relay));
        self.end_move(op, comtree, &reason);
    }

    /// Whether the comtree is on its way to another tree.
    pub(crate) fn is_moving(&self, comtree: Comtree) -> bool {
        self.comtrees.get(&comtree).is_some_and(|running| running.moving.is_some())
    }

    /// Changes a relay's members on a comtree that is moving; the relay is on all its trees.
    pub(crate) fn change_in_move(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        relay: RelayId,
        load: Load,
        is_booked: bool,
    ) -> Result<(), Lack> {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return Ok(()) };
        let kept = (running.shape.clone(), running.moving.clone());
        let (before, flows) = (running.picture(), running.flows());
        running.change(relay, load);
        let asked = running.instead_of(&flows);
        if !is_booked {
            self.ledger.enter(&asked);
        } else if let Err(lack) = self.ledger.book(&asked) {
            (running.shape, running.moving) = kept;
            return Err(lack);
        }
        self.tell_changed(op, comtree, &before, &[]);
        Ok(())
    }
}
