//! Changes that are not traffic.

use super::{MAX_MUTED, Relay, SWEEP_EVERY};
use crate::changes::{Change, Refusal};
use crate::comtree_config::{ComtreeConfig, FIRST_ENDPOINT};
use crate::index::PortIndex;
use crate::meters::Budget;
use crate::ports::Peer;
use canopy_wire::{Address, Comtree, LeaveReason, PORTABLE_SITES, Time};
use core::net::IpAddr;

impl Relay {
    /// Applies a change.
    ///
    /// # Errors
    /// Why it is refused; nothing has changed then.
    pub fn apply(&mut self, now: Time, change: Change) -> Result<(), Refusal> {
        match change {
            Change::AddComtree(config) => self.add_comtree(&config),
            Change::RemoveComtree(comtree) => self.remove_comtree(now, comtree),
            Change::AddLink(config) => self.add_link(now, config),
            Change::RemoveLink { key, .. } => self.remove_link(now, &key),
            Change::AddBranch(config) => self.add_branch(now, &config),
            Change::RemoveBranch(id) => self.remove_branch(now, &id),
            Change::SetBranchRole { branch, role } => self.set_branch_role(now, &branch, role),
            Change::LimitSubscriptions(most) => {
                self.most_of_participant.subscriptions = most;
                Ok(())
            }
            Change::ReplaceKeys(keys) => {
                self.sessions.replace_keys(keys);
                self.renew_calls();
                Ok(())
            }
            Change::Trust { trust, origin } => {
                self.replace_trust(now, trust, origin);
                Ok(())
            }
            Change::Dismiss { comtree, address } => {
                self.throw_out(now, comtree, address);
                Ok(())
            }
            Change::Admit { comtree, address } => {
                self.dismissals.forget(comtree, address);
                Ok(())
            }
            Change::SetBudget { comtree, address, budget } => {
                let unknown = Refusal::UnknownAddress(comtree, address);
                let port = self.ports.find(comtree, address).ok_or(unknown)?;
                self.session_of(port).ok_or(unknown)?;
                self.fix_budget(now, port, budget);
                Ok(())
            }
            Change::SetComtreeBudget { comtree, budget } => {
                let index = self.comtrees.find(comtree).ok_or(Refusal::UnknownComtree(comtree))?;
                self.set_comtree_budget(now, index, budget);
                Ok(())
            }
            Change::SetFairness { comtree, fairness } => {
                let index = self.comtrees.find(comtree).ok_or(Refusal::UnknownComtree(comtree))?;
                self.comtrees.get_mut(index).fairness = fairness;
                Ok(())
            }
            Change::SetBranchBudget { branch, budget } => {
                let port = self.branch_of(&branch)?;
                self.fix_budget(now, port, budget);
                Ok(())
            }
            Change::SetLinkCapacity { key, capacity, .. } => {
                self.set_link_capacity(now, &key, capacity)
            }
            Change::SetBranchGuarantee { branch, bits } => {
                self.set_branch_guarantee(now, &branch, bits)
            }
            Change::Search { key, comtree, search, .. } => {
                self.send_search(&key, comtree, search);
                Ok(())
            }
            Change::SendLinkStates { packets, .. } => {
                self.send_link_states(packets);
                Ok(())
            }
            Change::Mute { ip, until } => self.mute(now, ip.to_canonical(), until),
            Change::Drain => {
                self.is_draining = true;
                self.sweep_at = Some(now);
                Ok(())
            }
        }
    }

    fn throw_out(&mut self, now: Time, comtree: Comtree, address: Address) {
        self.dismissals.note(now, comtree, address);
        if let Some(port) = self.ports.find(comtree, address) {
            self.send_away(now, port, LeaveReason::ThrownOut);
        }
    }

    fn mute(&mut self, now: Time, ip: IpAddr, until: Time) -> Result<(), Refusal> {
        self.muted.retain(|(muted, _)| *muted != ip);
        if self.muted.len() >= MAX_MUTED {
            return Err(Refusal::TooManyMuted);
        }
        self.muted.push((ip, until));
        self.unmute(now);
        self.sweep_at.get_or_insert(now + SWEEP_EVERY);
        Ok(())
    }

    pub(super) fn add_comtree(&mut self, config: &ComtreeConfig) -> Result<(), Refusal> {
        if self.comtrees.find(config.comtree).is_some() {
            return Err(Refusal::ComtreeExists(config.comtree));
        }
        if *config.endpoints.end() < FIRST_ENDPOINT || config.endpoints.is_empty() {
            return Err(Refusal::NoEndpoints(config.comtree));
        }
        if PORTABLE_SITES.contains(&(config.site & 0x7fff)) {
            return Err(Refusal::PortableSite(config.comtree, config.site));
        }
        let queue = self.queues.enter(config.mode);
        let queue = queue.ok_or(Refusal::TooManyModes(config.comtree))?;
        let mode = self.queues.get(queue).mode;
        if !self.comtrees.add(config, (mode, queue)) {
            self.queues.leave(queue);
            return Err(Refusal::TooManyComtrees);
        }
        self.thinning.follow_modes(&self.queues);
        if let Some(index) = self.comtrees.find(config.comtree) {
            // Nothing has come on it yet, whatever the time.
            self.set_comtree_budget(Time::ZERO, index, self.budgets.comtree);
        }
        self.deal();
        Ok(())
    }

    /// The comtrees share the tables and the places.
    fn deal(&mut self) {
        let comtrees = self.comtrees.live().count() as u32;
        self.table.deal(comtrees);
        self.overlay.routes.deal(comtrees);
        self.places.deal(comtrees);
        self.thinning.deal(comtrees);
    }

    fn remove_comtree(&mut self, now: Time, comtree: Comtree) -> Result<(), Refusal> {
        let index = self.comtrees.find(comtree).ok_or(Refusal::UnknownComtree(comtree))?;
        for port in 0..self.ports.high_water() {
            let is_on_it = self.ports.get(port).is_some_and(|port| {
                port.comtree_index == index && !matches!(port.peer, Peer::Sibling(_))
            });
            if is_on_it && !self.send_away(now, port, LeaveReason::Draining) {
                self.close(now, port);
            }
        }
        self.overlay.routes.retain(|of, _, _| of != index);
        let queue = self.comtrees.get(index).queue;
        // A comtree of its number may come again in another mode, with a queue of its own.
        self.queues.get_mut(queue).pending.forget_comtree(index, |group| {
            self.table.forget_target(group);
        });
        self.queues.leave(queue);
        self.thinning.follow_modes(&self.queues);
        self.comtrees.remove(index);
        self.set_comtree_budget(now, index, Budget::default());
        self.deal();
        Ok(())
    }

    /// Tells a participant to go, and forgets it. False if the port is no participant's.
    pub(super) fn send_away(&mut self, now: Time, port: PortIndex, reason: LeaveReason) -> bool {
        let Some(Peer::Participant(session)) = self.ports.get(port).map(|port| port.peer) else {
            return false;
        };
        if let Some(path) = self.sessions.path(session) {
            self.dismiss(port, path, reason);
        }
        self.leave(now, port);
        true
    }

    /// Lets those be sent to again whose time is over.
    pub(super) fn unmute(&mut self, now: Time) {
        self.muted.retain(|(_, until)| *until > now);
        self.unreachable.clear();
        self.unreachable.extend(self.muted.iter().map(|(ip, _)| *ip));
    }
}
