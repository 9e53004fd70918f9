//! A virtual network: one link in each direction between a participant and the relay, with loss,
//! delay, jitter, reordering, duplication, corruption, a rate and a bounded queue.
//!
//! It decides a datagram's fate when the datagram is offered, and tells it: nothing is lost here
//! without a cause that the oracle hears of.

use canopy_wire::Time;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::time::Duration;

/// What one direction of a link does.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkModel {
    /// The share of datagrams that vanish.
    pub(crate) loss: f64,
    /// Every datagram takes this long.
    pub(crate) delay: Duration,
    /// And up to this much longer, without overtaking.
    pub(crate) jitter: Duration,
    /// The share of datagrams that later ones may overtake.
    pub(crate) reorder: f64,
    /// How much longer those take, at most.
    pub(crate) detour: Duration,
    /// The share of datagrams that arrive twice.
    pub(crate) duplicate: f64,
    /// The share of datagrams of which some bits flip.
    pub(crate) corrupt: f64,
    /// Bytes per second, if limited.
    pub(crate) rate: Option<u32>,
    /// Bytes that can wait for their turn when the rate is limited.
    pub(crate) queue: u32,
}

impl LinkModel {
    /// The longest that a datagram takes if it arrives.
    pub(crate) fn worst(&self) -> Duration {
        let queued = self.rate.map_or(Duration::ZERO, |rate| sending_time(self.queue, rate));
        self.delay + self.jitter + self.detour + queued
    }

    /// Whether a later datagram can arrive first.
    pub(crate) fn reorders(&self) -> bool {
        self.reorder > 0.0
    }

    /// The same link when nothing goes wrong.
    fn healed(&self) -> LinkModel {
        LinkModel { delay: self.delay, jitter: self.jitter, ..LinkModel::default() }
    }
}

/// Why the network let a datagram go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It vanished on the way.
    Vanished,
    /// The link's queue was full.
    QueueFull,
    /// The receive queue of the relay's socket was full.
    ReceiveQueueFull,
    /// The relay's system refused to send it.
    SendFailed,
    /// No one was there.
    Unreachable,
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Dropped(Loss),
    Arrives { at: Time, corrupted: bool, copy_at: Option<Time> },
}

/// What the network did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkCounts {
    /// Datagrams that were offered.
    pub sent: u64,
    /// Datagrams that arrived, copies included.
    pub delivered: u64,
    /// Datagrams that vanished on the way.
    pub lost: u64,
    /// Datagrams that were doubled.
    pub duplicated: u64,
    /// Datagrams that took a detour on which later ones may overtake them.
    pub reordered: u64,
    /// Datagrams dropped because a link's queue was full.
    pub queue_dropped: u64,
    /// Datagrams dropped because the relay's socket held no more.
    pub receive_queue_dropped: u64,
    /// Datagrams that the relay's system refused to send.
    pub sends_failed: u64,
    /// Copies that came later than the first.
    pub late_copies: u64,
    /// Datagrams of which bits were flipped.
    pub corrupted: u64,
    /// Datagrams to an ip:port where no one was: gone, moved, or a relay that is down.
    pub unreachable: u64,
}

/// One direction of a participant's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    /// To the relay.
    Up,
    /// From the relay.
    Down,
}

struct Link {
    model: LinkModel,
    /// When what waits has been sent.
    free_at: Time,
    /// The latest arrival that no datagram overtakes.
    newest: Time,
}

/// All links, and what they did.
pub(crate) struct Network {
    rng: ChaCha8Rng,
    up: Vec<Link>,
    down: Vec<Link>,
    counts: NetworkCounts,
}

impl Network {
    pub(crate) fn new(rng: ChaCha8Rng, models: &[[LinkModel; 2]]) -> Network {
        let links = |side: usize| models.iter().map(move |model| Link::new(model[side].clone()));
        let (up, down) = (links(0).collect(), links(1).collect());
        Network { rng, up, down, counts: NetworkCounts::default() }
    }

    pub(crate) fn counts(&self) -> &NetworkCounts {
        &self.counts
    }

    pub(crate) fn arrived(&mut self) {
        self.counts.delivered += 1;
    }

    /// From now on nothing is lost, doubled, overtaken or changed.
    pub(crate) fn heal(&mut self) {
        for link in self.up.iter_mut().chain(&mut self.down) {
            link.model = link.model.healed();
        }
    }

    /// A datagram of `len` bytes is offered to a participant's link.
    pub(crate) fn offer(
        &mut self,
        now: Time,
        participant: usize,
        direction: Direction,
        len: usize,
    ) -> Fate {
        self.counts.sent += 1;
        let link = match direction {
            Direction::Up => &mut self.up[participant],
            Direction::Down => &mut self.down[participant],
        };
        let fate = link.offer(now, len, &mut self.rng, &mut self.counts);
        if let Fate::Dropped(loss) = fate {
            self.count_loss(loss);
        }
        fate
    }

    /// A datagram of someone without a link of the model: it just arrives a millisecond later.
    pub(crate) fn offer_aside(&mut self, now: Time) -> Time {
        self.counts.sent += 1;
        now + Duration::from_millis(1)
    }

    /// A datagram does not even reach a link: no one is at that ip:port, or the system refused.
    pub(crate) fn offer_nowhere(&mut self, why: Loss) {
        self.counts.sent += 1;
        self.count_loss(why);
    }

    /// How much later than the first a copy comes: half of them at once.
    pub(crate) fn copy_is_late(&mut self, most: Duration) -> Duration {
        if most.is_zero() || self.rng.random_bool(0.5) {
            return Duration::ZERO;
        }
        self.counts.late_copies += 1;
        up_to(most, &mut self.rng)
    }

    /// Whether something happens that has this share.
    pub(crate) fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.rng.random_bool(share)
    }

    pub(crate) fn count_loss(&mut self, loss: Loss) {
        match loss {
            Loss::Vanished => self.counts.lost += 1,
            Loss::QueueFull => self.counts.queue_dropped += 1,
            Loss::ReceiveQueueFull => self.counts.receive_queue_dropped += 1,
            Loss::SendFailed => self.counts.sends_failed += 1,
            Loss::Unreachable => self.counts.unreachable += 1,
        }
    }

    /// Flips one to three bits.
    pub(crate) fn corrupt(&mut self, bytes: &mut [u8]) {
        self.counts.corrupted += 1;
        for _ in 0..self.rng.random_range(1..=3) {
            let bit = self.rng.random_range(0..bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

impl Link {
    fn new(model: LinkModel) -> Link {
        Link { model, free_at: Time::ZERO, newest: Time::ZERO }
    }

    fn offer(
        &mut self,
        now: Time,
        len: usize,
        rng: &mut ChaCha8Rng,
        counts: &mut NetworkCounts,
    ) -> Fate {
        let Some(departs) = self.enqueue(now, len) else { return Fate::Dropped(Loss::QueueFull) };
        if rng.random_bool(self.model.loss) {
            return Fate::Dropped(Loss::Vanished);
        }
        let direct = departs + self.model.delay + up_to(self.model.jitter, rng);
        let at = if rng.random_bool(self.model.reorder) {
            counts.reordered += 1;
            direct + up_to(self.model.detour, rng)
        } else {
            self.newest = direct.max(self.newest);
            self.newest
        };
        let doubled = rng.random_bool(self.model.duplicate);
        let corrupted = len > 0 && rng.random_bool(self.model.corrupt);
        counts.duplicated += u64::from(doubled);
        Fate::Arrives { at, corrupted, copy_at: doubled.then_some(at) }
    }

    /// When the datagram leaves the queue, if the queue takes it.
    fn enqueue(&mut self, now: Time, len: usize) -> Option<Time> {
        let Some(rate) = self.model.rate else { return Some(now) };
        let sent = self.free_at.max(now) + sending_time(len as u32, rate);
        if sent.since(now) > sending_time(self.model.queue, rate) {
            return None;
        }
        self.free_at = sent;
        Some(sent)
    }
}

fn sending_time(bytes: u32, rate: u32) -> Duration {
    Duration::from_nanos(u64::from(bytes) * 1_000_000_000 / u64::from(rate.max(1)))
}

fn up_to(most: Duration, rng: &mut ChaCha8Rng) -> Duration {
    Duration::from_nanos(rng.random_range(0..=most.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn network(model: LinkModel) -> Network {
        Network::new(ChaCha8Rng::seed_from_u64(5), &[[model.clone(), model]])
    }

    fn arrivals(network: &mut Network, count: u64) -> Vec<Option<Time>> {
        (0..count)
            .map(|step| match network.offer(Time::from_millis(step), 0, Direction::Up, 1000) {
                Fate::Arrives { at, .. } => Some(at),
                Fate::Dropped(_) => None,
            })
            .collect()
    }

    #[test]
    fn jitter_alone_does_not_overtake() {
        let (delay, jitter) = (Duration::from_millis(10), Duration::from_millis(50));
        let model = LinkModel { delay, jitter, ..LinkModel::default() };
        let worst = model.worst();
        let arrivals = arrivals(&mut network(model), 500);
        assert!(arrivals.is_sorted());
        for (step, at) in (0..).zip(arrivals) {
            let took = at.unwrap().since(Time::from_millis(step));
            assert!(took >= delay && took <= worst, "{took:?}");
        }
    }

    #[test]
    fn a_detour_overtakes_and_is_counted() {
        let detour = Duration::from_millis(50);
        let mut network = network(LinkModel { reorder: 0.1, detour, ..LinkModel::default() });
        assert!(!arrivals(&mut network, 500).is_sorted());
        assert!((20..80).contains(&network.counts().reordered), "{:?}", network.counts());
    }

    #[test]
    fn a_full_queue_drops_the_newest() {
        // A datagram of 1,000 bytes each millisecond on a link of half that rate.
        let model = LinkModel { rate: Some(500_000), queue: 10_000, ..LinkModel::default() };
        let worst = model.worst();
        let mut network = network(model);
        let arrivals = arrivals(&mut network, 200);
        assert!(arrivals[..10].iter().all(Option::is_some));
        let dropped = arrivals.iter().filter(|at| at.is_none()).count() as u64;
        assert_eq!(network.counts().queue_dropped, dropped);
        assert!((85..105).contains(&dropped), "{dropped}");
        for (step, at) in (0..).zip(&arrivals) {
            assert!(at.is_none_or(|at| at.since(Time::from_millis(step)) <= worst));
        }
    }

    #[test]
    fn loss_and_duplication_keep_their_shares_and_end_with_healing() {
        let model = LinkModel { loss: 0.2, duplicate: 0.1, ..LinkModel::default() };
        let mut network = network(model);
        arrivals(&mut network, 2000);
        let counts = network.counts().clone();
        assert!((300..500).contains(&counts.lost), "{counts:?}");
        assert!((100..220).contains(&counts.duplicated), "{counts:?}");
        network.heal();
        assert!(arrivals(&mut network, 500).iter().all(Option::is_some));
        assert_eq!(network.counts().duplicated, counts.duplicated);
    }
}
