//! What a participant tells its relay of the path between them, what it asks for, and what it is told of
//! its thinning.

use super::{Event, Session};
use canopy_wire::{Asked, Probe, Report, Thinning, Time, Traffic, WireError};
use core::time::Duration;

/// The application is told of its thinning this often at most.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// It is told when the share of updates that is sent, in a thousand, has changed by so much.
const NOTICEABLE: u16 = 20;

/// A participant's side of probes and reports.
#[derive(Debug, Default)]
pub(super) struct Reporting {
    received: Traffic,
    asked: Asked,
    /// How long what is handled now may have waited.
    held: Duration,
    /// The answer to the last probe, but for what is asked for.
    answer: Option<Report>,
    /// A report is to be sent.
    is_due: bool,
    thinning: Option<Thinning>,
    /// What the application was told last, when, and what was left out since.
    told: Option<(Thinning, Time)>,
    left_out: u32,
}

impl Reporting {
    /// What is asked for.
    pub(super) fn asked(&self) -> Asked {
        self.asked
    }

    /// A datagram with updates arrived.
    pub(super) fn received(&mut self, bytes: usize) {
        self.received.add(1, bytes as u32);
    }

    /// A new session has begun. What is asked for stays so.
    pub(super) fn restart(&mut self) {
        let Reporting { asked, held, .. } = *self;
        *self =
            Reporting { asked, held, is_due: asked != Asked::default(), ..Reporting::default() };
    }

    /// When there is something to say.
    pub(super) fn due(&self) -> Option<Time> {
        self.is_due.then_some(Time::ZERO)
    }

    /// The report that is due, if one is.
    pub(super) fn poll(&mut self) -> Option<Report> {
        let asked = self.asked;
        // Before the first probe there is only a wish to tell.
        let received = self.received;
        let wish = Report { number: 0, clock: 0, own_clock: 0, held: 0, received, asked };
        let report = self.answer.map_or(wish, |answer| Report { asked, ..answer });
        core::mem::take(&mut self.is_due).then_some(report)
    }

    /// Takes a probe. Returns what to tell the application, if it is to be told.
    fn take(&mut self, now: Time, probe: &Probe) -> Option<Thinning> {
        let thinning = probe.thinning;
        self.answer = Some(Report {
            number: probe.number,
            clock: probe.clock,
            own_clock: (now.as_nanos() / 1000) as u32,
            held: u32::try_from(self.held.as_micros()).unwrap_or(u32::MAX),
            received: self.received,
            asked: self.asked,
        });
        self.is_due = true;
        self.thinning = Some(thinning);
        self.left_out = self.left_out.saturating_add(thinning.left_out);
        let (before, at) = self.told.unwrap_or((Thinning::NONE, Time::ZERO));
        let is_all = |thinning: Thinning| thinning.share == Thinning::NONE.share;
        let has_changed = thinning.share.abs_diff(before.share) >= NOTICEABLE
            || is_all(thinning) != is_all(before)
            || (!is_all(thinning) && thinning.because != before.because);
        let may_tell = self.told.is_none() || now.since(at) >= TELL_EVERY;
        if !has_changed || !may_tell {
            return None;
        }
        let left_out = core::mem::take(&mut self.left_out);
        self.told = Some((thinning, now));
        Some(Thinning { left_out, ..thinning })
    }
}

impl Session {
    /// Asks the relay to send no more than this from now on, also after the session was lost. What it
    /// leaves out then is its to choose. Zeros are no wish.
    pub fn ask_for(&mut self, asked: Asked) {
        let reporting = &mut self.reporting;
        reporting.is_due |= reporting.asked != asked;
        reporting.asked = asked;
    }

    /// What is handled from now on may have waited so long before it was looked for: as long as the
    /// application's last look is ago, if nothing wakes it. The relay does not take it for a queue then.
    pub fn may_have_waited(&mut self, held: Duration) {
        self.reporting.held = held;
    }

    /// How much of what is meant for the participant it is sent, as the relay has said last; `None`
    /// before it has. [`Thinning::left_out`] is of the time between its last two words.
    pub fn thinning(&self) -> Option<Thinning> {
        self.reporting.thinning
    }

    pub(super) fn handle_probe(&mut self, now: Time, probe: &Probe) {
        if let Some(thinning) = self.reporting.take(now, probe) {
            self.tell(Event::Thinned(thinning));
        }
    }

    /// Writes the report that is due, if one is.
    pub(super) fn transmit_report(&mut self, out: &mut [u8]) -> Result<Option<usize>, WireError> {
        let (comtree, id) = (self.config.comtree, self.id);
        self.reporting.poll().map(|report| report.encode(comtree, id, out)).transpose()
    }
}
