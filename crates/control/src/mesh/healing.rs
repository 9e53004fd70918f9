//! Meshed cores that become larger, as relays got links with all of them, or as there is a larger one. Nothing is lost
//! where relays take it: they leave and join one after the other.

use super::{Choice, Joined, Spare, form, ways_to};
use crate::comtree::Peering;
use crate::ledger::Flow;
use crate::model::{Core, RelayId};
use crate::op::{Event, Op};
use crate::running::Running;
use crate::shape::Shape;
use crate::state::State;
use crate::steps::Way;
use canopy_wire::Comtree;
use std::collections::{BTreeSet, VecDeque};

impl State {
    /// Lets relays into meshed cores that have links with all of them now.
    pub(crate) fn heal_meshes(&mut self, op: &mut Op) {
        let is_whole =
            |running: &Running| running.shape.as_ref().is_some_and(|shape| self.is_whole(shape));
        let calm = self.comtrees.iter().filter(|(id, of)| self.may_heal(**id, of) && is_whole(of));
        for comtree in calm.map(|(comtree, _)| *comtree).collect::<Vec<_>>() {
            self.heal_mesh(op, comtree);
            op.cut();
        }
    }

    fn may_heal(&self, comtree: Comtree, running: &Running) -> bool {
        let is_meshed = self.worlds.get(&running.world).is_some_and(|of| of.core == Core::Mesh);
        let is_calm = running.may_move() && running.overlap.is_none();
        is_meshed && is_calm && !self.has_detour(comtree)
    }

    /// Lets a relay into a comtree's meshed core that has links with all of it now; the next one follows. If there is
    /// none, a larger core may be another one. Where relays refuse next peers, it is taken at once.
    pub(crate) fn heal_mesh(&mut self, op: &mut Op, comtree: Comtree) {
        let running = self.comtrees.get(&comtree).filter(|of| self.may_heal(comtree, of));
        let Some((running, shape)) = running.and_then(|of| Some((of, of.shape.as_ref()?))) else {
            return;
        };
        let joined = self.joined(comtree, shape.hops());
        let refuses = |of: &Peering| running.no_next_peers.iter().any(|at| of.is_doubled_at(*at));
        let newcomers = shape.newcomers(&joined);
        if newcomers.iter().any(|(peering, _)| refuses(peering)) {
            return self.take_larger_core(op, comtree);
        }
        for (peering, next) in &newcomers {
            let way = Way { later: VecDeque::from([next.clone()]), ends: Vec::new() };
            if self.take_way(op, comtree, way, peering.why()).is_ok() {
                return;
            }
        }
        if newcomers.is_empty() {
            self.change_core(op, comtree, &joined);
        }
    }

    /// Gives a comtree a larger meshed core that is another one than it has, if there is one. All of the way has to fit.
    fn change_core(&mut self, op: &mut Op, comtree: Comtree, joined: &Joined) {
        let Some(running) = self.comtrees.get(&comtree) else { return };
        let Some(shape) = &running.shape else { return };
        let Some(end) = with_largest_core(shape, joined) else { return };
        let refuses = |at: &RelayId| end.is_core(*at) || shape.is_core(*at);
        if running.no_next_peers.iter().any(refuses) {
            return self.take_larger_core(op, comtree);
        }
        for way in ways_to(shape, &end).unwrap_or_default() {
            let why = "another set of its relays makes a larger core".to_owned();
            if self.take_way(op, comtree, way, why).is_ok() {
                return;
            }
        }
    }

    /// Gives a comtree the largest meshed core at once, without those for whom there is no room.
    fn take_larger_core(&mut self, op: &mut Op, comtree: Comtree) {
        let hops = self.hops_of(comtree);
        let core = |state: &State| {
            let shape = state.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
            shape.map_or(0, |shape| shape.core().len())
        };
        let before = core(self);
        let Ok(new) = self.fit(comtree, &hops, |_, load| load, Spare::Joining) else { return };
        let is_larger = new.as_ref().is_some_and(|new| new.core().len() > before);
        if !is_larger {
            let given = new.iter().flat_map(Shape::flows).map(Flow::inverse);
            let had = self.comtrees.get(&comtree).map(|of| of.flows()).unwrap_or_default();
            self.ledger.enter(&given.chain(had).collect::<Vec<_>>());
            return;
        }
        let why = "a relay has links with all of its core now, and joined that".to_owned();
        self.take(op, comtree, new, why.clone());
        op.tell(Event::Reshaped { comtree, why });
    }
}

/// The tree with the largest core that its relays can have, if that is larger.
fn with_largest_core(shape: &Shape, joined: &Joined) -> Option<Shape> {
    let (before, none) = (shape.core(), BTreeSet::new());
    let choice = Choice { joined, before: &before, out: &none, kept: &none };
    let (hops, mesh) = form(shape.hops(), &choice, false);
    let end = Shape::meshed(hops, mesh, |relay| shape.load(relay)).ok()?;
    (end.core().len() > before.len()).then_some(end)
}
