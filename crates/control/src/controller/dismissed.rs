//! Whom a relay is to keep out that has started again, and has forgotten whom it was told to dismiss.
//!
//! The record of a member that has left rests for as long as one of its tokens may hold, so it says that. The relay
//! hears of all of them before it has any comtree on which somebody could join: what is removed is called first.

use super::Controller;
use crate::model::{Member, MemberState, RelayId};
use crate::op::member_key;
use core::cmp::Reverse;

/// The most members that a relay is told of. It remembers as many.
const MOST: usize = 65_536;

impl Controller {
    /// A relay that has nothing is told which places there are gone. If there are too many, those who were kicked come
    /// first, and then those whose tokens hold longest.
    pub(super) fn dismiss_again(&mut self, relay: RelayId) {
        let Some(agent) = self.agents.get_mut(&relay) else { return };
        let is_gone = |of: &&Member| of.relay == relay && of.state == MemberState::Resting;
        let mut gone: Vec<&Member> = self.state.members.values().filter(is_gone).collect();
        if gone.len() > MOST {
            gone.sort_unstable_by_key(|of| Reverse((of.barred.is_some(), of.until)));
            gone.truncate(MOST);
        }
        for member in gone {
            let Some(world) = self.state.worlds.get(&member.world) else { continue };
            for comtree in &world.comtrees {
                agent.want(member_key(*comtree, member.address), 0, None);
            }
        }
    }
}
