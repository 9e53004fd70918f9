//! How much a path bears: a rate controller that learns from a receiver's reports, sans-IO.
//!
//! It has the parts of NADA (RFC 8698), with their names: one congestion signal of delay and loss
//! (§4.2), a fast increase while there is no sign of congestion, and a gradual update otherwise
//! (§4.3). Three things differ, because one set of numbers must do from 64 kbit/s to 50 Mbit/s while
//! no more than a few tens of milliseconds wait on the path:
//!
//! - NADA's rates settle where the signal is `XREF · RMAX / r_ref`. Without an `RMAX` that fits the path,
//!   that is a full queue or none. Here the signal that a rate aims at falls slowly with the
//!   rate ([`aim`]): flows that share a queue still come to equal shares, as the slower one bears more; sooner, where the relay
//!   knows that they do.
//! - Where the signal is higher than that, the rate follows what has arrived (`r_recv`), less a part
//!   that lets the queue drain. While a queue stands, what arrives *is* what the path bears, so the rate is
//!   right within one report of a change, and a cut is never taken twice.
//! - What never empties its queue no longer knows how long an empty one takes. So the rate is lowered for
//!   a moment when no empty queue was seen for some seconds (as LEDBAT++ and BBR do). Receivers that probably share
//!   a bottleneck do so together, or whoever comes late would take the others' queue for the way for ever.

use super::base_delay::BaseDelay;
use canopy_wire::Time;
use core::time::Duration;

/// No path gets less, in bits a second: what a report each second and an update each second need
/// (RFC 8085 §3.1.3 asks for a floor that is not zero).
pub(crate) const LEAST_RATE: u64 = 16_000;
/// Beyond this nothing is limited.
pub(crate) const MOST_RATE: u64 = 10_000_000_000;
/// What a new receiver may be sent from its first report on, like an initial window. It doubles with
/// each report until there is a sign of congestion.
pub(crate) const FIRST_RATE: u64 = 2_000_000;

/// The least time without a sign of congestion before the rate increases fast (RFC 8698 `LOGWIN`).
const LOGWIN: Duration = Duration::from_millis(500);
/// A queue that is no sign of congestion (`QEPS`).
const QEPS: f64 = 0.008;
/// The queue that a fast increase may build until its effect is seen (`QBOUND`).
const QBOUND: f64 = 0.030;
/// The most that one report may increase the rate by (`GAMMA_MAX`).
const GAMMA_MAX: f64 = 1.0;
/// [`QBOUND`] never holds an increase to less than this. The slowest paths report once a second, and would
/// take minutes to recover from an outage otherwise.
const GAMMA_LEAST: f64 = 0.2;
/// The first step of a fast increase; each is twice the one before.
const GAMMA_FIRST: f64 = 0.03;
/// The delay that counts for a loss of [`PLRREF`] (`DLOSS`).
const DLOSS: f64 = 0.010;
/// A loss below which there is hardly a signal (`PLRREF`): radio links lose as much without congestion.
const PLRREF: f64 = 0.02;
/// Over how many datagrams loss is averaged, within how many seconds it fades, and above which share more of it
/// makes no difference.
const LOSS_MEMORY: f64 = 300.0;
const LOSS_FADES: f64 = 1.0;
const LOSS_MOST: f64 = 0.06;
/// The delay is the least of those in this time (`DFILT`), at most of [`DELAYS`] reports.
const DFILT: Duration = Duration::from_millis(120);
const DELAYS: usize = 8;
/// Where delays differ by themselves, it is the least of more of them, in up to this time.
const NOISY_DFILT: Duration = Duration::from_millis(1500);

/// Delays differ by themselves: radio does it, and a busy machine. A queue goes up for a while and then down; what
/// goes up and down from one report to the next is noise. This is the most that counts of one turn, over how many
/// reports it is averaged, and how many times the average an aim is raised by.
const NOISE_MOST: f64 = 0.150;
const NOISE_MEMORY: f64 = 12.0;
const NOISE_PART: f64 = 2.5;
/// For each time that the noise is this long, the delay is the least of one more report.
const NOISE_OF_ONE: f64 = 0.0025;

/// The signal that a rate of 1 Mbit/s aims at, in seconds, and the limits of it.
const AIM_AT_1M: f64 = 0.017;
const AIM_LEAST: f64 = 0.008;
const AIM_MOST: f64 = 0.025;
/// What makes receivers equal that share a bottleneck is that the slower ones bear more queue. Each aims at what the mean rate
/// aims at, in seconds, times a function of x, the mean divided by its own rate: x², kept within the first two of these,
/// times x to the power of the third. The aim is never below [`AIM_LEAST`], nor above the last of these.
const SHARED_LEAST: f64 = 0.4;
const SHARED_MOST: f64 = 2.5;
const SHARED_POWER: f64 = 0.25;
const SHARED_AIM_MOST: f64 = 0.045;
/// A queue that is longer than it should be is drained within so long.
const DRAIN_WITHIN: f64 = 0.4;
/// At most this part of the rate is given up for that.
const MOST_CUT: f64 = 0.35;
/// The gradual increase a second of a rate of 1 Mbit/s, as a part of it; slower rates grow faster.
const GROWTH_AT_1M: f64 = 0.25;
/// Below so many bits a second, receivers that share a bottleneck grow by so many with each report: a fast one would grow faster
/// otherwise, as it reports more often.
const STEP_BELOW: f64 = 300e3;
const STEP: f64 = 3e3;
/// Without an empty queue for so long, the rate is lowered until there is one, or for so long.
const EMPTY_EVERY: Duration = Duration::from_secs(8);
const EMPTY_WITHIN: Duration = Duration::from_millis(700);
const EMPTYING: f64 = 0.75;
/// Receivers that share a bottleneck lower their rates at each multiple of [`EMPTY_EVERY`] of the relay's time, each with its
/// first report within so long, and until then. Slow ones report once a second.
const EMPTY_TOGETHER_BY: Duration = Duration::from_millis(1100);
const EMPTY_TOGETHER_UNTIL: Duration = Duration::from_millis(1600);
const EMPTYING_TOGETHER: f64 = 0.7;
/// A least delay that falls by so much from one report to the next, in seconds, is not yet that of an empty queue.
const FALLS: f64 = 0.001;
/// Which share of the most that arrived lately is forgotten in a second.
const FADES: f64 = 0.3;
/// Where less is sent than the rate allows, the rate is at most this many times what has arrived lately.
const BEYOND_SEEN: f64 = 2.5;
/// What is sent uses the rate if it is such a part of it.
const USED: f64 = 0.7;
/// Which share of what the path bore when its queue grew is sent again once the queue is gone.
const RECOVERED: f64 = 0.96;
/// When the rate is this many times what the path bore, without a sign of congestion, the path has become faster.
const SURPASSED: f64 = 1.1;
/// Once reports come again that had ceased, the rate is this part of what it was, or this many times the most that
/// had arrived, if that is less; and no more than a newcomer's.
const REGAINED: f64 = 0.5;
const REGAINED_OF_SEEN: f64 = 2.0;
/// Reports that come at once are no reason to grow faster.
const LEAST_LAG: f64 = 0.05;

/// What a report says of the time since the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// When the report arrived.
    pub(crate) now: Time,
    /// From its probe's departure to its own arrival.
    pub(crate) round_trip: Duration,
    /// The participant's clock at the probe's arrival less the relay's at its departure, in
    /// microseconds; wraps.
    pub(crate) one_way: u32,
    /// The probe may have waited at the participant for so long before it was seen: a game looks once in
    /// each frame.
    pub(crate) held: Duration,
    /// How long after the probe before this one arrived, by the participant's clock.
    pub(crate) within: Duration,
    /// Bits that arrived in that time.
    pub(crate) bits: u64,
    /// Datagrams that were sent between the two probes.
    pub(crate) sent: u32,
    /// How many of those that were sent before the probe had not arrived before it; wraps.
    pub(crate) missing: u32,
    /// The mean of their rates in bits a second, where other receivers probably share the bottleneck.
    pub(crate) shared: Option<f64>,
}

/// Decides the rate of one receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Controller {
    /// `r_ref`, in bits a second.
    rate: f64,
    base: BaseDelay,
    /// By how much the last delays were above the least one, in seconds, and when they were seen; the
    /// newest first.
    delays: [(Time, f64); DELAYS],
    /// By how much the last delay differed from the one before, and by how much delays differ by themselves
    /// on average, in seconds.
    step: f64,
    noise: f64,
    /// By how much the last delay was below the least before it, in seconds.
    fell: f64,
    /// Bits that arrived between the last two reports, and in how many seconds.
    arrived: (f64, f64),
    loss: f64,
    /// What was missing by the last report, and what is known to be lost.
    missing: u32,
    lost: u32,
    /// The next step of a fast increase, as a part of the rate.
    gamma: f64,
    /// The most that arrived lately, in bits a second; it fades.
    most_seen: f64,
    /// What the path bore when its queue was last too long, if the rate is lower since; otherwise 0.
    bears: f64,
    /// When there was the last sign of congestion, and the last empty queue.
    congested_at: Time,
    empty_at: Time,
    /// Until when the rate is held low to see an empty queue, and what it was.
    emptying_until: Option<Time>,
    before_emptying: f64,
    /// When it was lowered last together with others', and from when on the effect of that is seen.
    emptied_at: Time,
    emptied_seen_at: Time,
    /// Whether there has been a sign of congestion yet.
    is_starting: bool,
    halved_at: Time,
    reported_at: Time,
    /// What is sent again once a report comes without a sign of congestion, if reports have ceased.
    regained: Option<f64>,
}

impl Controller {
    /// The controller of a receiver whose first report has arrived.
    pub(crate) fn new(now: Time, one_way: u32, missing: u32) -> Controller {
        Controller {
            rate: FIRST_RATE as f64,
            base: BaseDelay::new(now, one_way),
            delays: [(now, 0.0); DELAYS],
            step: 0.0,
            noise: 0.0,
            fell: 0.0,
            arrived: (0.0, 0.0),
            loss: 0.0,
            missing,
            lost: missing,
            gamma: GAMMA_FIRST,
            most_seen: 0.0,
            bears: 0.0,
            congested_at: now,
            empty_at: now,
            emptying_until: None,
            before_emptying: 0.0,
            emptied_at: now,
            emptied_seen_at: now,
            is_starting: true,
            halved_at: now - Duration::from_secs(10),
            reported_at: now,
            regained: None,
        }
    }

    /// Bits a second that the path bears, as far as is known.
    pub(crate) fn rate(&self) -> u64 {
        self.rate as u64
    }

    /// Since when there has been no sign of congestion.
    pub(crate) fn calm_since(&self) -> Time {
        self.congested_at
    }

    /// Takes a report (RFC 8698 §4.3).
    pub(crate) fn report(&mut self, seen: &Seen) {
        let now = seen.now;
        let since = seconds(now.since(self.reported_at)).clamp(0.001, 2.0);
        self.reported_at = now;
        let r_recv = self.r_recv(seen);
        self.most_seen = r_recv.max(self.most_seen * (1.0 - FADES * since.min(1.0)));
        let (queue, stood) = self.queue(seen);
        let regained = self.regained.take();
        if regained.is_some() {
            // What was lost while no reports came is answered already: the rate was halved for it.
            (self.missing, self.lost, self.loss) = (seen.missing, seen.missing, 0.0);
        }
        let has_lost = self.count_loss(seen, since);
        let signal = queue + DLOSS * (self.loss / PLRREF).powi(2);
        // What was lost before is answered already.
        let sign = if has_lost { signal } else { queue };
        let short = self.aims_at(seen.shared) + self.serialisation(seen);
        let aim = short + NOISE_PART * self.noise;
        if signal > QEPS.max(aim / 2.0) {
            self.congested_at = now;
            self.gamma = GAMMA_FIRST;
        }
        let falls = seen.shared.is_some() && self.fell >= FALLS;
        if self.delays[0].1 < short / 4.0 && !falls {
            self.empty_at = now;
        }
        // How long it takes until the effect of an increase is seen.
        let lag = (seconds(seen.round_trip).min(2.0) + since).max(LEAST_LAG);
        let gamma = (QBOUND / lag).max(GAMMA_LEAST).min(self.gamma);
        let is_used = r_recv > self.rate * USED;
        if seen.shared.is_some() && self.end_emptying(now, EMPTYING_TOGETHER) {
            // All would grow fast at once into the queue that they have just emptied.
            self.congested_at = now;
            self.gamma = GAMMA_FIRST;
        }
        if sign > aim {
            self.cut(seen, since, r_recv, sign - aim, stood);
            // A path may hold what it cannot pass, or come back slower.
            self.regained = regained.map(|_| 0.0);
        } else if let Some(regained) = regained {
            self.rate = self.rate.max(regained);
            // What the path is known to bear is sent again below.
            self.is_starting = regained > 0.0 || self.rate >= self.bears * RECOVERED;
            (self.empty_at, self.emptying_until) = (now, None);
        } else if self.is_emptying(now) {
            // Kept as low as it is.
        } else if self.rate < self.bears * RECOVERED {
            if signal < aim / 2.0 {
                self.rate = self.bears * RECOVERED;
                self.congested_at = now;
            }
        } else if self.is_starting && self.congested_at < now {
            self.ramp_up(r_recv, GAMMA_MAX);
        } else if now.since(self.congested_at) >= LOGWIN && self.rate >= self.bears * SURPASSED {
            self.ramp_up(r_recv, gamma);
            self.gamma = (self.gamma * 2.0).min(GAMMA_MAX);
        } else if is_used {
            let growth = self.growth(seen, since, gamma);
            let grown = self.rate * (1.0 + growth * (1.0 - signal / aim).max(0.0));
            let steady = if stood { r_recv * (1.0 + (aim - signal) / DRAIN_WITHIN) } else { grown };
            self.rate = grown.min(steady);
        }
        let lag = Duration::from_secs_f64(lag);
        if seen.shared.is_some() {
            self.empty_together(now, r_recv, lag, is_used);
        } else {
            self.empty(now, r_recv, lag, is_used);
        }
        self.rate = self.rate.clamp(LEAST_RATE as f64, MOST_RATE as f64);
    }

    /// The signal in seconds at which the rate neither grows nor falls, where the rates of those that share the bottleneck
    /// have such a mean.
    fn aims_at(&self, shared: Option<f64>) -> f64 {
        let Some(mean) = shared else { return aim(self.rate) };
        let times = mean / self.rate;
        let near = times.powi(2).clamp(SHARED_LEAST, SHARED_MOST);
        (aim(mean) * near * times.powf(SHARED_POWER)).clamp(AIM_LEAST, SHARED_AIM_MOST)
    }

    /// The gradual increase since the last report, as a part of the rate; of whoever has the path alone no more than `most`.
    fn growth(&self, seen: &Seen, since: f64, most: f64) -> f64 {
        if seen.shared.is_some() && self.rate < STEP_BELOW {
            return STEP / self.rate;
        }
        (GROWTH_AT_1M * (1e6 / self.rate).sqrt() * since).min(most)
    }

    /// No report has arrived for several intervals while updates were sent (RFC 8085 §3.1.10's
    /// circuit breaker): halves, of what is sent at `sent_rate`. Once a report comes without a sign
    /// of congestion, half of what it was is sent again (none of it, if one with such a sign came first), and it begins as a
    /// newcomer's.
    pub(crate) fn starve(&mut self, now: Time, sent_rate: u64) {
        if self.regained.is_none() {
            // Before the second report nothing is known to have arrived.
            let seen = if self.most_seen > 0.0 { self.most_seen } else { f64::INFINITY };
            let most = (seen * REGAINED_OF_SEEN).min(FIRST_RATE as f64);
            self.regained = Some((self.rate * REGAINED).min(most));
        }
        let halved = self.rate.min((sent_rate as f64).max(LEAST_RATE as f64)) / 2.0;
        self.rate = halved.max(LEAST_RATE as f64);
        self.congested_at = now;
    }

    /// Bits a second that arrived: since the last report, or since the one before it, if it is not certain
    /// when the last probe arrived.
    fn r_recv(&mut self, seen: &Seen) -> f64 {
        let (bits, within) = (seen.bits as f64, seconds(seen.within).max(0.001));
        let (bits_before, before) = core::mem::replace(&mut self.arrived, (bits, within));
        if seen.held.is_zero() || before == 0.0 {
            return bits / within;
        }
        (bits + bits_before) / (within + before)
    }

    /// How long the queue on the path is for certain, in seconds: the least of the last delays, without
    /// what a probe may have waited at the participant. And whether it stood all the time since the
    /// last report.
    fn queue(&mut self, seen: &Seen) -> (f64, bool) {
        let (now, held) = (seen.now, seconds(seen.held));
        let (above, fell) = self.base.above(now, seen.one_way);
        self.fell = f64::from(fell) * 1e-6;
        let above = f64::from(above) * 1e-6;
        let before = self.delays[0].1;
        if seen.shared.is_none() || !self.is_emptying(now) {
            self.count_noise(above - before, held + self.serialisation(seen));
        }
        self.delays.rotate_right(1);
        self.delays[0] = (now, above);
        // Where delays differ much, one alone is chance.
        let many = 1 + (self.noise / NOISE_OF_ONE) as usize;
        let recent = self.delays.iter().enumerate().filter(|(place, (at, _))| {
            let age = now.since(*at);
            age <= DFILT || *place < many && age <= NOISY_DFILT
        });
        let least = recent.fold(above, |least, (_, (_, delay))| least.min(*delay));
        ((least - held).max(0.0), least.min(before) > QEPS + held / 2.0)
    }

    /// Counts the step from one delay to the next, of which so much needs no reason.
    fn count_noise(&mut self, step: f64, excused: f64) {
        let step = step.signum() * (step.abs() - excused).clamp(0.0, NOISE_MOST);
        let before = core::mem::replace(&mut self.step, step);
        let turn = if step * before < 0.0 { step.abs().min(before.abs()) } else { 0.0 };
        self.noise += (turn - self.noise) / NOISE_MEMORY;
    }

    /// How long a datagram takes at the present rate, in seconds: a probe may have to wait for one.
    fn serialisation(&self, seen: &Seen) -> f64 {
        let datagram = seen.bits as f64 / f64::from(seen.sent.max(1));
        (datagram / self.rate / 2.0).min(AIM_MOST)
    }

    /// Returns whether anything was lost since the last report (RFC 8698 §5.1.2).
    fn count_loss(&mut self, seen: &Seen, since: f64) -> bool {
        // What a probe has overtaken is there when the next one arrives.
        let is_less = |one: u32, other: u32| one.wrapping_sub(other) as i32 <= 0;
        let before = self.missing;
        let least = if is_less(seen.missing, before) { seen.missing } else { before };
        self.missing = seen.missing;
        let lost = if is_less(least, self.lost) { 0 } else { least.wrapping_sub(self.lost) };
        self.lost = self.lost.wrapping_add(lost);
        let (sent, lost) = (f64::from(seen.sent.max(lost)), f64::from(lost));
        self.loss *= (-since / LOSS_FADES).exp();
        if sent > 0.0 {
            let weight = 1.0 - (-sent / LOSS_MEMORY).exp();
            self.loss = (self.loss + weight * (lost / sent - self.loss).max(0.0)).min(LOSS_MOST);
        }
        lost > 0.0
    }

    fn cut(&mut self, seen: &Seen, since: f64, r_recv: f64, excess: f64, stood: bool) {
        // It lasts until the next report at least.
        let part = (excess / DRAIN_WITHIN.max(since)).min(MOST_CUT);
        // While a queue stands, what arrives is what the path bears. Otherwise it may be less, because
        // little was sent: half of the most that was seen is not doubted at once.
        let bears = if stood { r_recv } else { r_recv.max(self.most_seen / 2.0) };
        let mut lower = self.rate.min(bears * (1.0 - part));
        let half = self.rate / 2.0;
        if lower < half {
            // What a report says is not what follows from the last cut, until that is a round trip ago.
            if seen.now.since(self.halved_at) < seen.round_trip {
                return;
            }
            self.halved_at = seen.now;
            lower = half;
        }
        if stood || self.bears == 0.0 {
            self.bears = if stood { r_recv } else { bears.min(self.rate) };
        }
        if core::mem::take(&mut self.is_starting) {
            // Whoever has just come has taken what others had.
            self.bears = self.bears.min(lower);
        }
        self.rate = lower;
    }

    /// There is no sign of congestion (RFC 8698 §4.3, accelerated ramp-up).
    fn ramp_up(&mut self, r_recv: f64, gamma: f64) {
        self.bears = 0.0;
        let beyond = if r_recv > self.rate * USED {
            (1.0 + gamma) * r_recv
        } else {
            // The rate was not put to the test.
            (self.rate * (1.0 + gamma)).min(self.most_seen * BEYOND_SEEN)
        };
        self.rate = self.rate.max(beyond);
    }

    fn is_emptying(&self, now: Time) -> bool {
        self.emptying_until.is_some_and(|until| now < until)
    }

    /// The rate, which was lowered to such a part, is low no more once an empty queue was seen, or it is time. Returns
    /// whether that is now.
    fn end_emptying(&mut self, now: Time, part: f64) -> bool {
        let Some(until) = self.emptying_until else { return false };
        let ends = self.empty_at == now && now >= self.emptied_seen_at || now >= until;
        if ends {
            self.emptying_until = None;
            self.empty_at = now;
            self.rate = (self.rate / part).min(self.before_emptying.max(self.rate));
        }
        ends
    }

    /// Lowers the rate for a moment at the same time as others of this bottleneck.
    fn empty_together(&mut self, now: Time, r_recv: f64, lag: Duration, is_used: bool) {
        let began = now.last_multiple(EMPTY_EVERY);
        let is_time = self.emptied_at < began && now.since(began) < EMPTY_TOGETHER_BY;
        if self.emptying_until.is_none() && is_used && is_time {
            self.emptying_until = Some(began + EMPTY_TOGETHER_UNTIL);
            (self.emptied_at, self.emptied_seen_at) = (now, now + lag);
            self.before_emptying = self.rate.min(r_recv);
            self.rate = self.before_emptying * EMPTYING_TOGETHER;
        }
    }

    /// Lowers the rate for a moment, if it is time to see an empty queue.
    fn empty(&mut self, now: Time, r_recv: f64, lag: Duration, is_used: bool) {
        self.end_emptying(now, EMPTYING);
        if self.emptying_until.is_none() && is_used && now.since(self.empty_at) >= EMPTY_EVERY {
            self.emptying_until = Some(now + EMPTY_WITHIN.max(lag * 2));
            self.before_emptying = self.rate.min(r_recv);
            self.rate = self.before_emptying * EMPTYING;
        }
    }
}

/// The signal in seconds at which a rate neither grows nor falls: the lower the rate, the higher.
fn aim(rate: f64) -> f64 {
    (AIM_AT_1M * (1e6 / rate).powf(0.25)).clamp(AIM_LEAST, AIM_MOST)
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
