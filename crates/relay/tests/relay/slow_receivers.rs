//! A slow receiver never hurts a fast one: of 100 members of a group one reads nothing and another sits
//! behind 64 kbit/s, in virtual time in which every datagram takes the relay a while to send.

use crate::support::thinning::Dice;
use crate::support::{PERIODIC, Sent, World, config, ip_port, with_downlink};
use canopy_relay::Mode;
use canopy_wire::{Downlink, DropReason, Flags, Time};
use std::collections::VecDeque;
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// What one datagram takes to send; groupcast §3 measures as much.
const SENDING: Duration = Duration::from_micros(2);
const MEMBERS: usize = 100;
/// Those that are slow, if any are: it reads nothing; and its path bears little.
const DEAF: usize = 98;
const NARROW: usize = 99;
/// What the narrow path bears, in bytes a millisecond: 64 kbit/s; and how many may wait for it: 500 ms.
const BYTES_A_MILLI: usize = 8;
const MOST_QUEUED: usize = 4_000;
/// A datagram that has gone through it takes so long.
const ONE_WAY: Duration = Duration::from_millis(20);
/// Those of the members that publish, and how often.
const PUBLISHERS: usize = 8;
const EVERY: Duration = Duration::from_millis(50);
const UPDATE_BYTES: usize = 200;
/// Two become slow after so long; what is looked at is all that is said from then on, for so long.
const SETTLING: Duration = Duration::from_secs(2);
const TIME: Duration = Duration::from_secs(6);

/// 64 kbit/s with a queue that drops what does not fit.
#[derive(Default)]
struct NarrowPath {
    queue: VecDeque<Sent>,
    queued: usize,
    /// Bytes of the first that have gone.
    gone: usize,
    /// What is on its way, and when it arrives.
    flying: VecDeque<(Time, Sent)>,
}

impl NarrowPath {
    fn enter(&mut self, sent: &Sent) {
        for datagram in sent.datagrams() {
            if self.queued + datagram.len() <= MOST_QUEUED {
                self.queued += datagram.len();
                let (to, bytes, segment) = (sent.to, datagram.to_vec(), sent.segment);
                self.queue.push_back(Sent { to, bytes, segment });
            }
        }
    }

    /// A millisecond passes. Returns what arrives.
    fn pass(&mut self, now: Time) -> Vec<Sent> {
        self.gone = if self.queue.is_empty() { 0 } else { self.gone + BYTES_A_MILLI };
        while let Some(first) = self.queue.pop_front_if(|first| first.bytes.len() <= self.gone) {
            self.gone -= first.bytes.len();
            self.queued -= first.bytes.len();
            self.flying.push_back((now + ONE_WAY, first));
        }
        let mut arrived = Vec::new();
        while let Some((_, sent)) = self.flying.pop_front_if(|(at, _)| *at <= now) {
            arrived.push(sent);
        }
        arrived
    }
}

/// A crowd in one place: whoever publishes is heard by everybody.
struct Crowd {
    world: World,
    are_slow: bool,
    path: NarrowPath,
    /// By publisher: when it says something next.
    next: Vec<Time>,
    /// When each update was said, and by whom.
    said: Vec<(Time, usize)>,
    /// By member: the updates that reached it, and their ages.
    got: Vec<Vec<(usize, Duration)>>,
    /// Until when the relay is busy with sending.
    busy: Time,
    /// By second: the most updates that waited, and the longest queue of the narrow path.
    waiting: Vec<(u64, usize)>,
    start: Time,
}

impl Crowd {
    fn new(mode: Mode, downlink: Downlink) -> Crowd {
        let mut world = World::of(with_downlink(config(mode), downlink), MEMBERS);
        world.subscribe_all(7, 0);
        let (mut dice, start) = (Dice(5), world.now);
        let next = (0..PUBLISHERS).map(|_| start + EVERY.mul_f64(dice.part())).collect();
        let got = vec![Vec::new(); MEMBERS];
        let (path, said, waiting) = (NarrowPath::default(), Vec::new(), Vec::new());
        Crowd { world, are_slow: false, path, next, said, got, busy: start, waiting, start }
    }

    fn run(&mut self, time: Duration) {
        let end = self.world.now + time;
        while self.world.now < end {
            self.world.now = self.world.now + MILLI;
            let now = self.world.now;
            self.speak();
            self.world.relay_mut().handle_timeout(now);
            if now.as_nanos().is_multiple_of(100_000_000) {
                for member in 0..MEMBERS {
                    self.world.send_from(member);
                }
            }
            let sent = self.world.collect(0);
            self.send(sent);
            let arrived = self.path.pass(now);
            let hears = !arrived.is_empty();
            self.world.carry(0, arrived);
            if hears {
                self.hear(NARROW, now);
            }
            let second = now.since(self.start).as_secs() as usize;
            self.waiting.resize(second + 1, (0, 0));
            let (waiting, queued) = &mut self.waiting[second];
            *waiting = self.world.relay().waiting_updates().max(*waiting);
            *queued = self.path.queued.max(*queued);
        }
    }

    fn speak(&mut self) {
        for publisher in 0..PUBLISHERS {
            if self.next[publisher] <= self.world.now {
                let mut payload = [0; UPDATE_BYTES];
                payload[..4].copy_from_slice(&(self.said.len() as u32).to_be_bytes());
                self.said.push((self.world.now, publisher));
                self.next[publisher] = self.next[publisher] + EVERY;
                self.world.publish(publisher, 7, 0, Flags::default(), &payload);
            }
        }
    }

    /// Datagrams leave one after the other.
    fn send(&mut self, sent: Vec<Sent>) {
        for one in sent {
            let to = usize::from(one.to.port() - ip_port(0).port());
            self.busy = self.busy.max(self.world.now) + SENDING * one.datagrams().count() as u32;
            match to {
                DEAF if self.are_slow => {}
                NARROW if self.are_slow => self.path.enter(&one),
                _ => {
                    self.world.carry(0, vec![one]);
                    self.hear(to, self.busy);
                }
            }
        }
    }

    /// A member has got something: it answers at once, if it has to.
    fn hear(&mut self, member: usize, at: Time) {
        for update in self.world.participants[member].received.drain(..) {
            let number = u32::from_be_bytes(*update.payload.first_chunk().unwrap()) as usize;
            self.got[member].push((number, at.since(self.said[number].0)));
        }
        self.world.send_from(member);
    }

    /// The age of which one in a hundred updates of the 98 is older, of those said after a while.
    fn old_age(&self, first: usize) -> Duration {
        let of_fast = self.got[..DEAF].iter().flatten();
        let mut ages: Vec<Duration> =
            of_fast.filter(|(number, _)| *number >= first).map(|(_, age)| *age).collect();
        ages.sort_unstable();
        ages[ages.len() * 99 / 100]
    }

    /// Each of the 98 has got everything once, but for its own.
    fn check_that_nothing_is_missing(&self) {
        for (member, got) in self.got[..DEAF].iter().enumerate() {
            let mut numbers: Vec<usize> = got.iter().map(|(number, _)| *number).collect();
            numbers.sort_unstable();
            let of_others = |number: &usize| self.said[*number].1 != member;
            let all: Vec<usize> = (0..self.said.len()).filter(of_others).collect();
            assert!(numbers == all, "{member} got {} of {}", numbers.len(), all.len());
        }
    }

    /// What waits for the two slow ones is at most the newest two of each flow, and no more at the end than before.
    fn check_that_memory_stays(&self) {
        for (second, (waiting, queued)) in self.waiting.iter().enumerate() {
            assert!(*waiting <= 4 * PUBLISHERS as u64, "{waiting} wait in second {second}");
            assert!(*queued <= MOST_QUEUED);
        }
    }
}

/// Runs a crowd of which two become slow, or not; and the age of the oldest that come to the others then.
fn see(mode: Mode, downlink: Downlink, are_slow: bool) -> (Crowd, Duration) {
    let mut crowd = Crowd::new(mode, downlink);
    crowd.run(SETTLING);
    crowd.are_slow = are_slow;
    let first = crowd.said.len();
    crowd.run(TIME);
    crowd.next.fill(Time::from_nanos(u64::MAX));
    crowd.run(SECOND);
    let age = crowd.old_age(first);
    (crowd, age)
}

fn check(mode: Mode, downlink: Downlink) {
    let (alike, quiet) = see(mode, downlink, false);
    let (with_slow, age) = see(mode, downlink, true);
    alike.check_that_nothing_is_missing();
    with_slow.check_that_nothing_is_missing();
    with_slow.check_that_memory_stays();
    let thinned = |crowd: &Crowd| crowd.world.dropped(DropReason::Thinned);
    assert_eq!(thinned(&alike), 0, "{mode:?} {downlink:?}");
    assert!(thinned(&with_slow) > 0, "the slow ones are limited: {mode:?} {downlink:?}");
    // What waited for the narrow path was the newest, so that is there in the end.
    let got = &with_slow.got[NARROW];
    let newest = with_slow.said.len() - PUBLISHERS..with_slow.said.len();
    let has = |number: usize| got.iter().any(|one| one.0 == number);
    assert!(newest.into_iter().all(has), "{mode:?} {downlink:?}");
    assert!(age <= quiet.mul_f64(1.1), "{quiet:?} became {age:?}: {mode:?} {downlink:?}");
}

#[test]
fn at_once_the_slow_hurt_nobody() {
    check(Mode::Immediate, Downlink::None);
}

#[test]
fn in_ticks_the_slow_hurt_nobody() {
    check(PERIODIC, Downlink::Member);
    check(PERIODIC, Downlink::Group);
}
