//! Moves that a life before has begun, and that go on.
//!
//! Stored is where a move leads, and not the way: that is found anew from the tree in force, with the core that it has on
//! the way. If a relay joins or leaves a meshed core, or gets another parent, the step that was under way goes on: that
//! relay may have turned to its next parent, and what it sends over the old one again could overtake what it has sent since.
//! Another step is taken back first (`starting`). The first step of the way that is left follows once relays have what they
//! are to have. All that the way needs is booked before relays are told of anything. If that is too much, as the way
//! is another one than before, the move ends where it is, and the core is what the rule says.

use crate::comtree::{Heading, Step, Swap};
use crate::hops::breadth_first;
use crate::ledger::Lack;
use crate::mesh::ways_to;
use crate::model::Core;
use crate::running::{Move, Running};
use crate::shape::Shape;
use crate::state::State;
use crate::steps::Way;
use canopy_wire::Comtree;
use std::collections::VecDeque;

impl State {
    /// A comtree whose tree is known, with the core of the rule, goes on with its move if there is room for that.
    pub(crate) fn resume_move(&mut self, comtree: Comtree, heading: Heading) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let why = heading.why.clone();
        running.why.clone_from(&why);
        let result = self.ways_on(comtree, heading).and_then(|(begun, ways)| {
            let mut refused = None;
            for way in ways {
                match self.take_way_on(comtree, &begun, way, &why) {
                    Ok(()) => return Ok(()),
                    Err(lack) => _ = refused.get_or_insert(lack),
                }
            }
            refused.map_or(Ok(()), |lack| Err(self.refusal(lack).to_string()))
        });
        if let (Err(reason), Some(running)) = (result, self.comtrees.get_mut(&comtree)) {
            running.why =
                format!("a move ended before its end: the controller has restarted; {reason}");
        }
    }

    /// What has been begun of a comtree's move, and the ways that are left from there.
    fn ways_on(&self, comtree: Comtree, heading: Heading) -> Result<(Begun, Vec<Way>), String> {
        let running = self.comtrees.get(&comtree).ok_or("there is no such comtree")?;
        let world = self.worlds.get(&running.world).ok_or("it has no world")?;
        let shape = running.shape.as_ref().ok_or("it has no members")?;
        let begun = Begun::of(running, shape, &heading, &world.core)?;
        let now = begun.later.back().unwrap_or(&begun.shape);
        let ways = match world.core {
            Core::Mesh => {
                let end = Shape::meshed(heading.tree, heading.mesh, |relay| shape.load(relay))?;
                ways_to(now, &end)?
            }
            _ => vec![Way::between(now, &heading.tree, &world.core)?],
        };
        Ok((begun, ways))
    }

    /// Books such a way and takes it, behind a step that goes on.
    fn take_way_on(
        &mut self,
        comtree: Comtree,
        begun: &Begun,
        way: Way,
        why: &str,
    ) -> Result<(), Lack> {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return Ok(()) };
        let Begun { shape, step, mut later, mut ends } = begun.clone();
        later.extend(way.later);
        ends.extend(way.ends);
        if later.is_empty() {
            return Ok(());
        }
        let (flows, before) = (running.flows(), running.clone());
        if step.is_some() {
            running.undone = None;
        }
        running.shape = Some(shape);
        running.moving = Some(Move { step, ..Move::over(Way { later, ends }, why.to_owned()) });
        let asked = running.instead_of(&flows);
        let booked = self.ledger.book(&asked);
        if booked.is_err() {
            *running = before;
        }
        booked
    }
}

/// Where a move is that goes on.
#[derive(Clone)]
struct Begun {
    /// The tree in force, with the core that it has on the way.
    shape: Shape,
    /// The step that goes on, and the tree that follows it.
    step: Option<Step>,
    later: VecDeque<Shape>,
    /// See [`Way::ends`].
    ends: Vec<Shape>,
}

impl Begun {
    fn of(
        running: &Running,
        shape: &Shape,
        heading: &Heading,
        rule: &Core,
    ) -> Result<Begun, String> {
        let load = |relay| shape.load(relay);
        let core = heading.core.iter().copied().collect();
        let now = match rule {
            Core::Mesh => shape.clone(),
            _ => Shape::with_core(shape.hops().to_vec(), &core, load)?,
        };
        if let Some(moving) = &running.moving {
            let (step, later) = (moving.step.clone(), moving.later.clone());
            return Ok(Begun { shape: now, step, later, ends: Vec::new() });
        }
        // Relays that are yet to let go of another tree are told nothing else before.
        let undone = running.undone.clone().filter(|_| running.overlap.is_none());
        let next = match &undone {
            Some(Step::Swap(swap)) => now.after_swap(swap),
            _ => None,
        };
        let ends = if now.core() == shape.core() { Vec::new() } else { vec![shape.clone()] };
        let step = undone.filter(|_| next.is_some());
        Ok(Begun { shape: now, step, later: next.into_iter().collect(), ends })
    }
}

impl Shape {
    /// The tree after a relay has got another parent; nothing if it has that already, or cannot have it.
    fn after_swap(&self, swap: &Swap) -> Option<Shape> {
        let Swap { child, next, link } = *swap;
        let mut hops = self.hops().to_vec();
        let hop = hops.iter_mut().find(|hop| hop.relay == child)?;
        let above = hop.above.replace((next, link))?;
        if above == (next, link) || !self.has(next) {
            return None;
        }
        let (hops, load) = (breadth_first(&hops), |relay| self.load(relay));
        if hops.len() < self.hops().len() {
            return None;
        }
        match self.mesh() {
            [] => Shape::with_core(hops, &self.core(), load).ok(),
            mesh => Shape::meshed(hops, mesh.to_vec(), load).ok(),
        }
    }
}
