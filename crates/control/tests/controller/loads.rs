//! What relays say that they send over their links.

use crate::bed::Bed;
use canopy_control::signal::LinkLoad;
use canopy_control::{LinkId, RelayId, RelaySide};

#[test]
fn what_an_end_sends_over_a_link_is_known_while_that_end_is_there() {
    let mut bed = Bed::new(2, 1_000_000, &[(0, 1, 1000)]);
    let loads = |bed: &Bed| [1, 2].map(|end| bed.controller.load(LinkId(1), RelayId(end)));
    assert_eq!(loads(&bed), [None, None]);
    for (end, bits_out) in [(0, 7_000), (1, 0)] {
        // The other link is none that it has, and shows nowhere.
        let loads = [(1, bits_out), (9, 1)];
        let loads = loads.map(|(link, bits_out)| LinkLoad { link: LinkId(link), bits_out });
        bed.relays[end].1.set_loads(loads.to_vec());
    }
    bed.exchange();
    assert_eq!(loads(&bed), [Some(7_000), Some(0)]);
    // What a life before has sent says nothing of this one.
    bed.relays[1].1 = RelaySide::new(2);
    bed.exchange();
    assert_eq!(loads(&bed), [Some(7_000), None]);
    bed.controller.handle_disconnect(bed.now, RelayId(1));
    assert_eq!(loads(&bed), [None, None]);
}
