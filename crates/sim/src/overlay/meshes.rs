//! Relays that leave meshed cores and join them again, by themselves, in an order in which nothing is lost: who
//! comes and those who will hear it directly are next peers of each other, while one relay of the core takes it
//! for a neighbour in the core as in a tree.
//!
//! ```text
//!          leaves                                          joins
//!   n, c   next peer of each other                 p       n is in the core
//!   p      n is in the core                        n, c    next peer of each other
//!   n, c   last peer of each other                 p       n is a core peer
//!   n, c   none of each other; n: p is the parent  n, c    core peers of each other
//!   p      n is a child, once that has said
//!          that p knows all that is wanted
//! ```

use super::config::OverlaySabotage;
use super::roles::{Reload, draw_leaving};
use super::shape::{Core, Links, Tree};
use canopy_relay::BranchRole;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// The most changes of a comtree.
const MOST_CHANGES: usize = 16;
/// Milliseconds before the first change, and before each other.
const FIRST_MS: Range<u64> = 3_000..5_000;
const PAUSE_MS: Range<u64> = 0..1_000;
/// Milliseconds until all that was sent before relays were told has arrived everywhere.
const ARRIVE_MS: Range<u64> = 1_000..1_300;

/// Links of meshed cores are of one data thread at each relay: it alone can tell what comes twice.
pub(crate) fn join_threads(trees: &[Tree], links: &Links, calls: &mut [(u16, bool)]) {
    for tree in trees.iter().filter(|tree| tree.core == Core::Mesh) {
        let core: Vec<usize> = tree.core_relays().collect();
        for (one, other) in core.iter().flat_map(|one| core.iter().map(move |other| (one, other))) {
            if let Some((link, _)) = links.between(*one, *other) {
                calls[link].0 = 0;
            }
        }
    }
}

/// Draws changes of meshed cores, behind those of other comtrees.
pub(crate) fn draw_mesh_reloads(
    trees: &[Tree],
    reloads: &mut Vec<Reload>,
    sabotage: Option<OverlaySabotage>,
    rng: &mut ChaCha8Rng,
) {
    for (number, tree) in trees.iter().enumerate() {
        let core: Vec<usize> = tree.core_relays().collect();
        if tree.core != Core::Mesh || core.len() < 2 {
            continue;
        }
        let mut mesh = Mesh { number, core, outside: BTreeMap::new(), reloads, last: Vec::new() };
        for change in 0..MOST_CHANGES {
            let first = mesh.reloads.len();
            mesh.draw_change(change, rng);
            mesh.last = (first..mesh.reloads.len()).collect();
        }
    }
    if sabotage == Some(OverlaySabotage::PeersAtOnce) {
        for (_, role) in reloads.iter_mut().flat_map(|reload| &mut reload.roles) {
            *role = if *role == BranchRole::NextPeer { BranchRole::CorePeer } else { *role };
        }
    }
}

/// A meshed core, as it will be after the reloads so far.
struct Mesh<'a> {
    /// The comtree, by number.
    number: usize,
    core: Vec<usize>,
    /// By relay that has left the core: its parent.
    outside: BTreeMap<usize, usize>,
    reloads: &'a mut Vec<Reload>,
    /// The reloads of the last change.
    last: Vec<usize>,
}

impl Mesh<'_> {
    fn draw_change(&mut self, change: usize, rng: &mut ChaCha8Rng) {
        let ways = self.outside.iter().filter(|(_, above)| self.core.contains(above));
        let ways: Vec<(usize, usize)> = ways.map(|(relay, above)| (*relay, *above)).collect();
        if !ways.is_empty() && (self.core.len() < 2 || rng.random_bool(0.5)) {
            let (relay, above) = ways[rng.random_range(0..ways.len())];
            self.join(change, (relay, above), rng);
        } else {
            let relay = self.core.remove(rng.random_range(0..self.core.len()));
            let above = self.core[rng.random_range(0..self.core.len())];
            self.leave(change, (relay, above), rng);
        }
    }

    fn join(&mut self, change: usize, (relay, above): (usize, usize), rng: &mut ChaCha8Rng) {
        use BranchRole::{CorePeer, NextPeer};
        let peers: Vec<usize> = self.core.iter().copied().filter(|of| *of != above).collect();
        let told = |role| peers.iter().map(move |peer| (*peer, role)).collect::<Vec<_>>();
        let first = self.begin(change, above, vec![(relay, BranchRole::Core)], rng);
        let mut roles = told(NextPeer);
        roles.push((above, CorePeer));
        let mut told_of: Vec<usize> = vec![self.then(change, relay, roles, &[first], 0..300, rng)];
        for peer in &peers {
            let roles = vec![(relay, NextPeer)];
            told_of.push(self.then(change, *peer, roles, &[first], 0..300, rng));
        }
        let roles = vec![(relay, CorePeer)];
        let ends = self.then(change, above, roles, &told_of, ARRIVE_MS, rng);
        if !peers.is_empty() {
            self.then(change, relay, told(CorePeer), &[ends], 0..300, rng);
        }
        for peer in &peers {
            self.then(change, *peer, vec![(relay, CorePeer)], &[ends], 0..300, rng);
        }
        self.outside.remove(&relay);
        self.core.push(relay);
    }

    fn leave(&mut self, change: usize, (relay, above): (usize, usize), rng: &mut ChaCha8Rng) {
        use BranchRole::NextPeer;
        let peers: Vec<usize> = self.core.iter().copied().filter(|of| *of != above).collect();
        let next = peers.iter().map(|peer| (*peer, NextPeer)).collect::<Vec<_>>();
        let mut told_of = Vec::new();
        if !peers.is_empty() {
            told_of.push(self.begin(change, relay, next, rng));
        }
        for peer in &peers {
            let first = told_of[0];
            told_of.push(self.then(change, *peer, vec![(relay, NextPeer)], &[first], 0..300, rng));
        }
        let roles = vec![(relay, BranchRole::Core)];
        let both = match told_of.is_empty() {
            true => self.begin(change, above, roles, rng),
            false => self.then(change, above, roles, &told_of, ARRIVE_MS, rng),
        };
        let mut both = vec![both];
        let last: Vec<_> = peers.iter().map(|peer| (*peer, BranchRole::LastPeer)).collect();
        if !peers.is_empty() {
            let told = both.clone();
            both = vec![self.then(change, relay, last, &told, ARRIVE_MS, rng)];
            for peer in &peers {
                let roles = vec![(relay, BranchRole::LastPeer)];
                both.push(self.then(change, *peer, roles, &told, ARRIVE_MS, rng));
            }
        }
        let roles = vec![(above, draw_leaving(rng))];
        let leaves = self.then(change, relay, roles, &both, ARRIVE_MS, rng);
        self.reloads[leaves].drops.clone_from(&peers);
        let mut gone = vec![leaves];
        for peer in &peers {
            let drops = self.then(change, *peer, Vec::new(), &both, ARRIVE_MS, rng);
            self.reloads[drops].drops.push(relay);
            gone.push(drops);
        }
        let last = self.then(change, above, vec![(relay, BranchRole::Child)], &gone, 0..300, rng);
        self.reloads[last].words.push(leaves);
        self.outside.insert(relay, above);
    }

    fn begin(
        &mut self,
        change: usize,
        relay: usize,
        roles: Vec<(usize, BranchRole)>,
        rng: &mut ChaCha8Rng,
    ) -> usize {
        let after = self.last.clone();
        let ms = if after.is_empty() { FIRST_MS } else { PAUSE_MS };
        let number = self.then(change, relay, roles, &after, ms, rng);
        self.reloads[number].begins = true;
        number
    }

    fn then(
        &mut self,
        change: usize,
        relay: usize,
        roles: Vec<(usize, BranchRole)>,
        after: &[usize],
        ms: Range<u64>,
        rng: &mut ChaCha8Rng,
    ) -> usize {
        let wait = Duration::from_millis(rng.random_range(ms));
        self.reloads.push(Reload {
            tree: self.number,
            relay,
            roles,
            drops: Vec::new(),
            after: after.to_vec(),
            words: Vec::new(),
            wait,
            change,
            begins: false,
            is_step: false,
        });
        self.reloads.len() - 1
    }
}
