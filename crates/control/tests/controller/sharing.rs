//! What relays are told of what members get who cannot be sent everything.

use crate::bed::{Bed, limits, rate, world};
use canopy_control::{Item, ItemKey, Sharing, WorldChanges};
use canopy_plan::{Limits, Rate};

const TOLD: Sharing = Sharing {
    floor_ms: 500,
    levels_first: true,
    together: Limits {
        send: Rate { bits: 0.0, packets: 0.0 },
        receive: Rate { bits: 9.0, packets: 7.0 },
    },
};

impl Bed {
    fn share(&mut self, sharing: Sharing) {
        let changes = WorldChanges { sharing: Some(sharing), ..WorldChanges::default() };
        self.controller.set_world(&world(), changes).unwrap();
        self.exchange();
    }

    /// What a relay has been told of the world's comtree.
    fn told(&self, at: usize) -> Sharing {
        let comtree = self.controller.world(&world()).unwrap().comtrees[0];
        match self.relays[at].1.items().get(&ItemKey::Comtree(comtree)) {
            Some(Item::Comtree { sharing, .. }) => *sharing,
            other => panic!("relay {at} has {other:?}"),
        }
    }
}

/// Two relays with a member each.
fn pair() -> Bed {
    let mut bed = Bed::new(2, 10_000_000, &[(0, 1, 1000)]);
    (0..2).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.exchange();
    bed
}

#[test]
fn relays_are_told_how_a_world_shares_while_members_are_in_and_the_next_controller_knows_it() {
    let mut bed = pair();
    assert_eq!([bed.told(0), bed.told(1)], [Sharing::default(); 2]);
    bed.share(TOLD);
    assert_eq!(([bed.told(0), bed.told(1)], bed.sent_away), ([TOLD; 2], 0));
    bed.start_again();
    bed.exchange();
    assert_eq!(bed.controller.world(&world()).unwrap().sharing, TOLD);
    assert!(bed.controller.is_settled());
    bed.share(Sharing::default());
    assert_eq!([bed.told(0), bed.told(1)], [Sharing::default(); 2]);
    let receive = rate(1000);
    bed.share(Sharing { together: Limits { receive, ..Limits::default() }, ..TOLD });
    assert_eq!(bed.told(1).together.receive, receive);
}

/// It would not read what it does not know, and would be told nothing else any more.
#[test]
fn a_relay_of_an_earlier_release_is_told_all_but_how_a_world_shares() {
    let mut bed = pair();
    bed.earlier.insert(1);
    // Each relay is asked by a new controller what it has.
    bed.start_again();
    bed.exchange();
    bed.share(TOLD);
    assert_eq!([bed.told(0), bed.told(1)], [TOLD, Sharing::default()]);
    _ = bed.enter(2, &[1], limits(1000, 1000)).unwrap();
    bed.exchange();
    assert!(bed.controller.is_settled(), "it is told what follows");
    // The same host has a later release from its next start on.
    bed.earlier.clear();
    bed.relays[1].1 = canopy_control::RelaySide::new(2);
    bed.exchange();
    assert_eq!(bed.told(1), TOLD);
}
