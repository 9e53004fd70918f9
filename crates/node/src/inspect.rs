//! What of a relay's tables its watchers may look at: learned routes and groups with subscribers.
//!
//! The lists are made by the data threads when somebody asks, and what is copied between two turns is
//! bounded.

use canopy_relay::{GroupStatus, Relay, RouteStatus, Via};
use canopy_wire::Time;
use std::cmp::Ordering;
use std::time::Duration;

/// The most routes, and the most groups, that an inspection lists.
pub const MAX_LISTED: usize = 1_000;

/// A part of a relay's tables, in order: at most [`MAX_LISTED`] of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Learned routes. One that a data thread has from another stands here by the way that other one
    /// has, if that is listed too.
    pub routes: Vec<RouteStatus>,
    /// Whether there are more routes.
    pub routes_cut: bool,
    /// Groups with subscribers.
    pub groups: Vec<GroupStatus>,
    /// Whether there are more groups.
    pub groups_cut: bool,
}

impl Inspection {
    /// A data thread's part.
    pub(crate) fn of(relay: &mut Relay, now: Time) -> Inspection {
        // One more than is listed shows whether there are more.
        let mut inspection = Inspection {
            routes: relay.list_routes(now, MAX_LISTED + 1),
            groups: relay.list_groups(MAX_LISTED + 1),
            ..Inspection::default()
        };
        inspection.cut();
        inspection
    }

    /// The relay's, of its data threads'.
    pub(crate) fn merge(parts: impl IntoIterator<Item = Inspection>) -> Inspection {
        let mut whole = Inspection::default();
        for part in parts {
            whole.routes.extend(part.routes);
            whole.groups.extend(part.groups);
            whole.routes_cut |= part.routes_cut;
            whole.groups_cut |= part.groups_cut;
        }
        // The better way first, and only that is kept.
        whole.routes.sort_by(|one, other| {
            (one.comtree, one.to).cmp(&(other.comtree, other.to)).then_with(|| better(one, other))
        });
        whole.routes.dedup_by_key(|route| (route.comtree, route.to));
        whole.groups.sort_by_key(|one| (one.comtree, one.group));
        whole.groups.dedup_by(|next, sum| {
            let is_same = (next.comtree, next.group) == (sum.comtree, sum.group);
            if is_same {
                sum.participants += next.participants;
                sum.branches += next.branches;
                sum.highest = sum.highest.max(next.highest);
            }
            is_same
        });
        whole.cut();
        whole
    }

    fn cut(&mut self) {
        self.routes_cut |= self.routes.len() > MAX_LISTED;
        self.routes.truncate(MAX_LISTED);
        self.groups_cut |= self.groups.len() > MAX_LISTED;
        self.groups.truncate(MAX_LISTED);
    }
}

/// Orders two routes to one destination: a branch comes before another data thread, and then what was heard last.
fn better(one: &RouteStatus, other: &RouteStatus) -> Ordering {
    let rank = |route: &RouteStatus| {
        (matches!(route.via, Via::Thread(_)), route.heard.unwrap_or(Duration::MAX))
    };
    rank(one).cmp(&rank(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::{Address, Comtree, Group, Level};

    const LINK: Via = Via::Branch([7; 32]);

    fn route(endpoint: u16, via: Via, heard: Option<u64>) -> RouteStatus {
        let to = Address::unicast(1, endpoint);
        RouteStatus { comtree: Comtree(1), to, via, heard: heard.map(Duration::from_secs) }
    }

    fn group(number: u32, participants: u32, level: u8) -> GroupStatus {
        let group = Group::try_from(number).unwrap();
        let (comtree, highest) = (Comtree(1), Level(level));
        GroupStatus { comtree, group, participants, branches: 1, highest }
    }

    #[test]
    fn what_data_threads_tell_becomes_one_relays() {
        let first = Inspection {
            routes: vec![route(70, Via::Thread(1), None), route(64, LINK, Some(3))],
            groups: vec![group(9, 2, 1), group(5, 1, 0)],
            ..Inspection::default()
        };
        let second = Inspection {
            routes: vec![route(64, LINK, Some(1)), route(70, LINK, Some(9))],
            groups: vec![group(9, 3, 4)],
            groups_cut: true,
            ..Inspection::default()
        };
        let whole = Inspection::merge([first, second]);
        assert_eq!(whole.routes, [route(64, LINK, Some(1)), route(70, LINK, Some(9))]);
        let ninth = GroupStatus { branches: 2, ..group(9, 5, 4) };
        assert_eq!(whole.groups, [group(5, 1, 0), ninth]);
        assert!(whole.groups_cut && !whole.routes_cut);
    }

    #[test]
    fn lists_are_cut_and_say_so() {
        let part = |from: u32| Inspection {
            groups: (from..from + 600).map(|number| group(number, 1, 0)).collect(),
            ..Inspection::default()
        };
        let whole = Inspection::merge([part(0), part(300)]);
        assert_eq!((whole.groups.len(), whole.groups_cut), (900, false));
        let whole = Inspection::merge([part(0), part(600)]);
        assert_eq!((whole.groups.len(), whole.groups_cut), (MAX_LISTED, true));
        assert_eq!(whole.groups.last(), Some(&group(999, 1, 0)));
    }
}
