//! From a controller's items to links, comtrees and branches.

use crate::Net;
use canopy_control::signal::{Branch, Role};
use canopy_control::{Item, ItemKey, MOST_TICKS, Sharing};
use canopy_plan::{Limits, Rate};
use canopy_relay::{
    BranchConfig, BranchId, BranchRole, Budget, ComtreeConfig, Down, Fairness, LinkConfig,
    MAX_MODES, Mode,
};
use canopy_wire::{Downlink, Suite};
use core::time::Duration;
use std::collections::BTreeMap;

/// What a neighbour may send over a branch beyond what is reserved from it: between relays an
/// update has another header and seal than from its sender, and several senders' bursts can meet.
const HEADROOM: f64 = 1.25;

/// The data thread that has the links of a relay, and of its neighbours. Only one can tell what comes twice, so parents
/// are succeeded, and relays join meshed cores, without loss only between links of one.
const THREAD: u16 = 0;

// Beside the ticks of worlds, a relay has worlds without one, and a mode of its own.
const _: () = assert!(MOST_TICKS + 2 <= MAX_MODES);

/// What `items` say beside what the relay has without them. It refuses what contradicts itself, such
/// as a branch over a link that is not there, and what cannot change while a comtree `has` it.
///
/// `group_suite` is the cipher of what is sealed for all members at once.
///
/// # Errors
/// What contradicts itself, in words.
pub fn wanted(
    base: &Net,
    has: &Net,
    items: &BTreeMap<ItemKey, Item>,
    group_suite: Suite,
) -> Result<Net, String> {
    let mut net = base.clone();
    for item in items.values() {
        if let Item::Link { id, key, native, calls, capacity } = item {
            let path = (*native).into();
            let link = LinkConfig { key: *key, path, thread: THREAD, calls: *calls };
            if net.links.insert(*key, link).is_some() {
                return Err(format!("link {}: there is a link to that relay already", id.0));
            }
            net.capacities.insert(*key, down(*capacity));
            net.names.insert(*key, format!("link-{}", id.0));
        }
    }
    for item in items.values() {
        let Item::Comtree { id, world, site, mode, downlink, sharing, branches, .. } = item else {
            continue;
        };
        let config = ComtreeConfig {
            world: world.to_string(),
            downlink: downlink_of(*downlink),
            mode: Some(mode_of(*mode)),
            fairness: fairness_of(sharing),
            group_suite,
            ..ComtreeConfig::new(*id, *site)
        };
        let fairness = config.fairness;
        let is_other = |has: &ComtreeConfig| ComtreeConfig { fairness, ..has.clone() } != config;
        if has.comtrees.get(id).is_some_and(is_other) {
            return Err(format!("comtree {} is there with other settings", id.0));
        }
        net.comtrees.insert(*id, config);
        net.budgets.comtrees.insert(*id, budget_of(sharing, net.budgets.at_first));
        let turns = branches.iter().any(|branch| branch.role == Role::NextParent);
        for branch in branches {
            let Some(Item::Link { key, capacity, .. }) = items.get(&ItemKey::Link(branch.link))
            else {
                if branch.role.is_standby() {
                    continue;
                }
                return Err(format!("comtree {}: there is no link {}", id.0, branch.link.0));
            };
            let id = BranchId { comtree: *id, link: *key, thread: THREAD };
            add_branch(&mut net, id, (branch, turns), *capacity);
        }
    }
    Ok(net)
}

fn down(rate: Rate) -> Down {
    Down { bits: rate.bits as u64, updates: rate.packets as u64 }
}

fn fairness_of(sharing: &Sharing) -> Fairness {
    let floor = Duration::from_millis(sharing.floor_ms.into());
    Fairness { floor, levels_first: sharing.levels_first }
}

/// What the members of a comtree have together: what the relay's own settings say, where the world says nothing.
fn budget_of(sharing: &Sharing, own: Budget) -> Budget {
    let said = |said: f64, own: u64| if said > 0.0 { said as u64 } else { own };
    let Limits { send, receive } = sharing.together;
    Budget {
        up_packets: said(send.packets, own.up_packets),
        up_bits: said(send.bits, own.up_bits),
        down_packets: said(receive.packets, own.down_packets),
        down_bits: said(receive.bits, own.down_bits),
    }
}

fn mode_of(mode: canopy_control::Mode) -> Mode {
    match mode {
        canopy_control::Mode::Immediate => Mode::Immediate,
        canopy_control::Mode::Periodic(tick_ms) => {
            Mode::Periodic { tick: Duration::from_millis(tick_ms.into()) }
        }
    }
}

fn downlink_of(downlink: canopy_control::Downlink) -> Downlink {
    match downlink {
        canopy_control::Downlink::Member => Downlink::Member,
        canopy_control::Downlink::Group => Downlink::Group,
        canopy_control::Downlink::None => Downlink::None,
    }
}

/// `turns`: the relay goes over from a parent to the next.
fn add_branch(net: &mut Net, id: BranchId, (branch, turns): (&Branch, bool), capacity: Rate) {
    let role = match branch.role {
        // There is none unless a detour leads over it.
        Role::StandbyParent | Role::Spare => return,
        Role::StandbyChild => BranchRole::Standby,
        Role::Parent => BranchRole::Parent,
        Role::Core => BranchRole::Core,
        Role::CorePeer => BranchRole::CorePeer,
        Role::NextPeer => BranchRole::NextPeer,
        Role::LastPeer => BranchRole::LastPeer,
        Role::Child => BranchRole::Child,
        Role::NextParent => BranchRole::NextParent,
    };
    net.branches.insert(id, BranchConfig { id, role, site: branch.site });
    // 0 would be no limit.
    let most = |reserved: f64| ((reserved * HEADROOM).ceil() as u64).max(1);
    // Nothing is reserved for whoever comes over a standby branch: it may send what the link bears.
    let receive = if role == BranchRole::Standby { capacity } else { branch.receive };
    let Rate { bits, packets } = receive;
    // A next parent brings, beside what is reserved, all that goes up over the present one, as the two form a circle
    // for a while. The present one brings what goes up over the next. It also brings what nobody below wants any more, until
    // it hears of that, as any parent does of which nothing is reserved since the last one below has left.
    let is_of_circle = turns && matches!(role, BranchRole::Parent | BranchRole::NextParent);
    let is_left = role == BranchRole::Parent && receive == Rate::ZERO;
    if !is_of_circle && !is_left {
        let budget = Budget { up_packets: most(packets), up_bits: most(bits), ..Budget::default() };
        net.budgets.branches.insert(id, budget);
    }
    net.budgets.guarantees.insert(id, branch.send.bits as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes;
    use canopy_control::{LinkId, Name};
    use canopy_relay::Change;
    use canopy_wire::Comtree;

    fn item(branches: Vec<Branch>) -> Item {
        Item::Comtree {
            id: Comtree(5),
            world: Name::new("w").unwrap(),
            site: 1,
            mode: canopy_control::Mode::Immediate,
            downlink: canopy_control::Downlink::Member,
            levels: 1,
            sharing: Sharing::default(),
            branches,
        }
    }

    #[test]
    fn the_links_of_a_relay_are_of_one_data_thread() {
        let rate = Rate { bits: 1e6, packets: 1e3 };
        let links = (1..=3).map(|number| Item::Link {
            id: LinkId(number),
            key: [number as u8; 32],
            native: ([127, 0, 0, 1], 4040).into(),
            calls: true,
            capacity: rate,
        });
        let peer = |number| {
            let (link, site) = (LinkId(number), number as u16 + 1);
            Branch { link, site, role: Role::NextPeer, send: rate, receive: rate }
        };
        let items = links.chain([item((1..=3).map(peer).collect())]);
        let items = items.map(|item| (item.key(), item)).collect();
        let base = Net::default();
        let net = wanted(&base, &base, &items, Suite::Aes128Gcm).unwrap();
        let of_links = net.links.values().map(|link| link.thread);
        let threads: Vec<u16> =
            of_links.chain(net.branches.keys().map(|branch| branch.thread)).collect();
        assert_eq!(threads, [0; 6], "others would refuse next parents and next peers");
    }

    /// Either brings what goes up over the other.
    #[test]
    fn while_a_relay_goes_over_to_its_next_parent_neither_of_the_two_is_limited() {
        let rate = Rate { bits: 1e6, packets: 1e3 };
        let roles = [Role::Parent, Role::Child, Role::NextParent];
        let link = |number: u8| Item::Link {
            id: LinkId(number.into()),
            key: [number; 32],
            native: ([127, 0, 0, 1], 4040).into(),
            calls: true,
            capacity: rate,
        };
        let limited = |count: u8| {
            let of = |number: u8| {
                let (link, site) = (LinkId(number.into()), number.into());
                let role = roles[usize::from(number)];
                Branch { link, site, role, send: rate, receive: rate }
            };
            let items = (0..count).map(link).chain([item((0..count).map(of).collect())]);
            let items = items.map(|item| (item.key(), item)).collect();
            let base = Net::default();
            let net = wanted(&base, &base, &items, Suite::Aes128Gcm).unwrap();
            net.budgets.branches.keys().map(|id| id.link[0]).collect::<Vec<_>>()
        };
        assert_eq!(limited(2), [0, 1]);
        assert_eq!(limited(3), [1]);
    }

    /// It brings what was wanted until it hears that nobody is there.
    #[test]
    fn a_parent_from_which_nothing_is_reserved_is_not_limited() {
        let rate = Rate { bits: 1e6, packets: 1e3 };
        let budget = |role, receive| {
            let link = LinkId(7);
            let (key, native) = ([3; 32], ([127, 0, 0, 1], 4040).into());
            let joined = Item::Link { id: link, key, native, calls: true, capacity: rate };
            let branch = Branch { link, site: 2, role, send: rate, receive };
            let items = [joined, item(vec![branch])].map(|item| (item.key(), item)).into();
            let net = wanted(&Net::default(), &Net::default(), &items, Suite::Aes128Gcm).unwrap();
            net.budgets.branches.values().next().map(|budget| budget.up_packets)
        };
        assert_eq!(budget(Role::Parent, rate), Some(1_250));
        assert_eq!(budget(Role::Parent, Rate::ZERO), None);
        assert_eq!(budget(Role::Child, Rate::ZERO), Some(1));
    }

    /// The comtree of an item in a mode.
    fn in_mode(mode: canopy_control::Mode) -> Item {
        let Item::Comtree { id, world, site, downlink, levels, sharing, branches, .. } =
            item(Vec::new())
        else {
            unreachable!("it is a comtree");
        };
        Item::Comtree { id, world, site, mode, downlink, levels, sharing, branches }
    }

    #[test]
    fn a_comtree_has_the_mode_of_its_world() {
        let base = Net::default();
        let net = |mode, has: &Net| {
            let items = BTreeMap::from([(ItemKey::Comtree(Comtree(5)), in_mode(mode))]);
            wanted(&base, has, &items, Suite::Aes128Gcm)
        };
        let at_once = net(canopy_control::Mode::Immediate, &base).unwrap();
        assert_eq!(at_once.comtrees[&Comtree(5)].mode, Some(Mode::Immediate));
        let mode = canopy_control::Mode::Periodic(40);
        let tick = Duration::from_millis(40);
        let periodic = net(mode, &base).unwrap();
        assert_eq!(periodic.comtrees[&Comtree(5)].mode, Some(Mode::Periodic { tick }));
        // What waits for a tick cannot leave by another one.
        assert!(net(mode, &at_once).is_err());
    }

    /// What a world says of that holds on a relay at once, and what it does not say the relay's own settings say.
    #[test]
    fn what_receivers_get_that_cannot_be_sent_everything_follows_the_world() {
        let mut base = Net::default();
        base.budgets.at_first = Budget { up_packets: 7, up_bits: 8, ..Budget::default() };
        let net = |sharing: Sharing, has: &Net| {
            let Item::Comtree { id, world, site, mode, downlink, levels, branches, .. } =
                item(Vec::new())
            else {
                unreachable!("it is a comtree");
            };
            let item = Item::Comtree { id, world, site, mode, downlink, levels, sharing, branches };
            let items = BTreeMap::from([(item.key(), item)]);
            wanted(&base, has, &items, Suite::Aes128Gcm).unwrap()
        };
        let at_first = net(Sharing::default(), &base);
        assert_eq!(at_first.comtrees[&Comtree(5)].fairness, Fairness::default());
        assert_eq!(at_first.budgets.comtrees[&Comtree(5)], base.budgets.at_first);
        let receive = Rate { bits: 1e6, packets: 0.0 };
        let send = Rate { bits: 0.0, packets: 5.0 };
        let together = Limits { send, receive };
        let set = net(Sharing { floor_ms: 500, levels_first: true, together }, &at_first);
        let steps = changes(&at_first, &set);
        let fairness = Fairness { floor: Duration::from_millis(500), levels_first: true };
        let budget = Budget { up_packets: 5, up_bits: 8, down_packets: 0, down_bits: 1_000_000 };
        assert!(
            matches!(steps[..], [
                Change::SetFairness { comtree: Comtree(5), fairness: now },
                Change::SetComtreeBudget { comtree: Comtree(5), budget: of_all }
            ] if now == fairness && of_all == budget),
            "{steps:?}"
        );
        let mut went = at_first.clone();
        steps.iter().for_each(|step| went.took(step));
        assert_eq!(went, set);
    }

    #[test]
    fn a_link_does_not_go_while_a_branch_runs_over_it() {
        let rate = Rate { bits: 1e6, packets: 1e3 };
        let link = LinkId(7);
        let over = Branch { link, site: 2, role: Role::Child, send: rate, receive: rate };
        let native = ([127, 0, 0, 1], 4040).into();
        let joined = Item::Link { id: link, key: [3; 32], native, calls: true, capacity: rate };
        let base = Net::default();
        let mut items = BTreeMap::new();
        for item in [joined, item(vec![over])] {
            items.insert(item.key(), item);
        }
        let net = wanted(&base, &base, &items, Suite::Aes128Gcm).unwrap();
        assert_eq!(net.branches.len(), 1);
        items.remove(&ItemKey::Link(link));
        let why = wanted(&base, &net, &items, Suite::Aes128Gcm).unwrap_err();
        assert_eq!(why, "comtree 5: there is no link 7");
        let without = item(Vec::new());
        items.insert(without.key(), without);
        assert!(wanted(&base, &net, &items, Suite::Aes128Gcm).unwrap().links.is_empty());
    }
}
