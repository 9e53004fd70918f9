//! What can be seen of several relays under one controller. Whoever runs them keeps it up to date; pages only
//! look.

use canopy_api::{EventView, Overlay};
use canopy_node::{Health, RelayWatch, ThreadStatus};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How many happenings are kept.
const MOST_KEPT: usize = 256;

/// The relays, and what their controller says. Relays have numbers from 0 on.
#[derive(Default)]
pub(crate) struct Shown {
    /// Held for a moment at a time: whoever looks must not wait for a relay that starts.
    relays: Mutex<ShownRelays>,
    known: Mutex<Known>,
}

/// What can be seen of the relays.
#[derive(Default)]
pub(crate) struct ShownRelays {
    /// One for each relay; `None` if it was killed.
    pub(crate) watches: Vec<Option<RelayWatch>>,
    /// The relays at both ends of links that were cut here.
    cut: BTreeSet<[usize; 2]>,
    /// What relays had counted when they were killed.
    pub(crate) ended: ThreadStatus,
}

/// What the controller knows, and what it has told last.
#[derive(Default)]
struct Known {
    overlay: Overlay,
    told: VecDeque<Happening>,
    /// How many it has told.
    count: u64,
}

/// Something that the controller has told.
#[derive(Clone)]
pub(crate) struct Happening {
    /// Its number, from 1 on.
    pub(crate) number: u64,
    pub(crate) at: Instant,
    pub(crate) event: EventView,
}

/// How the relays are.
pub(crate) struct Look {
    /// One for each relay; `None` if it was killed.
    pub(crate) relays: Vec<Option<ThreadStatus>>,
    /// What the controller knows.
    pub(crate) overlay: Overlay,
    /// All of them together, with what those had counted that were killed.
    pub(crate) all: ThreadStatus,
    cut: BTreeSet<[usize; 2]>,
}

impl Shown {
    /// What can be seen of the relays, to be changed.
    pub(crate) fn relays(&self) -> MutexGuard<'_, ShownRelays> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How they are, a fifth of a second ago at most.
    pub(crate) fn look(&self) -> Look {
        let shown = self.relays();
        let status =
            |watch: &RelayWatch| (watch.health() == Health::Serving).then(|| watch.status());
        let relays: Vec<_> =
            shown.watches.iter().map(|watch| watch.as_ref().and_then(status)).collect();
        let mut all = shown.ended.clone();
        relays.iter().flatten().for_each(|status| all.add(status));
        let overlay = self.known().overlay.clone();
        Look { relays, overlay, all, cut: shown.cut.clone() }
    }

    /// The controller knows this now.
    pub(crate) fn know(&self, overlay: Overlay) {
        self.known().overlay = overlay;
    }

    /// The controller tells this.
    pub(crate) fn tell(&self, event: EventView) {
        let mut known = self.known();
        known.count += 1;
        let happening = Happening { number: known.count, at: Instant::now(), event };
        known.told.push_back(happening);
        while known.told.len() > MOST_KEPT {
            known.told.pop_front();
        }
    }

    /// What the controller has told since so many happenings.
    pub(super) fn happenings_since(&self, seen: u64) -> Vec<Happening> {
        self.known().told.iter().filter(|one| one.number > seen).cloned().collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShownRelays {
    /// Whether a link between these relays was cut here.
    pub(crate) fn is_cut(&self, ends: [usize; 2]) -> bool {
        self.cut.contains(&sorted(ends))
    }

    /// The link between these relays is cut here, or whole again.
    pub(crate) fn set_cut(&mut self, ends: [usize; 2], cut: bool) {
        if cut {
            self.cut.insert(sorted(ends))
        } else {
            self.cut.remove(&sorted(ends))
        };
    }
}

impl Look {
    /// Whether a link between these relays was cut here.
    pub(super) fn is_cut(&self, ends: [usize; 2]) -> bool {
        self.cut.contains(&sorted(ends))
    }
}

fn sorted([one, other]: [usize; 2]) -> [usize; 2] {
    [one.min(other), one.max(other)]
}
