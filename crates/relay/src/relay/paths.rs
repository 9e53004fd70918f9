//! Probes to the receivers, and what they report: how much their paths bear, and what they ask for.

use super::Relay;
use crate::index::PortIndex;
use crate::meters::PathShare;
use crate::path::{Due, Taken, micros};
use crate::ports::Peer;
use crate::thin::Down;
use canopy_session::SessionIndex;
use canopy_wire::{DropReason, Packet, Path, Probe, Report, Thinning, Time};

/// Ports that are looked at in one turn, and probes that are sent: the rest of the round is for the next
/// turns, so that a crowd's other work goes on.
const LOOKS_A_TURN: u32 = 4096;
const PROBES_A_TURN: u32 = 64;

impl Relay {
    /// Sends the probes that are due, as many as one turn should.
    pub(super) fn send_probes(&mut self, now: Time) {
        let is_flush_due = self.queues.due().is_some_and(|at| at <= now);
        if !self.paths.begin_round(now, is_flush_due) {
            return;
        }
        let mut probes = 0;
        for _ in 0..LOOKS_A_TURN {
            if probes == PROBES_A_TURN || self.replies.is_half_full() {
                break;
            }
            match self.paths.next_of_round(now) {
                None => return,
                Some(None) => {}
                Some(Some(due)) => {
                    probes += 1;
                    if let Err(reason) = self.send_probe(now, &due) {
                        self.counters.drop(reason);
                    }
                    // What was sent since the last probe may say that there is no limit any more.
                    self.path_changed(due.port);
                }
            }
        }
        self.paths.pause(now);
    }

    fn send_probe(&mut self, now: Time, due: &Due) -> Result<(), DropReason> {
        let Due { port, number, sent, share, left_out } = *due;
        let Some(session) = self.session_of(port) else { return Ok(()) };
        // Whoever has just lost its path hears of it when it has another.
        let Some(to) = self.sessions.path(session) else { return Ok(()) };
        let Some(comtree) = self.ports.get(port).map(|port| port.comtree) else { return Ok(()) };
        let (down, because) = self.down_and_why(port);
        let thinning = Thinning { share, left_out, budget_bits: down.bits, because };
        let probe = Probe { number, clock: micros(now), sent, thinning };
        let room = self.replies.room().ok_or(DropReason::RepliesFull)?;
        let len = probe.encode(comtree, self.sessions.id(session), room)?;
        self.push_reply(to, port, len)?;
        self.counters.probes_out += 1;
        Ok(())
    }

    /// Takes a participant's report.
    pub(super) fn take_report(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let report = Report::decode(packet)?;
        let port = self.admit(now, from, packet)?;
        let peer = self.ports.get(port).ok_or(DropReason::UnknownSource)?.peer;
        if !matches!(peer, Peer::Participant(_)) {
            return Err(DropReason::UnexpectedKind);
        }
        // Whatever it says, it costs as much as a keepalive.
        self.charge_keepalive(now, port)?;
        let taken = self.paths.take(now, port, &report);
        if taken == Taken::Refused {
            return Err(DropReason::BadReport);
        }
        let asked = Down { updates: report.asked.updates.into(), bits: report.asked.bits };
        self.meters.set_asked(port, asked);
        self.path_changed(port);
        self.counters.reports_in += 1;
        Ok(())
    }

    /// More is known of how much a port's path bears.
    fn path_changed(&mut self, port: PortIndex) {
        self.meters.set_path(port, self.paths.limit(port));
        self.budget_changed(port);
    }

    /// A session has moved: its path is another one.
    pub(super) fn restart_paths(&mut self, session: SessionIndex) {
        let Some(path) = self.sessions.path(session) else { return };
        for port in self.ports.of_session(session) {
            self.paths.restart(port, path.remote.ip());
        }
    }

    /// The path of a participant that has subscribed is asked from now on.
    pub(super) fn begin_path(&mut self, port: PortIndex) {
        let Some(path) = self.session_of(port).and_then(|session| self.sessions.path(session))
        else {
            return;
        };
        let is_asked = match self.budgets.paths {
            PathShare::All => true,
            PathShare::BeyondHost => !path.remote.ip().to_canonical().is_loopback(),
            PathShare::Off => false,
        };
        if is_asked {
            self.paths.begin(port, path.remote.ip());
        }
    }
}
