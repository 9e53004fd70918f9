//! Whom a relay is to keep out that has started again, and has forgotten whom it was told to dismiss.
//!
//! The record of a member that has left says when the last of its tokens ends, and rests for longer. The relay hears of
//! those whose tokens may hold before it has any comtree on which somebody could join. Who was kicked is told to every
//! relay: its member may have a token for one at which it was before, with the same address. At the others that does nothing.

use super::Controller;
use crate::model::{Member, MemberState, RelayId};
use crate::op::member_key;
use canopy_wire::Time;
use core::cmp::Reverse;
use core::time::Duration;

/// The most that a relay is told, each member on each comtree. A data thread remembers as many.
const MOST: usize = 65_536;
/// A relay's clock may be so far behind the controller's.
const SKEW: Duration = Duration::from_secs(10);

impl Controller {
    /// A relay that has nothing is told which places are gone. If there are too many, those who were kicked come first,
    /// and then those whose tokens hold longest.
    pub(super) fn dismiss_again(&mut self, now: Time, relay: RelayId) {
        let Some(agent) = self.agents.get_mut(&relay) else { return };
        let is_gone = |of: &&Member| {
            let is_its = of.relay == relay || of.barred.is_some();
            is_its && of.state == MemberState::Resting && of.token_until + SKEW > now
        };
        let mut gone: Vec<&Member> = self.state.members.values().filter(is_gone).collect();
        gone.sort_by_key(|of| Reverse((of.barred.is_some(), of.token_until)));
        let world = |of: &Member| self.state.worlds.get(&of.world);
        let keys = gone.into_iter().flat_map(|of| {
            let comtrees = world(of).into_iter().flat_map(|world| &world.comtrees);
            comtrees.map(|comtree| member_key(*comtree, of.address))
        });
        keys.take(MOST).for_each(|key| agent.remove_again(key));
    }
}
