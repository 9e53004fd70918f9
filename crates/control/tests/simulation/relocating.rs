//! Participants move to other relays: they have two places for a while, and give one of them back, or
//! never say a word again.

use crate::sim::Sim;
use canopy_control::{Controller, Enter, Member, MemberState, Refusal};

/// The places of a member's owner.
fn places(controller: &Controller, of: &Member) -> Vec<Member> {
    let is_its = |member: &&Member| member.world == of.world && member.owner == of.owner;
    let is_served =
        |member: &&Member| matches!(member.state, MemberState::Held | MemberState::Moving);
    controller.members().filter(is_its).filter(is_served).cloned().collect()
}

/// How many trees each of the world's comtrees takes one after the other.
fn trees_on_the_way(controller: &Controller, of: &Member) -> Vec<usize> {
    let comtrees = controller.world_of(of.world).map(|world| world.comtrees.clone());
    let trees = |comtree| controller.trees_on_the_way(comtree).len();
    comtrees.into_iter().flatten().map(trees).collect()
}

impl Sim {
    fn some_record(&mut self) -> Option<Member> {
        let (world, address) = self.some_member()?;
        let mut members = self.controller.as_ref()?.members();
        members.find(|member| member.world == world && member.address == address).cloned()
    }

    /// One of the two places of somebody.
    fn one_who_moves(&mut self) -> Option<Member> {
        let controller = self.controller.as_ref()?;
        let of = controller.members().find(|member| member.state == MemberState::Moving)?;
        let two = places(controller, of);
        let at = self.up_to(two.len());
        two.get(at).cloned()
    }

    /// Somebody has measured anew, and asks whether to go elsewhere.
    pub(crate) fn relocate(&mut self) {
        let Some(of) = self.some_record() else { return };
        let measured: Vec<_> = (0..self.relays.len())
            .map(|at| (self.relays[at].id, self.up_to(50_000) as u32))
            .collect();
        let now = self.now;
        let Some(controller) = &mut self.controller else { return };
        let Some(world) = controller.world_of(of.world).map(|world| world.name.clone()) else {
            return;
        };
        let before = places(controller, &of);
        let moving = trees_on_the_way(controller, &of);
        let ask = Enter::new(world, of.owner, measured);
        let answer = controller.relocate(now, &ask);
        let after = places(controller, &of);
        match answer {
            Ok(admission) => {
                let held: Vec<_> = after.iter().filter(|m| m.state == MemberState::Held).collect();
                assert_eq!(held.len(), 1, "one place leads");
                assert_eq!(held[0].address, admission.address, "it is the one that is told");
                if before.len() == 1 && after.len() == 2 {
                    self.told.relocated += 1;
                    let trees = trees_on_the_way(controller, &of);
                    assert_eq!(trees, moving, "no tree's move ends for it");
                    assert_ne!(before[0].relay, admission.relay, "it is elsewhere");
                    let old = after.iter().find(|m| m.address == before[0].address).unwrap();
                    assert_eq!(old.state, MemberState::Moving, "the old one stays meanwhile");
                    assert_eq!(old.until, before[0].until, "and its lease is not prolonged");
                }
            }
            Err(refusal) => {
                assert!(refusal.to_string().contains(';'), "{refusal}: it says what to do");
                assert_eq!(before, after, "{refusal}: nothing changed");
            }
        }
    }

    /// Somebody gives a place back, of which it may have two, or leaves with all.
    pub(crate) fn give_up_place(&mut self) {
        let leaves = self.one_in(4);
        let Some(of) = self.one_who_moves().or_else(|| self.some_record()) else { return };
        let Some(controller) = &mut self.controller else { return };
        let before = places(controller, &of);
        if leaves {
            assert_eq!(controller.depart(of.world, of.owner), !before.is_empty());
            assert_eq!(places(controller, &of), []);
            return;
        }
        let stranger = controller.give_up_place(of.world, [0xff; 16], of.address);
        assert!(matches!(stranger, Err(Refusal::NoSuchMember { .. })), "it is not its own");
        let is_over = controller.give_up_place(of.world, of.owner, of.address).is_err();
        let after = places(controller, &of);
        if is_over {
            assert_eq!(before, after);
        } else if let [left] = &after[..] {
            assert_eq!(before.len(), 2);
            assert_eq!(left.state, MemberState::Held, "what is left is its own");
            self.told.stayed += u32::from(of.state == MemberState::Held);
        }
    }
}
