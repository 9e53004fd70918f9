//! How the relay's part of the overlay stands, for whoever runs it.

use super::Relay;
use crate::changes::BranchId;
use crate::ports::Peer;
use crate::status::{BranchStatus, GroupStatus, LinkStatus, RouteStatus, Via};
use canopy_wire::{Level, Time};

/// Members of groups that are counted for one list, about.
const MOST_MEMBERS: usize = 20_000;

impl Relay {
    /// How its links stand.
    pub fn links(&self) -> impl Iterator<Item = LinkStatus> + '_ {
        self.links.iter().map(|link| link.status(&self.sessions))
    }

    /// How the branches of its comtrees stand.
    pub fn branches(&self) -> impl Iterator<Item = BranchStatus> + '_ {
        let of_comtree = |entry: &'_ crate::comtrees::ComtreeEntry| {
            let comtree = entry.id;
            entry.tree.branches().to_vec().into_iter().map(move |branch| (comtree, branch))
        };
        self.comtrees.live().flat_map(of_comtree).filter_map(|(comtree, branch)| {
            let link = self.link_at(self.link_of(branch.port)?)?.status(&self.sessions);
            let (subscribes, unacknowledged) = self.asked_over(branch.port);
            let load = self.thinning.links.load_of(branch.port);
            Some(BranchStatus {
                id: BranchId { comtree, link: link.key, thread: link.thread },
                role: branch.role,
                site: branch.site,
                is_up: link.is_up,
                subscribed: self.table.count_of(branch.port),
                subscribes,
                unacknowledged,
                bits_offered: load.offered,
                bits_out: load.sent,
                bits_allowed: load.allowed,
            })
        })
    }

    /// How many ways to endpoints and sites it has learned.
    pub fn routes(&self) -> u32 {
        self.overlay.routes.len()
    }

    /// The ways that it has learned, up to so many of them.
    pub fn list_routes(&mut self, now: Time, most: usize) -> Vec<RouteStatus> {
        self.overlay.routes.settle();
        let status = |route: crate::routes::Route| {
            let via = match self.ports.get(route.way.port)?.peer {
                Peer::Branch(session) => Via::Branch(*self.link_at(session)?.key()),
                Peer::Sibling(thread) => Via::Thread(thread),
                Peer::Participant(_) => return None,
            };
            let comtree = self.comtrees.get(route.comtree).id;
            Some(RouteStatus { comtree, to: route.to, via, heard: route.quiet_for })
        };
        self.overlay.routes.iter(now).filter_map(status).take(most).collect()
    }

    /// The groups that somebody here is subscribed to, up to so many of them; fewer where they have many
    /// members, so that the turn does not take long.
    pub fn list_groups(&self, most: usize) -> Vec<GroupStatus> {
        let (mut listed, mut looked_at) = (Vec::new(), 0);
        for (comtree, group, index) in self.table.groups().take(most) {
            if looked_at > MOST_MEMBERS {
                break;
            }
            let mut status =
                GroupStatus { comtree, group, participants: 0, branches: 0, highest: Level(0) };
            for (port, level, _) in self.table.members(index) {
                looked_at += 1;
                let peer = self.ports.get(port).map(|port| port.peer);
                status.participants += u32::from(matches!(peer, Some(Peer::Participant(_))));
                status.branches += u32::from(matches!(peer, Some(Peer::Branch(_))));
                status.highest = status.highest.max(level);
            }
            listed.push(status);
        }
        listed
    }
}
