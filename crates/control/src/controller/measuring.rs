//! Relays are asked how far they are from each other, and links are proposed for what they say.

use super::Controller;
use crate::model::{RelayId, RelayState};
use crate::op::Op;
use crate::signal::{Measured, Message, Other};
use canopy_wire::Time;
use core::time::Duration;

/// What relays have measured is waited for so long, so that relays that start together are looked at
/// together.
const GATHER: Duration = Duration::from_secs(1);
/// Links that are exchanged are looked at again after this, and news no sooner.
const AGAIN: Duration = Duration::from_secs(3);
/// Links are looked at after this, whatever was measured: relays and links come and go.
const SELDOM: Duration = Duration::from_secs(30);
/// A proposal is worked out in pieces of about so many steps, some tens of nanoseconds each,
const STEPS: u64 = 200_000;
/// with at least so long between two, in which relays and participants are heard.
const PAUSE: Duration = Duration::from_millis(250);

impl Controller {
    /// A relay beats: it is asked to measure others if that is due.
    pub(super) fn ask_to_measure(&mut self, now: Time, relay: RelayId) {
        if self.state.settings.degree == 0 {
            return;
        }
        let relays = &self.state.relays;
        let others = || {
            let is_there =
                |of: &&crate::model::Relay| of.id != relay && of.state != RelayState::Gone;
            let other = |of: &crate::model::Relay| Other { relay: of.id, native: of.native };
            relays.values().filter(is_there).map(other).collect()
        };
        if let Some(measure) = self.measuring.ask(now, self.life, relay, others) {
            self.asks.push_back((relay, Message::Measure(measure)));
        }
    }

    pub(super) fn take_measured(&mut self, now: Time, relay: RelayId, measured: Measured) {
        self.measuring.take(self.life, relay, measured);
        // What comes while a proposal is worked out is news for the next one.
        if self.underway.is_none() && self.measuring.take_news() {
            let at = (now + GATHER).max(self.last_proposals + AGAIN);
            self.next_proposals = Some(self.next_proposals.map_or(at, |next| next.min(at)));
        }
    }

    /// A relay leaves or stays: others may need links for that, which a proposal under way does not know of.
    pub(super) fn hurry_proposals(&mut self) {
        self.underway = None;
        let soon = self.last_proposals + AGAIN;
        self.next_proposals = self.next_proposals.map(|next| next.min(soon));
    }

    /// There were so many links before some were removed: who was cut off by that needs others. An operator who
    /// takes a link away that others do without sees what that changes, until links are looked at anyway.
    pub(super) fn hurry_if_cut_off(&mut self, before: usize) {
        if self.state.links.len() < before && !self.state.are_relays_joined() {
            self.hurry_proposals();
        }
    }

    /// Proposes links for what was measured, if that is due; in a large network a piece at a time. Before
    /// anything was measured it is not.
    pub(super) fn review_proposals(&mut self, op: &mut Op, now: Time) {
        if self.next_proposals.is_none_or(|at| now < at) {
            return;
        }
        let (mut underway, steps) = match self.underway.take() {
            Some(underway) => (underway, STEPS),
            None => {
                let relays = &self.state.relays;
                self.measuring.keep(|relay| relays.contains_key(&relay));
                self.last_proposals = now;
                let begun = self.state.begin_proposal(self.measuring.pairs());
                let steps = STEPS.saturating_sub(begun.cost_to_begin());
                (begun, steps)
            }
        };
        if steps == 0 || !underway.work(steps) {
            self.underway = Some(underway);
            self.next_proposals = Some(now + PAUSE);
            return;
        }
        let has_more = self.state.follow_proposal(op, &mut underway, &mut self.last_left);
        // Working it out again would take longer than the few changes that are made at a time.
        if has_more && underway.may_be_followed_again() {
            self.underway = Some(underway);
        }
        self.next_proposals = Some(now + if has_more { AGAIN } else { SELDOM });
    }
}
