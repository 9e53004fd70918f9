//! Who is gone has a token that may hold yet, and a relay that starts again has forgotten who that is.

use crate::bed::{Bed, limits};
use canopy_control::{Admission, ItemKey, RelayId, RelaySide};
use core::time::Duration;

impl Bed {
    /// The relay starts again. Returns what it is told, in order, and whether it is to have that.
    fn told_after_start(&mut self, life: u32) -> Vec<(ItemKey, bool)> {
        self.relays[0].1 = RelaySide::new(life);
        self.stalls = true;
        let mut told = Vec::new();
        for _ in 0..50 {
            self.tick();
            let side = &mut self.relays[0].1;
            while let Some(applying) = side.poll_apply() {
                told.push((applying.key(), applying.after.is_some()));
                side.applied(applying, Ok(()));
            }
        }
        self.stalls = false;
        told
    }
}

#[test]
fn a_relay_that_starts_again_hears_who_is_gone_before_anybody_can_join() {
    let mut bed = Bed::new(2, 10_000_000, &[(0, 1, 1000)]);
    let kicked = bed.enter(7, &[0], limits(1, 1)).unwrap();
    let left = bed.enter(8, &[0], limits(1, 1)).unwrap();
    let elsewhere = bed.enter(9, &[1], limits(1, 1)).unwrap();
    bed.exchange();
    let Admission { world, relay, .. } = kicked;
    assert_eq!((relay, elsewhere.relay), (RelayId(1), RelayId(2)));
    let bar = Duration::from_secs(60);
    bed.controller.kick(bed.now, world, kicked.address, bar).unwrap();
    bed.controller.kick(bed.now, world, elsewhere.address, bar).unwrap();
    bed.controller.leave(world, left.address).unwrap();
    bed.exchange();
    assert_eq!(bed.sent_away, 3);
    let stays = bed.enter(10, &[0], limits(1, 1)).unwrap();
    bed.exchange();

    let comtree = bed.controller.world(&crate::bed::world()).unwrap().comtrees[0];
    let key = |of: &Admission| ItemKey::Member(comtree, of.address);
    let told = bed.told_after_start(2);
    // The one of the other relay has no token for this one.
    assert_eq!(told[..2], [(key(&kicked), false), (key(&left), false)], "{told:?}");
    assert!(told[2..].iter().all(|(_, is_wanted)| *is_wanted), "{told:?}");
    assert_eq!(told.last(), Some(&(key(&stays), true)));

    // So it is if the controller starts again as well, and if only that does, the relay has forgotten nothing.
    bed.start_again();
    assert_eq!(bed.told_after_start(3), told);
    bed.start_again();
    bed.exchange();
    assert_eq!(bed.sent_away, 3);

    // Once it has come again, it is not dismissed.
    bed.now = bed.now + Duration::from_secs(61);
    bed.enter(7, &[0], limits(1, 1)).unwrap();
    bed.exchange();
    let told = bed.told_after_start(4);
    assert!(told.contains(&(key(&kicked), true)) && !told.contains(&(key(&kicked), false)));
}
