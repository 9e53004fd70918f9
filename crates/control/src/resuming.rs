//! Moves that a life before has begun, and that go on.
//!
//! Stored is where a move leads, and not the way: that is found anew from the tree in force, with the core that it has on
//! the way. The step that was under way is taken back first (`starting`), or goes on if it is of a meshed core; the
//! first step of the way that is left follows once relays have what they are to have. All that the way needs is booked
//! before relays are told of anything. If that is too much, as the way is another one than before, the move ends
//! where it is, and the core is what the rule says.

use crate::comtree::Heading;
use crate::ledger::Lack;
use crate::mesh::ways_to;
use crate::model::Core;
use crate::running::Move;
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
        let result = self.ways_on(comtree, heading).and_then(|(shape, ways)| {
            let mut refused = None;
            for way in ways {
                match self.take_way_on(comtree, &shape, way, &why) {
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

    /// The tree in force with the core that it has on the way, and the ways that are left from there.
    fn ways_on(&self, comtree: Comtree, heading: Heading) -> Result<(Shape, Vec<Way>), String> {
        let Heading { tree, mesh, core, .. } = heading;
        let running = self.comtrees.get(&comtree).ok_or("there is no such comtree")?;
        let world = self.worlds.get(&running.world).ok_or("it has no world")?;
        let shape = running.shape.as_ref().ok_or("it has no members")?;
        let load = |relay| shape.load(relay);
        if world.core == Core::Mesh {
            let end = Shape::meshed(tree, mesh, load)?;
            // A step that goes on comes first.
            let later = running.moving.as_ref().and_then(|moving| moving.later.back());
            return Ok((shape.clone(), ways_to(later.unwrap_or(shape), &end)?));
        }
        let now = Shape::with_core(shape.hops().to_vec(), &core.into_iter().collect(), load)?;
        let way = Way::between(&now, &tree, &world.core)?;
        Ok((now, vec![way]))
    }

    /// Books such a way and takes it, behind a step that goes on.
    fn take_way_on(
        &mut self,
        comtree: Comtree,
        shape: &Shape,
        way: Way,
        why: &str,
    ) -> Result<(), Lack> {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return Ok(()) };
        let (flows, kept) = (running.flows(), (running.shape.clone(), running.moving.clone()));
        let (mut later, step) = match &running.moving {
            Some(moving) => (moving.later.clone(), moving.step.clone()),
            None => (VecDeque::new(), None),
        };
        later.extend(way.later);
        if later.is_empty() {
            return Ok(());
        }
        running.shape = Some(shape.clone());
        let way = Way { later, ends: way.ends };
        running.moving = Some(Move { step, ..Move::over(way, why.to_owned()) });
        let asked = running.instead_of(&flows);
        let booked = self.ledger.book(&asked);
        if booked.is_err() {
            (running.shape, running.moving) = kept;
        }
        booked
    }
}
