//! A relay of the simulation: the real control side, over a data plane that takes only what a real
//! one takes.

use canopy_control::signal::{Branch, Role, Ticket};
use canopy_control::{Applying, Item, ItemKey, LinkId, RelayId, RelaySide};
use canopy_wire::{Comtree, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Why it refuses next peers.
const ONE_THREAD: &str = "a next peer needs one data thread";

pub(crate) struct SimRelay {
    pub(crate) id: RelayId,
    pub(crate) life: u32,
    /// Nothing while it is down.
    pub(crate) side: Option<RelaySide>,
    /// What the data plane is about to apply.
    pub(crate) applying: Option<(Time, Applying)>,
    /// What it has executed in this life.
    executed: BTreeSet<(Ticket, ItemKey)>,
    pub(crate) is_cut_off: bool,
    /// Whether it was given up at some time: then nobody waits for it, and it may be there all the same.
    pub(crate) was_lost: bool,
    /// Next parents: over which link, and when they are the way to the core at the earliest; nothing
    /// once they are.
    pub(crate) successions: BTreeMap<Comtree, (LinkId, Option<Time>)>,
    /// Sabotage: it says that it has let go of branches, and keeps them.
    pub(crate) clings: bool,
    pub(crate) clung: BTreeMap<Comtree, Vec<Branch>>,
    /// When it had next peers or last peers last.
    pub(crate) doubled: BTreeMap<Comtree, Time>,
    /// Whether its links are of several data threads: then it has no next peers.
    pub(crate) has_threads: bool,
    pub(crate) refused_peers: u32,
}

impl SimRelay {
    pub(crate) fn new(id: RelayId) -> SimRelay {
        SimRelay {
            id,
            life: 1,
            side: Some(RelaySide::new(1)),
            applying: None,
            executed: BTreeSet::new(),
            is_cut_off: false,
            was_lost: false,
            successions: BTreeMap::new(),
            clings: false,
            clung: BTreeMap::new(),
            doubled: BTreeMap::new(),
            has_threads: false,
            refused_peers: 0,
        }
    }

    pub(crate) fn crash(&mut self) {
        self.side = None;
        self.applying = None;
        self.executed.clear();
        self.successions.clear();
        self.clung.clear();
        self.doubled.clear();
    }

    pub(crate) fn restart(&mut self) {
        self.life += 1;
        self.side = Some(RelaySide::new(self.life));
    }

    /// Whether it lets anybody in on a comtree now.
    pub(crate) fn has_members(&self, comtree: Comtree) -> bool {
        let is_its = |key: &ItemKey| matches!(key, ItemKey::Member(of, _) if *of == comtree);
        self.side.as_ref().is_some_and(|side| side.items().keys().any(is_its))
    }

    /// Keeps the branches that a change takes away from it.
    fn cling(&mut self, applying: &Applying) {
        let ItemKey::Comtree(comtree) = applying.key() else { return };
        let clung = self.clung.entry(comtree).or_default();
        clung.extend(branches_of(&applying.before));
        clung.retain(|of| branches_of(&applying.after).iter().all(|is| is.link != of.link));
    }

    /// Whether it has next peers or last peers.
    pub(crate) fn is_doubled(&self) -> bool {
        let items = self.side.iter().flat_map(|side| side.items().values());
        items.into_iter().any(|item| match item {
            Item::Comtree { branches, .. } => crate::flooding::is_doubled(branches),
            _ => false,
        })
    }

    /// Answers what is due. Returns what was changed.
    pub(crate) fn apply(&mut self, refuse: bool) -> Option<Applying> {
        let (_, applying) = self.applying.take()?;
        let side = self.side.as_mut()?;
        let change = (applying.ticket, applying.key());
        assert!(self.executed.insert(change), "what a call changes is changed once");
        let result = check(side, &applying, refuse, self.has_threads);
        self.refused_peers += u32::from(result == Err(ONE_THREAD.to_owned()));
        let is_done = result.is_ok();
        side.applied(applying.clone(), result);
        if is_done && self.clings {
            self.cling(&applying);
        }
        is_done.then_some(applying)
    }
}

/// Whether a comtree's next parent was a neighbour in the core, or is already being turned to.
fn leaves_core(applying: &Applying) -> bool {
    let after = branches_of(&applying.after);
    let next = after.iter().find(|branch| branch.role == Role::NextParent);
    branches_of(&applying.before).iter().any(|branch| {
        let turns = matches!(branch.role, Role::Core | Role::NextParent) || branch.role.is_peer();
        turns && next.is_some_and(|next| next.link == branch.link)
    })
}

fn branches_of(item: &Option<Item>) -> Vec<Branch> {
    match item {
        Some(Item::Comtree { branches, .. }) => branches.clone(),
        _ => Vec::new(),
    }
}

/// What the neighbour over a link was before.
fn role_before(applying: &Applying, link: LinkId) -> Option<Role> {
    match &applying.before {
        Some(Item::Comtree { branches, .. }) => {
            branches.iter().find(|of| of.link == link).map(|of| of.role)
        }
        _ => None,
    }
}

/// What a data plane refuses.
fn check(
    side: &RelaySide,
    applying: &Applying,
    refuse: bool,
    has_threads: bool,
) -> Result<(), String> {
    let has = |key: ItemKey| side.items().contains_key(&key);
    match (&applying.after, applying.key()) {
        (Some(Item::Comtree { branches, .. }), _) => {
            let count = |role| branches.iter().filter(|branch| branch.role == role).count();
            let (parents, nexts) = (count(Role::Parent), count(Role::NextParent));
            let is_core = |role: Role| role == Role::Core || role.is_peer();
            let in_core = branches.iter().any(|branch| is_core(branch.role));
            assert!(parents <= 1 && !(parents == 1 && in_core), "one parent, or in the core");
            assert!(nexts <= 1 && !(nexts == 1 && in_core), "one next parent, outside the core");
            if nexts == 1 && parents == 0 && !leaves_core(applying) {
                return Err("there is no parent beside the next one".to_owned());
            }
            if count(Role::NextPeer) > 0 && has_threads {
                return Err(ONE_THREAD.to_owned());
            }
            let last = branches.iter().filter(|branch| branch.role == Role::LastPeer);
            for last in last {
                let before = role_before(applying, last.link);
                let may = [None, Some(Role::NextPeer), Some(Role::LastPeer)];
                assert!(may.contains(&before), "only a next peer becomes a last peer");
            }
            match branches.iter().find(|branch| !has(ItemKey::Link(branch.link))) {
                Some(branch) => Err(format!("there is no link {}", branch.link.0)),
                None => Ok(()),
            }
        }
        (Some(Item::Member { comtree, .. }), _) if !has(ItemKey::Comtree(*comtree)) => {
            Err("there is no such comtree".to_owned())
        }
        (Some(Item::Member { .. }), _) if refuse && applying.before.is_none() => {
            Err("there is no place".to_owned())
        }
        (None, ItemKey::Link(id)) => {
            let is_on_it = |item: &Item| matches!(item, Item::Comtree { branches, .. } if branches.iter().any(|of| of.link == id));
            match side.items().values().any(is_on_it) {
                true => Err(format!("a branch goes over link {}", id.0)),
                false => Ok(()),
            }
        }
        (None, ItemKey::Comtree(id)) => {
            let is_on_it = |key: &ItemKey| matches!(key, ItemKey::Member(of, _) if *of == id);
            assert!(!side.items().keys().any(is_on_it), "members go before their comtree");
            Ok(())
        }
        _ => Ok(()),
    }
}
