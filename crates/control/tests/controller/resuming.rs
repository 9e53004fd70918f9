//! Moves that go on after the controller has died, at any moment of them.

use crate::bed::{Bed, SQUARE, limits, world};
use canopy_control::{Core, Event, RelayId, TreeAsk, TreeOnTheWay, WorldChanges};
use canopy_plan::Rate;

/// A square with a member at each relay, whose root is the first relay and whose core is by this rule.
fn square(core: &Core) -> Bed {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    let changes = WorldChanges { core: Some(core.clone()), ..WorldChanges::default() };
    bed.controller.set_world(&world(), changes).unwrap();
    (0..4).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    bed
}

impl Bed {
    fn move_to(&mut self, root: u16) {
        let ask = TreeAsk { root: Some(RelayId(root)), ..TreeAsk::default() };
        self.controller.move_world(&world(), ask).unwrap();
    }

    fn tree_now(&self) -> TreeOnTheWay {
        let comtree = self.controller.world(&world()).unwrap().comtrees[0];
        self.controller.trees_on_the_way(comtree).remove(0)
    }

    /// Goes on until nothing moves. Returns why trees were reshaped.
    fn reshaped(&mut self) -> Vec<String> {
        let mut reshaped = Vec::new();
        for _ in 0..40 {
            reshaped.extend(self.exchange().into_iter().filter_map(|event| match event {
                Event::Reshaped { why, .. } => Some(why),
                _ => None,
            }));
            if self.controller.is_settled() {
                break;
            }
        }
        reshaped
    }
}

/// Moves it while the controller dies after so many hundredths of a second, and again. Returns whether it was still moving.
fn dies_after(ticks: usize, core: &Core, waits: bool) -> bool {
    let mut bed = square(core);
    bed.waits = waits;
    bed.move_to(4);
    (0..ticks).for_each(|_| _ = bed.tick());
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    let is_moving = bed.controller.is_moving(comtree);
    let (before, is_stored) = (bed.tree_now().core, bed.controller.is_committed());
    bed.start_again();
    // Whatever the rule says: relays have this core, and to give it up at once can lose updates.
    assert!(!is_stored || bed.tree_now().core == before, "after {ticks} ticks");
    (0..ticks / 2).for_each(|_| _ = bed.tick());
    bed.start_again();
    bed.waits = false;
    let reshaped = bed.reshaped();
    let ended = reshaped.iter().find(|why| !why.starts_with("it was moved to"));
    assert_eq!(ended, None, "after {ticks} ticks");
    let TreeOnTheWay { hops, core: now, .. } = bed.tree_now();
    assert_eq!(hops[0].relay, RelayId(4), "after {ticks} ticks");
    let most = if *core == Core::Center { 1 } else { 2 };
    assert!(now.len() >= most && now.contains(&RelayId(4)), "{now:?}");
    assert_eq!(bed.parted, 0, "after {ticks} ticks");
    assert!(bed.controller.is_settled());
    assert_eq!(bed.controller.audit(), Ok(()));
    let members: Vec<_> = bed.controller.members().map(|of| (of.world, of.address)).collect();
    members.into_iter().for_each(|(world, address)| bed.controller.leave(world, address).unwrap());
    bed.exchange();
    let reserved = |(_, _, rate)| rate;
    assert!(bed.controller.accounts().map(reserved).all(|rate| rate == Rate::ZERO), "an orphan's");
    is_moving
}

#[test]
fn a_move_goes_on_where_the_controller_died_whatever_the_core() {
    for core in [Core::Center, Core::CenterAndNeighbours, Core::All] {
        let died: usize = (1..60).map(|ticks| usize::from(dies_after(ticks, &core, false))).sum();
        assert!(died >= 3, "{died} {core:?}");
        assert!(dies_after(30, &core, true), "the relay was yet to turn");
    }
}

#[test]
fn a_move_that_is_resumed_has_patience_with_relays_that_have_yet_to_be_told() {
    let mut bed = square(&Core::Center);
    bed.waits = true;
    bed.move_to(4);
    (0..30).for_each(|_| _ = bed.tick());
    (bed.stalls, bed.waits) = (true, false);
    bed.start_again();
    for _ in 0..80 {
        bed.exchange();
        bed.renew_all();
    }
    bed.stalls = false;
    let reshaped = bed.reshaped();
    let ended = reshaped.iter().find(|why| !why.starts_with("it was moved to"));
    assert_eq!((ended, bed.tree_now().hops[0].relay), (None, RelayId(4)));
    assert_eq!(bed.controller.audit(), Ok(()));
}
