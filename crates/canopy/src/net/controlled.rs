//! The overlay as a controller wants it: from items to links, comtrees and branches.

use super::{Net, SharedNet, changes};
use canopy_control::signal::{Branch, Role};
use canopy_control::{Item, ItemKey, LinkId};
use canopy_node::{ChangeError, RelayWatch};
use canopy_plan::Rate;
use canopy_relay::{
    BranchConfig, BranchId, BranchRole, Budget, Change, ComtreeConfig, Down, LinkConfig, Refusal,
};
use canopy_session::PublicKey;
use canopy_wire::{Downlink, Suite};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// What a neighbour may send over a branch beyond what is reserved from it: between relays an
/// update has another header and seal than from its sender, and several senders' bursts can meet.
const HEADROOM: f64 = 1.25;

/// What a relay has by its controller's word.
#[derive(Clone)]
pub(crate) struct Controlled {
    /// What it has without.
    base: Net,
    net: SharedNet,
    watch: RelayWatch,
    /// The neighbours to whom the cable is cut.
    cut: Arc<Mutex<BTreeSet<PublicKey>>>,
}

impl Controlled {
    /// A relay that was just started.
    pub(crate) fn new(net: SharedNet, watch: RelayWatch) -> Controlled {
        Controlled { base: net.get(), net, watch, cut: Arc::default() }
    }

    /// Cuts the cable to a neighbour, or mends it, from the next [`Controlled::apply`] on: whatever the
    /// controller says, there is no link then.
    pub(crate) fn set_cut(&self, neighbour: PublicKey, is_cut: bool) {
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        if is_cut {
            cut.insert(neighbour)
        } else {
            cut.remove(&neighbour)
        };
    }

    /// Gives the data plane what `items` say, instead of what it has. It waits for data threads.
    ///
    /// # Errors
    /// Why that cannot be; then the data plane has what it had.
    pub(crate) fn apply(&self, items: &BTreeMap<ItemKey, Item>) -> Result<(), String> {
        let before = self.net.get();
        let mut wanted = wanted(&self.base, &before, items)?;
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cut.iter().for_each(|neighbour| wanted.remove_link(neighbour));
        let mut net = before.clone();
        let result = self.go(&mut net, &wanted);
        if result.is_err()
            && let Err(why) = self.go(&mut net, &before)
        {
            tracing::error!("what was applied in part could not be taken back: {why}");
        }
        net.names = wanted.names;
        self.net.set(net);
        result
    }

    fn go(&self, net: &mut Net, wanted: &Net) -> Result<(), String> {
        for change in changes(net, wanted) {
            self.watch.apply(change.clone()).map_err(|error| error.to_string())?;
            net.took(&change);
        }
        Ok(())
    }

    /// Does to the data plane what a member's item says, beside its token. It waits for data threads.
    ///
    /// # Errors
    /// A data thread does not answer.
    pub(crate) fn apply_member(
        &self,
        key: ItemKey,
        before: Option<&Item>,
        after: Option<&Item>,
    ) -> Result<(), String> {
        let ItemKey::Member(comtree, address) = key else { return Ok(()) };
        let change = match (before, after) {
            (_, None) => Change::ThrowOut { comtree, address },
            // Its token says what it may do, unless that has changed since.
            (Some(_), Some(Item::Member { limits, .. })) => {
                let (up, down) = (limits.send, limits.receive);
                let budget = Budget {
                    up_packets: up.packets as u64,
                    up_bits: up.bits as u64,
                    down_packets: down.packets as u64,
                    down_bits: down.bits as u64,
                };
                Change::SetBudget { comtree, address, budget }
            }
            _ => return Ok(()),
        };
        match self.watch.apply(change) {
            // Nobody has come with the address, or the comtree is gone with all that was on it.
            Ok(())
            | Err(ChangeError::Refused(Refusal::UnknownAddress(..) | Refusal::UnknownComtree(_))) => {
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// How the links stand: whether each has been up, is up, and the time one way, microseconds.
    pub(crate) fn links(&self) -> BTreeMap<PublicKey, (bool, bool, u32)> {
        let links = self.watch.status().links.into_iter();
        let one_way = |time: std::time::Duration| (time.as_micros() / 2) as u32;
        links
            .map(|link| (link.key, (link.ups > 0, link.is_up, link.round_trip.map_or(0, one_way))))
            .collect()
    }
}

impl Net {
    fn add_branch(&mut self, id: BranchId, branch: &Branch) {
        let role = match branch.role {
            Role::Parent => BranchRole::Parent,
            Role::Core => BranchRole::Core,
            Role::Child => BranchRole::Child,
            Role::NextParent => BranchRole::NextParent,
        };
        self.branches.insert(id, BranchConfig { id, role, site: branch.site });
        // 0 would be no limit.
        let most = |reserved: f64| ((reserved * HEADROOM).ceil() as u64).max(1);
        let Rate { bits, packets } = branch.receive;
        let budget = Budget { up_packets: most(packets), up_bits: most(bits), ..Budget::default() };
        self.budgets.branches.insert(id, budget);
        self.budgets.guarantees.insert(id, branch.send.bits as u64);
    }
}

/// What `items` say beside what the relay has without them. It refuses what contradicts itself, such
/// as a branch over a link that is not there, and what cannot change while a comtree `has` it.
fn wanted(base: &Net, has: &Net, items: &BTreeMap<ItemKey, Item>) -> Result<Net, String> {
    let mut net = base.clone();
    for item in items.values() {
        if let Item::Link { id, key, native, calls, capacity } = item {
            let thread = thread_of(*id);
            let link = LinkConfig { key: *key, path: (*native).into(), thread, calls: *calls };
            if net.links.insert(*key, link).is_some() {
                return Err(format!("link {}: there is a link to that relay already", id.0));
            }
            net.capacities.insert(*key, down(*capacity));
            net.names.insert(*key, format!("link-{}", id.0));
        }
    }
    for item in items.values() {
        let Item::Comtree { id, world, site, downlink, branches, .. } = item else { continue };
        let config = ComtreeConfig {
            world: world.to_string(),
            downlink: downlink_of(*downlink),
            group_suite: group_suite(),
            ..ComtreeConfig::new(*id, *site)
        };
        if has.comtrees.get(id).is_some_and(|has| *has != config) {
            return Err(format!("comtree {} is there with other settings", id.0));
        }
        net.comtrees.insert(*id, config);
        net.budgets.comtrees.insert(*id, net.budgets.at_first);
        for branch in branches {
            let Some(Item::Link { key, .. }) = items.get(&ItemKey::Link(branch.link)) else {
                return Err(format!("comtree {}: there is no link {}", id.0, branch.link.0));
            };
            let thread = thread_of(branch.link);
            net.add_branch(BranchId { comtree: *id, link: *key, thread }, branch);
        }
    }
    Ok(net)
}

/// The same on both sides, which may have more threads or fewer: links are spread by their numbers.
fn thread_of(link: LinkId) -> u16 {
    (link.0 % 64) as u16
}

fn down(rate: Rate) -> Down {
    Down { bits: rate.bits as u64, updates: rate.packets as u64 }
}

fn downlink_of(downlink: canopy_control::Downlink) -> Downlink {
    match downlink {
        canopy_control::Downlink::Member => Downlink::Member,
        canopy_control::Downlink::Group => Downlink::Group,
        canopy_control::Downlink::None => Downlink::None,
    }
}

/// The cipher that this processor is good at.
fn group_suite() -> Suite {
    if canopy_net::has_aes() { Suite::Aes128Gcm } else { Suite::ChaCha20Poly1305 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_control::{Mode, Name};
    use canopy_wire::Comtree;

    #[test]
    fn a_link_does_not_go_while_a_branch_runs_over_it() {
        let rate = Rate { bits: 1e6, packets: 1e3 };
        let link = LinkId(7);
        let over = Branch { link, site: 2, role: Role::Child, send: rate, receive: rate };
        let comtree = |branches| Item::Comtree {
            id: Comtree(5),
            world: Name::new("w").unwrap(),
            site: 1,
            mode: Mode::Immediate,
            downlink: canopy_control::Downlink::Member,
            levels: 1,
            branches,
        };
        let native = ([127, 0, 0, 1], 4040).into();
        let joined = Item::Link { id: link, key: [3; 32], native, calls: true, capacity: rate };
        let base = Net::default();
        let mut items = BTreeMap::new();
        for item in [joined, comtree(vec![over])] {
            items.insert(item.key(), item);
        }
        let net = wanted(&base, &base, &items).unwrap();
        assert_eq!(net.branches.len(), 1);
        items.remove(&ItemKey::Link(link));
        let why = wanted(&base, &net, &items).unwrap_err();
        assert_eq!(why, "comtree 5: there is no link 7");
        let without = comtree(Vec::new());
        items.insert(without.key(), without);
        assert!(wanted(&base, &net, &items).unwrap().links.is_empty());
    }
}
