//! Who is gone has a token that may hold yet, and a relay that starts again has forgotten who that is.

use crate::bed::{Bed, limits};
use canopy_control::{Admission, ItemKey, LinkId, RelayId, RelaySide, Settings};
use core::time::Duration;

impl Bed {
    /// A relay starts again. Returns what it is told, in order, and whether it is to have that.
    fn told_after_start(&mut self, at: usize, life: u32) -> Vec<(ItemKey, bool)> {
        self.relays[at].1 = RelaySide::new(life);
        self.stalls = true;
        let mut told = Vec::new();
        for _ in 0..50 {
            self.tick();
            let side = &mut self.relays[at].1;
            while let Some(applying) = side.poll_apply() {
                told.push((applying.key(), applying.after.is_some()));
                side.applied(applying, Ok(()));
            }
        }
        self.stalls = false;
        told
    }

    fn key(&self, of: &Admission) -> ItemKey {
        let comtree = self.controller.world(&crate::bed::world()).unwrap().comtrees[0];
        ItemKey::Member(comtree, of.address)
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

    let told = bed.told_after_start(0, 2);
    // Nobody waits for its links. Who was kicked may have been here before.
    assert_eq!(told[0], (ItemKey::Link(LinkId(1)), true), "{told:?}");
    let gone = [&kicked, &left, &elsewhere].map(|of| (bed.key(of), false));
    assert_eq!(told[1..4], gone, "{told:?}");
    assert!(told[4..].iter().all(|(_, is_wanted)| *is_wanted), "{told:?}");
    assert_eq!(told.last(), Some(&(bed.key(&stays), true)));

    // So it is if the controller starts again as well, and if only that does, the relay has forgotten nothing.
    bed.start_again();
    assert_eq!(bed.told_after_start(0, 3), told);
    bed.start_again();
    bed.exchange();
    assert_eq!(bed.sent_away, 3);

    // Once it has come again, it is not dismissed.
    bed.now = bed.now + Duration::from_secs(61);
    bed.enter(7, &[0], limits(1, 1)).unwrap();
    bed.exchange();
    let (told, key) = (bed.told_after_start(0, 4), bed.key(&kicked));
    assert!(told.contains(&(key, true)) && !told.contains(&(key, false)));
}

#[test]
fn a_relay_hears_of_whoever_has_a_token_that_holds_and_of_nobody_else() {
    let lease = Duration::from_secs(3600);
    let mut bed = Bed::with(Settings { lease, ..Settings::default() }, 1, 10_000_000, &[]);
    let gone = [7, 8].map(|owner| bed.enter(owner, &[0], limits(1, 1)).unwrap());
    bed.exchange();
    // They are to renew their places soon, and have tokens for an hour.
    bed.start_again();
    for (of, bar_s) in gone.iter().zip([60, 7200]) {
        let bar = Duration::from_secs(bar_s);
        bed.controller.kick(bed.now, of.world, of.address, bar).unwrap();
    }
    bed.exchange();
    let gone = gone.map(|of| (bed.key(&of), false));
    bed.now = bed.now + Duration::from_secs(3000);
    assert_eq!(bed.told_after_start(0, 2), gone);
    bed.now = bed.now + Duration::from_secs(700);
    assert!(bed.told_after_start(0, 3).is_empty());
}

#[test]
fn who_is_kicked_is_kept_out_of_a_relay_that_it_has_lost_before() {
    let mut bed = Bed::new(2, 10_000_000, &[(0, 1, 1000)]);
    let before = bed.enter(7, &[1], limits(1, 1)).unwrap();
    bed.exchange();
    bed.connected = 1;
    (0..10).for_each(|_| _ = bed.exchange());
    let after = bed.enter(7, &[0], limits(1, 1)).unwrap();
    assert_eq!((after.relay, after.address), (RelayId(1), before.address));
    bed.exchange();
    let bar = Duration::from_secs(1);
    bed.controller.kick(bed.now, after.world, after.address, bar).unwrap();
    bed.exchange();
    bed.start_again();
    bed.connected = 2;
    let told = bed.told_after_start(1, 2);
    assert!(told.contains(&(bed.key(&before), false)), "{told:?}");
}
