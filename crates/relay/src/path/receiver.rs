//! What is known of one receiver's path: which probes are under way, and what its reports said.

use super::controller::{Controller, Seen};
use canopy_wire::{Report, Time, Traffic};
use core::time::Duration;

/// Probes whose reports are still waited for; reports of earlier ones come too late.
const PROBES: u32 = 8;
/// A report, sealed, in bits of UDP payload; a probe is shorter.
const PROBE_BITS: u64 = 8 * 68;
/// Probes are one part in so many of the bits that a receiver is sent, and its reports as many.
const PART: u64 = 200;
/// Between two probes: at least so long, and a part of the round trip, so that no more than
/// [`PROBES`] are under way. It may have become longer: a part of how long a report is waited for, too.
const LEAST_PAUSE: Duration = Duration::from_millis(50);
const ROUND_TRIP_PART: u32 = 4;
/// Between two probes while updates flow: at most so long, whatever part of them that is.
const MOST_PAUSE: Duration = Duration::from_secs(1);
/// Where there was no sign of congestion for so long, and the path bears so many times what is sent, it
/// limits nothing, and is asked seldom.
const CALM_AFTER: Duration = Duration::from_secs(1);
const AMPLE: u64 = 2;
const CALM_PAUSE: Duration = Duration::from_millis(500);
/// Whoever has never answered so many probes is asked seldom: it may never have heard of them.
const MANY_UNANSWERED: u32 = 8;
const SELDOM: Duration = Duration::from_secs(10);
/// After so many probes without a report, and so long, the rate is halved.
const STARVED_AFTER: u32 = 3;
const STARVED: Duration = Duration::from_millis(500);
/// Whoever looks more seldom than that has a queue of its own making.
const MOST_HELD: Duration = Duration::from_millis(50);
/// More datagrams may arrive than were sent since the last report: those that were late, and copies
/// that the network made. So many more, and twice as many, are believed.
const LATE: u32 = 256;

/// A probe that was sent.
#[derive(Clone, Copy, Debug, Default)]
struct SentProbe {
    at: Time,
    sent: Traffic,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It answers a probe.
    News,
    /// Its probe was reported on already, or there was none yet: it says only what is asked for.
    Wish,
    /// It cannot be true, or is long past.
    Refused,
}

/// One receiver's path.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceiverPath {
    controller: Option<Controller>,
    /// The last probes, by number.
    probes: [SentProbe; PROBES as usize],
    /// The number of the last probe, and of the last one that was reported on; 0 before the first.
    last: u32,
    reported: u32,
    /// When the first probe after that one was sent.
    unanswered_since: Time,
    /// The last report, and what had been sent when its probe left.
    report: Option<(Report, Traffic)>,
    round_trip: Duration,
    /// Bits a second that were sent between the last two probes.
    sent_rate: u64,
    starved_at: Time,
}

impl ReceiverPath {
    fn last_probe(&self) -> SentProbe {
        self.probes[(self.last % PROBES) as usize]
    }

    /// When the next probe is due, if so much has been sent in all by now and it is more than before
    /// the last.
    pub(crate) fn due(&self, sent: Traffic) -> Time {
        let before = self.last_probe();
        if self.last == 0 {
            return Time::ZERO;
        }
        if self.controller.is_none() && self.last >= MANY_UNANSWERED {
            return before.at + SELDOM;
        }
        let trip = self.round_trip.max(before.at.since(self.unanswered_since));
        let least = LEAST_PAUSE.max(trip / ROUND_TRIP_PART).min(MOST_PAUSE);
        let is_paid = sent.since(before.sent).bits() >= PROBE_BITS * PART;
        let pause = if self.limit() == 0 { CALM_PAUSE.max(least) } else { least };
        before.at + if is_paid { pause } else { MOST_PAUSE }
    }

    /// Notes that a probe is sent now, after so much has been sent. Returns its number.
    pub(crate) fn probe(&mut self, now: Time, sent: Traffic) -> u32 {
        let before = self.last_probe();
        if self.last == self.reported {
            self.unanswered_since = now;
        }
        // A number that has come round is 8 of them later still.
        self.last = self.last.checked_add(1).unwrap_or(PROBES);
        self.probes[(self.last % PROBES) as usize] = SentProbe { at: now, sent };
        let micros = now.since(before.at).as_micros().max(1) as u64;
        self.sent_rate = sent.since(before.sent).bits().saturating_mul(1_000_000) / micros;
        self.look_for_reports(now);
        self.last
    }

    /// Halves the rate if reports have ceased while updates flow (RFC 8085 §3.1.10).
    fn look_for_reports(&mut self, now: Time) {
        let Some(controller) = &mut self.controller else { return };
        let unanswered = self.last.wrapping_sub(self.reported);
        if unanswered <= STARVED_AFTER {
            return;
        }
        let waited = now.since(self.unanswered_since);
        let patience = STARVED.max(self.round_trip * 2);
        if waited >= patience && now.since(self.starved_at) >= patience {
            self.starved_at = now;
            controller.starve(now, self.sent_rate);
        }
    }

    /// Takes a report. Where other receivers probably share the bottleneck, `shared` is the mean of their rates.
    pub(crate) fn take(&mut self, now: Time, report: &Report, shared: Option<f64>) -> Taken {
        if report.number == self.reported {
            return Taken::Wish;
        }
        let age = self.last.wrapping_sub(report.number);
        let is_newer = report.number > self.reported || self.last < self.reported;
        let probe = self.probes[(report.number % PROBES) as usize];
        let is_of_probe = report.number > 0 && age < PROBES && report.clock == micros(probe.at);
        if !is_of_probe || !is_newer {
            return Taken::Refused;
        }
        let Some((before, sent_before)) = self.report else {
            let one_way = report.own_clock.wrapping_sub(report.clock);
            let missing = missing(probe.sent, report);
            self.controller = Some(Controller::new(now, one_way, missing));
            self.note(now, report, probe);
            return Taken::News;
        };
        let sent = probe.sent.since(sent_before);
        let arrived = report.received.since(before.received);
        if arrived.datagrams > sent.datagrams.saturating_mul(2).saturating_add(LATE) {
            return Taken::Refused;
        }
        let within = report.own_clock.wrapping_sub(before.own_clock);
        let seen = Seen {
            now,
            round_trip: now.since(probe.at),
            one_way: report.own_clock.wrapping_sub(report.clock),
            held: Duration::from_micros(report.held.into()).min(MOST_HELD),
            within: Duration::from_micros(within.into()),
            bits: arrived.bits().min(sent.bits().saturating_mul(2)),
            sent: sent.datagrams,
            missing: missing(probe.sent, report),
            shared,
        };
        if let Some(controller) = &mut self.controller {
            controller.report(&seen);
        }
        self.note(now, report, probe);
        Taken::News
    }

    fn note(&mut self, now: Time, report: &Report, probe: SentProbe) {
        self.round_trip = now.since(probe.at);
        self.reported = report.number;
        let next =
            if report.number == self.last { self.last } else { report.number.wrapping_add(1) };
        self.unanswered_since = self.probes[(next % PROBES) as usize].at;
        self.report = Some((*report, probe.sent));
    }

    /// Whether the path bears less than would be sent, or little more.
    pub(crate) fn is_limiting(&self) -> bool {
        self.limit() > 0 && self.rate() < self.sent_rate.saturating_mul(AMPLE)
    }

    /// Bits a second that the path bears, as far as is known; the most there are before the first report.
    pub(crate) fn rate(&self) -> u64 {
        self.controller.as_ref().map_or(u64::MAX, Controller::rate)
    }

    /// The most that the path bears, in bits of UDP payload a second; 0 where it limits nothing, and as
    /// long as there was no report.
    pub(crate) fn limit(&self) -> u64 {
        let Some(controller) = &self.controller else { return 0 };
        let is_calm = self.last_probe().at.since(controller.calm_since()) >= CALM_AFTER;
        let rate = controller.rate();
        if is_calm && rate >= self.sent_rate.saturating_mul(AMPLE) { 0 } else { rate }
    }
}

/// The relay's clock in microseconds, as probes tell it; wraps.
pub(crate) fn micros(now: Time) -> u32 {
    (now.as_nanos() / 1000) as u32
}

/// How many datagrams that were sent before a probe had not arrived before it.
fn missing(sent: Traffic, report: &Report) -> u32 {
    sent.datagrams.wrapping_sub(report.received.datagrams)
}
