//! What becomes of places after a start that nobody renews.

use crate::bed::{Bed, limits};
use canopy_control::{Entry, MemberState, Settings};
use core::time::Duration;

/// Who died while the controller was away, or was never told that it is in, gives back its place soon.
#[test]
fn after_a_start_who_does_not_renew_is_out_within_a_third_of_a_lease() {
    let mut bed = Bed::new(1, 1_000_000, &[]);
    let renews = bed.enter(1, &[0], limits(1, 1)).unwrap();
    bed.enter(2, &[0], limits(1, 1)).unwrap();
    bed.exchange();
    let started = bed.now;
    bed.start_again();
    bed.exchange();
    // SDK clients are that far at the latest, whenever the controller has started.
    bed.now = started + Settings::default().lease / 3 + Duration::from_secs(5);
    bed.exchange();
    assert_eq!(bed.controller.members().count(), 2);
    bed.controller.renew(bed.now, renews.world, renews.address).unwrap();
    bed.exchange();
    bed.now = started + Duration::from_secs(29);
    bed.exchange();
    let held = bed.controller.members().filter(|member| member.state == MemberState::Held);
    let held: Vec<_> = held.map(|member| member.address).collect();
    assert_eq!(held, [renews.address], "its relay has a second of the 30 that are promised");
    assert_eq!(bed.sent_away, 1);
}

/// It may come at any time while its place lasts.
#[test]
fn after_a_start_whom_a_backend_let_in_has_its_whole_lease() {
    let mut bed = Bed::new(1, 1_000_000, &[]);
    let let_in = Entry { let_in: 1, ..Entry::default() };
    let admission = bed.enter_by(1, &[0], limits(1, 1), let_in).unwrap();
    bed.exchange();
    bed.start_again();
    bed.now = bed.now + Settings::default().lease - Duration::from_secs(5);
    bed.exchange();
    assert_eq!(bed.sent_away, 0);
    bed.now = admission.until;
    bed.exchange();
    assert_eq!(bed.sent_away, 1);
}
