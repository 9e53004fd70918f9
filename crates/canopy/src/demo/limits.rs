//! Budgets of the demo's viewers: what a page asks for is told to the viewer's relay, again after it has
//! joined anew, and taken back when no page looks through that viewer any more.

use super::MEMBER;
use super::relays::DemoRelays;
use canopy_bots::View;
use canopy_plan::Rate;
use canopy_relay::Budget;
use canopy_wire::Address;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked at who has which budget.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A budget is told again after so many looks: a relay that was killed has forgotten it.
const TELL_EVERY: u32 = 8;
/// After a budget has ended, what waited because of it arrives within so many looks.
const LOOKS_AFTER: u32 = 8;

/// Who holds the relays to what the pages ask for.
pub(super) struct Limits {
    relays: Arc<DemoRelays>,
    view: Arc<View>,
    told: BTreeMap<u32, Told>,
}

/// What a relay knows of a viewer.
#[derive(Default)]
struct Told {
    /// How often it was looked at.
    looks: u32,
    /// At which address the viewer has which limit.
    last: Option<(Address, Option<u64>)>,
    /// How often it was looked at since the limit ended.
    ended: u32,
}

impl Limits {
    pub(super) fn new(relays: Arc<DemoRelays>, view: Arc<View>) -> Limits {
        Limits { relays, view, told: BTreeMap::new() }
    }

    /// Looks after the budgets for as long as the process runs.
    pub(super) async fn keep(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // It waits for the data threads.
            let looking = tokio::task::spawn_blocking(move || {
                self.look();
                self
            });
            let Ok(limits) = looking.await else { return };
            self = limits;
        }
    }

    fn look(&mut self) {
        for (walker, mut limit) in self.view.limits() {
            let watched = self.view.address_of(walker);
            if watched.is_none() && limit.is_some() {
                limit = None;
                self.view.limit(walker, None);
            }
            let told = self.told.entry(walker).or_default();
            told.looks += 1;
            if told.looks == 1 {
                // The crowd hears first that updates may be left out.
                continue;
            }
            let address = watched.flatten().or(told.last.map(|(address, _)| address));
            if let Some(address) = address
                && (told.last != Some((address, limit)) || told.looks.is_multiple_of(TELL_EVERY))
            {
                // Who has just left has no budget to change.
                let Rate { bits, packets } = MEMBER.receive;
                let budget = Budget {
                    up_packets: MEMBER.send.packets as u64,
                    up_bits: MEMBER.send.bits as u64,
                    down_packets: packets as u64,
                    down_bits: limit.unwrap_or(bits as u64),
                };
                self.relays.set_budget(address, budget);
                told.last = Some((address, limit));
            }
            told.ended = if limit.is_none() { told.ended + 1 } else { 0 };
            if told.ended > LOOKS_AFTER {
                self.view.limit_ended(walker);
                self.told.remove(&walker);
            }
        }
    }
}
