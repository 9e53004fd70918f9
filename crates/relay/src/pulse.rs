//! Whether two relays hear each other over a link, and how well: hellos in both directions, as in BFD
//! (RFC 5880).

use canopy_session::LinkTraffic;
use canopy_wire::{LinkHello, Time};
use core::time::Duration;

/// A hello leaves at least this often, and at most a quarter earlier.
const HELLO_EVERY: Duration = Duration::from_millis(50);
/// A link is down when nothing was heard for so long, or when the neighbour says that it has heard
/// nothing for so long: four hellos in a row.
const LOST_AFTER: Duration = Duration::from_millis(200);
/// A link that has just come up is given so long: the first answer takes a round trip.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// Rates and losses are of this time, smoothed.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// A link's sign of life on both sides, as one of them sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pulse {
    /// When the next hello may leave, and when it must have left.
    hello_at: Time,
    hello_by: Time,
    /// Until when the neighbour must be heard again; and until when it must say that it hears, if its
    /// last hello did not.
    heard_until: Time,
    hears_until: Option<Time>,
    /// The neighbour's last stamp, and when it arrived.
    stamp: (u64, Time),
    /// The last of our own that came back.
    echo: u64,
    /// Without the time that a hello waits to be read.
    pub(crate) round_trip: Option<Duration>,
    /// How long a subscription lives at the neighbour.
    pub(crate) lifetime: Option<Duration>,
    measured: Measured,
    /// How many of the neighbour's packets were missing at a time, at most, since this was first looked at.
    missing: Option<i32>,
    pub(crate) loss_in: f32,
    pub(crate) loss_out: f32,
    pub(crate) bits_in: u64,
    pub(crate) bits_out: u64,
}

/// How things stood when they were last measured.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    at: Time,
    /// How many packets the neighbour had sealed.
    sent: u32,
    traffic: LinkTraffic,
}

impl Pulse {
    /// A link that has come up.
    pub(crate) fn begin(now: Time) -> Pulse {
        Pulse {
            hello_at: now,
            hello_by: now,
            heard_until: now + FIRST_ANSWER,
            hears_until: Some(now + FIRST_ANSWER),
            stamp: (0, now),
            echo: 0,
            round_trip: None,
            lifetime: None,
            measured: Measured { at: now, ..Measured::default() },
            missing: None,
            loss_in: 0.0,
            loss_out: 0.0,
            bits_in: 0,
            bits_out: 0,
        }
    }

    /// When there is something to do next.
    pub(crate) fn due(&self) -> Time {
        let hears_until = self.hears_until.unwrap_or(self.heard_until);
        self.hello_at.min(self.heard_until).min(hears_until)
    }

    /// Whether the neighbour is not heard any more, or does not hear.
    pub(crate) fn is_lost(&self, now: Time) -> bool {
        now >= self.heard_until || self.hears_until.is_some_and(|until| now >= until)
    }

    /// This relay itself had no time for so long: what has arrived meanwhile is still to be read.
    pub(crate) fn forgive(&mut self, late: Duration) {
        self.heard_until = self.heard_until + late;
        self.hears_until = self.hears_until.map(|until| until + late);
    }

    /// The hello that is due, if one is, or will be before `until`, when this is asked again at the latest.
    /// `jitter` is any number. Where it is asked now and then only, what comes early is enough of a jitter.
    pub(crate) fn hello(
        &mut self,
        now: Time,
        until: Time,
        jitter: u64,
        traffic: LinkTraffic,
    ) -> Option<LinkHello> {
        if now < self.hello_at && until <= self.hello_by {
            return None;
        }
        self.hello_by = now + HELLO_EVERY;
        let eighths = if until > now { 0 } else { jitter % 3 };
        self.hello_at = self.hello_by - HELLO_EVERY / 8 * eighths as u32;
        let (echo, at) = self.stamp;
        Some(LinkHello {
            stamp: now.as_nanos().max(1),
            echo,
            held: now.since(at).as_micros() as u32,
            sent: traffic.sealed.wrapping_add(1),
            loss: (self.loss_in * f32::from(u16::MAX)) as u16,
            lifetime: 0,
        })
    }

    /// Takes the neighbour's, which has waited so long to be read.
    pub(crate) fn take(
        &mut self,
        now: Time,
        waited: Duration,
        hello: &LinkHello,
        traffic: LinkTraffic,
    ) {
        if hello.stamp <= self.stamp.0 {
            // It was overtaken.
            return;
        }
        let arrived = now - waited;
        self.stamp = (hello.stamp, arrived);
        // The first one ends the time that a link is given when it has come up.
        self.heard_until = now + LOST_AFTER;
        let held = Duration::from_micros(hello.held.into());
        if hello.echo > 0 {
            // It says how long it has heard nothing. So losses one way and the other do not add up.
            self.hears_until = (held >= LOST_AFTER).then_some(now);
        }
        if hello.echo > self.echo && hello.echo <= now.as_nanos() {
            self.echo = hello.echo;
            let there_and_back = arrived.since(Time::from_nanos(hello.echo));
            let sample = there_and_back.saturating_sub(held);
            self.round_trip =
                Some(self.round_trip.map_or(sample, |smooth| (smooth * 7 + sample) / 8));
        }
        if hello.lifetime > 0 {
            self.lifetime = Some(Duration::from_millis(hello.lifetime.into()));
        }
        self.loss_out = f32::from(hello.loss) / f32::from(u16::MAX);
        self.measure(now, hello.sent, traffic);
    }

    fn measure(&mut self, now: Time, sent: u32, traffic: LinkTraffic) {
        let Measured { at, sent: sent_before, traffic: before } = self.measured;
        let time = now.since(at);
        if time < MEASURE_EVERY {
            return;
        }
        let of_neighbour = sent.wrapping_sub(sent_before);
        // A hello may overtake updates, which are read after it. They are missing now, and not the next time;
        // what is lost stays missing, and comes on top.
        let missing = sent.wrapping_sub(traffic.opened).cast_signed();
        let most = self.missing.get_or_insert(missing);
        let lost = missing.saturating_sub(*most).max(0) as f32 / of_neighbour.max(1) as f32;
        *most = missing.max(*most);
        self.loss_in = (self.loss_in * 3.0 + lost) / 4.0;
        let rate = |bytes: u64| (bytes as f64 * 8.0 / time.as_secs_f64()) as u64;
        self.bits_in = rate(traffic.bytes_in - before.bytes_in);
        self.bits_out = rate(traffic.bytes_out - before.bytes_out);
        self.measured = Measured { at: now, sent, traffic };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sides with a way of so many milliseconds between them, on which one hello in `one_in` is
    /// lost each way; from `cut` on the second hears nothing any more. Returns both, and when each
    /// found the link lost.
    fn run(way: u64, one_in: u64, cut: u64, until: u64) -> ([Pulse; 2], [Option<u64>; 2]) {
        let mut sides = [Pulse::begin(Time::ZERO); 2];
        let (mut traffic, mut lost) = ([LinkTraffic::default(); 2], [None; 2]);
        let (mut on_the_way, mut count) = (Vec::new(), 0u64);
        for milli in 1..until {
            let now = Time::from_millis(milli);
            for side in 0..2 {
                if let Some(hello) = sides[side].hello(now, now, milli, traffic[side]) {
                    traffic[side].sealed += 1;
                    count += 1;
                    let is_cut = side == 0 && milli >= cut;
                    if !is_cut && !count.is_multiple_of(one_in) {
                        on_the_way.push((milli + way, 1 - side, hello));
                    }
                }
                let arrived: Vec<_> =
                    on_the_way.extract_if(.., |(at, to, _)| *at <= milli && *to == side).collect();
                for (_, _, hello) in arrived {
                    traffic[side].opened += 1;
                    sides[side].take(now, Duration::ZERO, &hello, traffic[side]);
                }
                if sides[side].is_lost(now) {
                    lost[side].get_or_insert(milli);
                }
            }
        }
        (sides, lost)
    }

    #[test]
    fn a_link_that_works_stays_and_is_measured() {
        for way in [0, 5, 100] {
            let (sides, lost) = run(way, 5, u64::MAX, 20_000);
            assert_eq!(lost, [None, None], "{way} ms");
            for side in sides {
                let round_trip = side.round_trip.unwrap().as_millis() as u64;
                assert!((2 * way..=2 * way + 2).contains(&round_trip), "{round_trip} of {way}");
                assert!((0.1..0.3).contains(&side.loss_in), "{side:?}");
                assert!((0.1..0.3).contains(&side.loss_out), "{side:?}");
            }
        }
    }

    /// Lanes are read one after the other, that of hellos first.
    #[test]
    fn what_a_hello_overtakes_is_not_lost() {
        let mut pulse = Pulse::begin(Time::ZERO);
        let mut take = |second: u64, sent: u64, opened: u64| {
            let hello = LinkHello { sent: sent as u32, stamp: second, ..LinkHello::default() };
            let traffic = LinkTraffic { opened: opened as u32, ..LinkTraffic::default() };
            pulse.take(Time::from_millis(1_000 * second), Duration::ZERO, &hello, traffic);
            pulse.loss_in
        };
        // Up to nine updates are read after the hello that has counted them.
        let losses: Vec<f32> = (1..100)
            .map(|second| take(second, 1_000 * second, 1_000 * second - second % 10))
            .collect();
        assert!(losses[..20].iter().all(|loss| *loss < 0.003), "{losses:?}");
        assert!(losses[60..].iter().all(|loss| *loss < 1e-6), "{losses:?}");
        // One in fifty is lost from then on.
        let lost = |second: u64| 20 * (second - 100);
        let loss = (100..140)
            .map(|second| take(second, 1_000 * second, 1_000 * second - lost(second) - second % 10))
            .last();
        assert!(loss.is_some_and(|loss| (0.018..0.022).contains(&loss)), "{loss:?}");
    }

    /// A periodic relay's timers wait for the next read of its sockets.
    #[test]
    fn hellos_are_frequent_enough_although_they_leave_at_reads_only() {
        for pause in [2, 7, 17, 20, 30, 33, 49, 50] {
            let mut pulse = Pulse::begin(Time::ZERO);
            let mut before = 0;
            for now in (0..5_000).step_by(pause) {
                // A thread is not woken to the microsecond.
                let late = Duration::from_micros(now * 7919 % 300);
                let (at, until) = (Time::from_millis(now), Time::from_millis(now + pause as u64));
                if pulse.hello(at + late, until, now, LinkTraffic::default()).is_some() {
                    assert!(now - before <= 50, "{} ms, read every {pause}", now - before);
                    assert!(now == before || now - before + pause as u64 > 37, "too many");
                    before = now;
                }
            }
        }
    }

    /// A hello that left between two ticks would leave in addition to those that leave with them, and take room of a
    /// slow link that updates need.
    #[test]
    fn reads_that_are_more_frequent_than_they_must_be_bring_no_more_hellos() {
        for (tick, every, most) in [(50_000, 12_500, 20), (20_000, 10_000, 25), (10_000, 5_000, 20)]
        {
            let mut pulse = Pulse::begin(Time::ZERO);
            let asked = (0..1_000_000).step_by(every).filter(|micros| {
                let now = Time::from_nanos(*micros as u64 * 1000);
                let until =
                    now.last_multiple(Duration::from_micros(tick)) + Duration::from_micros(tick);
                pulse.hello(now, until, *micros as u64 / 7, LinkTraffic::default()).is_some()
            });
            let count = asked.count();
            assert!((20..=most).contains(&count), "{count} in a second of ticks of {tick} us");
        }
    }

    /// Both sides read every 50 ms, one 20 ms later than the other.
    #[test]
    fn a_round_trip_is_without_the_time_that_a_hello_waits_to_be_read() {
        const WAY: Duration = Duration::from_millis(3);
        let mut sides = [Pulse::begin(Time::ZERO); 2];
        let mut on_the_way = [None; 2];
        for read in 1..200 {
            let side = read % 2;
            let now = Time::from_millis(read as u64 / 2 * 50 + side as u64 * 20);
            if let Some((arrived, hello)) = on_the_way[side].take() {
                let waited = now.since(arrived);
                sides[side].take(now, waited, &hello, LinkTraffic::default());
            }
            let until = now + Duration::from_millis(50);
            let hello = sides[side].hello(now, until, 0, LinkTraffic::default());
            on_the_way[1 - side] = hello.map(|hello| (now + WAY, hello));
            assert!(!sides[side].is_lost(now));
        }
        for side in sides {
            assert_eq!(side.round_trip, Some(2 * WAY));
        }
    }

    #[test]
    fn both_sides_know_within_300_ms_that_one_of_them_hears_nothing() {
        // Soon after it has come up, and later.
        for (way, cut) in [0, 5, 30].into_iter().flat_map(|way| [(way, 200), (way, 5_000)]) {
            let (_, lost) = run(way, u64::MAX, cut, cut + 1_000);
            for at in lost {
                let after = at.unwrap() - cut;
                assert!((150..=300 + 2 * way).contains(&after), "{after} ms, way {way}");
            }
        }
    }

    #[test]
    fn who_was_late_itself_forgives() {
        let mut pulse = Pulse::begin(Time::ZERO);
        pulse.take(
            Time::from_millis(2000),
            Duration::ZERO,
            &LinkHello { stamp: 1, ..LinkHello::default() },
            LinkTraffic::default(),
        );
        pulse.forgive(Duration::from_secs(5));
        assert!(!pulse.is_lost(Time::from_millis(5000)));
        assert!(pulse.is_lost(Time::from_millis(8000)));
    }
}
