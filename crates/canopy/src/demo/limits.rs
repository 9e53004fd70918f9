//! Budgets of the demo's walkers: what a page asks for, for all of them or for the viewer that it looks through,
//! is told to their relays, and told again after they have joined anew.

use super::MEMBER;
use super::relays::DemoRelays;
use canopy_bots::{Limit, View};
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

/// What a relay knows of a walker.
#[derive(Default)]
struct Told {
    /// How often it was looked at.
    looks: u32,
    /// At which address the walker has which limit.
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
        for Limit { walker, bits, address } in self.view.limits() {
            let told = self.told.entry(walker).or_default();
            told.looks += 1;
            if told.looks == 1 {
                // What is on its way when the crowd hears that updates may be left out still arrives.
                continue;
            }
            // Who has just left has no budget to change.
            let address = address.or(told.last.map(|(address, _)| address));
            // Not all in the same turn, where all have a budget.
            let is_again = (told.looks + walker).is_multiple_of(TELL_EVERY);
            if let Some(address) = address
                && (told.last != Some((address, bits)) || is_again)
            {
                self.relays.set_budget(address, budget(bits));
                told.last = Some((address, bits));
            }
            told.ended = if bits.is_none() { told.ended + 1 } else { 0 };
            if told.ended > LOOKS_AFTER {
                self.view.limit_ended(walker);
                self.told.remove(&walker);
            }
        }
    }
}

/// What a walker may send, and be sent if that is limited to so many bits a second.
fn budget(limit: Option<u64>) -> Budget {
    let Rate { bits, packets } = MEMBER.receive;
    Budget {
        up_packets: MEMBER.send.packets as u64,
        up_bits: MEMBER.send.bits as u64,
        down_packets: packets as u64,
        down_bits: limit.unwrap_or(bits as u64),
    }
}
