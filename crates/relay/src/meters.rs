//! What each member has sent, what it may send, and who sends the most.

use crate::bucket::{Bucket, Rate};
use crate::index::PortIndex;
use crate::thin::Down;
use canopy_wire::{Address, Bound, Comtree, MAX_DATAGRAM, MAX_RECORDS, Path, Time};
use core::time::Duration;

/// The most that is sent, in both directions (the four numbers of Forest §3.4.2). 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Updates a second to the relay; as many at once, and a datagram's.
    pub up_packets: u64,
    /// Bits a second to the relay, in updates' datagrams, of UDP payload; as many at once, and a
    /// datagram's.
    pub up_bits: u64,
    /// Updates a second from the relay.
    pub down_packets: u64,
    /// Bits a second from the relay, of UDP payload with headers and seals.
    pub down_bits: u64,
}

/// What members may send, unless they are told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// A participant's on a comtree.
    pub member: Budget,
    /// That of all participants of a comtree together, on all data threads. They share what they are sent: none is
    /// sent more than another, but what one does not want goes to the others.
    pub comtree: Budget,
    /// Changes of subscriptions a second of a participant; 0 is no limit.
    pub subscription_changes: u32,
    /// Whose paths are asked how much they bear, which is a budget too.
    pub paths: PathShare,
}

/// Whose paths are asked how much they bear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathShare {
    /// All participants'.
    All,
    /// Those of participants on other hosts: nothing stands between two processes of one.
    #[default]
    BeyondHost,
    /// Nobody's. Then what is sent may be more than a path bears; only where the network is one's own.
    Off,
}

impl Default for Budgets {
    fn default() -> Budgets {
        let member = Budget { up_packets: 50_000, up_bits: 100_000_000, ..Budget::default() };
        Budgets {
            member,
            comtree: Budget::default(),
            subscription_changes: 20_000,
            paths: PathShare::default(),
        }
    }
}

impl Budgets {
    /// No limits.
    pub const NONE: Budgets = {
        let none = Budget { up_packets: 0, up_bits: 0, down_packets: 0, down_bits: 0 };
        Budgets { member: none, comtree: none, subscription_changes: 0, paths: PathShare::Off }
    };
}

/// One of those who send the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Talker {
    /// The comtree that it sends on.
    pub comtree: Comtree,
    /// Its address there.
    pub address: Address,
    /// Where it is.
    pub path: Path,
    /// Bits a second that arrived from it, of UDP payload.
    pub bits: u64,
    /// Updates a second that arrived from it, whatever became of them.
    pub updates: u64,
    /// Datagrams and updates of its that were dropped, a second, because it was over a limit.
    pub dropped: u64,
}

/// The most talkers that are told of.
pub const MAX_TALKERS: usize = 10;
/// Between two looks at a port; rates are of this time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A member is told that it is over a limit so often at most, and the log so often.
const TELL_EVERY: Duration = Duration::from_secs(1);
const NOTE_EVERY: Duration = Duration::from_secs(5);
/// Changes of subscriptions at once: a participant that joins again asks for all that it had.
const CHANGES_AT_ONCE: u64 = 8192;
/// How much a newcomer's bucket lacks of the second's worth that it holds beside a datagram. What is left is
/// what a server needs for its first ticks.
const SPENT_AT_FIRST: Duration = Duration::from_millis(875);
/// Keepalives of a session: twice as many as the shortest interval brings.
const KEEPALIVES: Rate = Rate::new(200, 100);

/// What requests of a session cost: a renewal has a signature that is to be checked, and all
/// subscriptions are looked at anew.
const REQUESTS: Rate = Rate::new(50, 50);
pub(crate) const RENEWAL_COST: u64 = 10;

/// Addresses of which a member makes the relay ask for the way: a server that starts asks for all of its
/// clients.
const ASKS: Rate = Rate::new(200, 800);

/// What may be sent to the relay by somebody.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UpMeter {
    packets: Rate,
    bits: Rate,
    packet_bucket: Bucket,
    bit_bucket: Bucket,
}

impl UpMeter {
    pub(crate) fn new(budget: &Budget) -> UpMeter {
        UpMeter::of_part(budget, budget)
    }

    /// The meter of a part of a budget, of which as much may come at once as of the whole.
    fn of_part(part: &Budget, whole: &Budget) -> UpMeter {
        // One datagram fits, however low the rate is.
        let packets_at_once = whole.up_packets.saturating_add(MAX_RECORDS as u64);
        let bits_at_once = whole.up_bits.saturating_add(8 * MAX_DATAGRAM as u64);
        UpMeter {
            packets: Rate::new(part.up_packets, packets_at_once),
            bits: Rate::new(part.up_bits, bits_at_once),
            ..UpMeter::default()
        }
    }

    /// With little in its buckets, or whoever joins again would have a second's worth each time.
    fn nearly_spent(self, now: Time) -> UpMeter {
        let spent = Bucket::full_at(now + SPENT_AT_FIRST);
        UpMeter { packet_bucket: spent, bit_bucket: spent, ..self }
    }

    /// Sets how much may be sent from now on. What is in the buckets stays, so that no change of budgets
    /// fills or empties them.
    pub(crate) fn set_budget(&mut self, now: Time, budget: &Budget) {
        self.set_part(now, budget, budget);
    }

    /// The same of a part of a budget, of which as much may come at once as of the whole.
    pub(crate) fn set_part(&mut self, now: Time, part: &Budget, whole: &Budget) {
        let UpMeter { packets, bits, .. } = UpMeter::of_part(part, whole);
        self.packet_bucket.change_rate(&self.packets, &packets, now);
        self.bit_bucket.change_rate(&self.bits, &bits, now);
        (self.packets, self.bits) = (packets, bits);
    }

    /// Takes a datagram's bytes.
    #[inline]
    pub(crate) fn take_bytes(&mut self, now: Time, bytes: usize) -> bool {
        self.bit_bucket.take(&self.bits, now, 8 * bytes as u64)
    }

    /// Takes an update.
    #[inline]
    pub(crate) fn take_update(&mut self, now: Time) -> bool {
        self.packet_bucket.take(&self.packets, now, 1)
    }
}

/// One member's. What every datagram touches is in the first cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Meter {
    up: UpMeter,
    updates: u64,
    bytes: u64,
    budget: Budget,
    /// The most that it wants to be sent, and what its path bears in bits a second; 0 is no limit.
    asked: Down,
    path_bits: u64,
    /// Whether whoever runs the relay has said so: then no token of the member's changes it.
    is_fixed: bool,
    changes: Bucket,
    keepalives: Bucket,
    requests: Bucket,
    asks: Bucket,
    /// What was dropped because it was over a limit; and how much of it the member was told.
    dropped: u64,
    told: u64,
    tell_at: Time,
    note_at: Time,
    /// The totals when the port was last looked at.
    looked_at: Time,
    looked: [u64; 3],
}

/// What follows from a drop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overdue {
    /// How much to tell the member of.
    pub(crate) tell: Option<u32>,
    /// Whether the log is to name it.
    pub(crate) note: bool,
}

/// By port: what it sends.
pub(crate) struct Meters {
    meters: Vec<Meter>,
    changes: Rate,
    /// The port that is looked at next, of a round over all of them.
    next: PortIndex,
    round_ends_at: Time,
    found: Vec<Talker>,
    talkers: Vec<Talker>,
}

impl Meters {
    pub(crate) fn new(max_ports: u32, subscription_changes: u32) -> Meters {
        Meters {
            meters: Vec::with_capacity(max_ports as usize),
            changes: Rate::new(subscription_changes.into(), CHANGES_AT_ONCE),
            next: 0,
            round_ends_at: Time::ZERO,
            found: Vec::with_capacity(MAX_TALKERS + 1),
            talkers: Vec::with_capacity(MAX_TALKERS + 1),
        }
    }

    /// A port is opened, whose peer may send so much.
    pub(crate) fn open(&mut self, port: PortIndex, budget: Budget, now: Time) {
        let index = port as usize;
        if index >= self.meters.len() {
            self.meters.resize(index + 1, Meter::default());
        }
        let up = UpMeter::new(&budget).nearly_spent(now);
        self.meters[index] = Meter { up, budget, looked_at: now, ..Meter::default() };
    }

    /// The peer of a port may send so much from now on, unless its budget was fixed.
    pub(crate) fn set_budget(&mut self, now: Time, port: PortIndex, budget: Budget) {
        if let Some(meter) = self.get_mut(port).filter(|meter| !meter.is_fixed) {
            meter.set_budget(now, budget);
        }
    }

    /// The peer of a port may send so much from now on, whatever its tokens say.
    pub(crate) fn fix_budget(&mut self, now: Time, port: PortIndex, budget: Budget) {
        if let Some(meter) = self.get_mut(port) {
            meter.set_budget(now, budget);
            meter.is_fixed = true;
        }
    }

    /// The peer of a port wants to be sent no more than this.
    pub(crate) fn set_asked(&mut self, port: PortIndex, asked: Down) {
        if let Some(meter) = self.get_mut(port) {
            meter.asked = asked;
        }
    }

    /// The path to the peer of a port bears so many bits a second; 0 is no limit.
    pub(crate) fn set_path(&mut self, port: PortIndex, bits: u64) {
        if let Some(meter) = self.get_mut(port) {
            meter.path_bits = bits;
        }
    }

    /// What the peer of a port may be sent: the least of what it was admitted for, what it asks for,
    /// and what its path bears.
    pub(crate) fn down_of(&self, port: PortIndex) -> Down {
        self.down_and_why(port).0
    }

    /// The same, and what bounds its bits; or its updates, if nothing bounds those.
    pub(crate) fn down_and_why(&self, port: PortIndex) -> (Down, Bound) {
        let Some(meter) = self.meters.get(port as usize) else {
            return (Down::default(), Bound::Nothing);
        };
        let admitted = Down { updates: meter.budget.down_packets, bits: meter.budget.down_bits };
        let path = Down { updates: 0, bits: meter.path_bits };
        let down = admitted.least(meter.asked).least(path);
        let bounds =
            [(admitted, Bound::Admitted), (meter.asked, Bound::Asked), (path, Bound::Path)];
        let is_bound = |(one, _): &&(Down, Bound)| match down {
            Down { updates: 0, bits: 0 } => false,
            Down { updates, bits: 0 } => one.updates == updates,
            Down { bits, .. } => one.bits == bits,
        };
        (down, bounds.iter().find(is_bound).map_or(Bound::Nothing, |(_, bound)| *bound))
    }

    /// More of a member's was dropped because it is over a limit.
    pub(crate) fn count_dropped(&mut self, port: PortIndex, count: u64) {
        if let Some(meter) = self.get_mut(port) {
            meter.dropped += count;
        }
    }

    pub(crate) fn get_mut(&mut self, port: PortIndex) -> Option<&mut Meter> {
        self.meters.get_mut(port as usize)
    }

    /// Whether the peer of a port may change so many subscriptions now.
    pub(crate) fn take_changes(&mut self, port: PortIndex, now: Time, changes: usize) -> bool {
        let rate = self.changes;
        let cost = changes.max(1) as u64;
        self.get_mut(port).is_none_or(|meter| meter.changes.take(&rate, now, cost))
    }

    /// Whether a member may make the relay ask for the way to an address.
    pub(crate) fn take_ask(&mut self, port: PortIndex, now: Time) -> bool {
        self.get_mut(port).is_none_or(|meter| meter.take_ask(now))
    }

    /// Those who sent the most in the last second.
    pub(crate) fn talkers(&self) -> &[Talker] {
        &self.talkers
    }

    /// Whether those who sent the most are known, or being found: another round may know of none.
    pub(crate) fn has_talkers(&self) -> bool {
        !self.talkers.is_empty() || !self.found.is_empty()
    }

    /// Whether a round over all ports is under way, or due.
    pub(crate) fn begin_round(&mut self, now: Time) -> bool {
        if self.next == 0 {
            if now < self.round_ends_at {
                return false;
            }
            self.round_ends_at = now + LOOK_EVERY;
        }
        true
    }

    /// The next port of the round, if there is one below `high_water`; otherwise the round is over.
    pub(crate) fn next_of_round(&mut self, high_water: u32) -> Option<PortIndex> {
        if self.next >= high_water {
            self.next = 0;
            core::mem::swap(&mut self.talkers, &mut self.found);
            self.found.clear();
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// Looks at a port: what it sent since the last look. `who` says who it is.
    pub(crate) fn look(
        &mut self,
        port: PortIndex,
        now: Time,
        who: impl FnOnce() -> Option<(Comtree, Address, Path)>,
    ) {
        let Some(meter) = self.meters.get_mut(port as usize) else { return };
        let millis = now.since(meter.looked_at).as_millis().max(1) as u64;
        let totals = [8 * meter.bytes, meter.updates, meter.dropped];
        let [bits, updates, dropped] =
            core::array::from_fn(|at| (totals[at] - meter.looked[at]) * 1000 / millis);
        (meter.looked, meter.looked_at) = (totals, now);
        let is_among = self.found.len() < MAX_TALKERS
            || self.found.last().is_some_and(|least| bits > least.bits);
        if bits == 0 || !is_among {
            return;
        }
        let Some((comtree, address, path)) = who() else { return };
        let at = self.found.partition_point(|one| one.bits >= bits);
        self.found.insert(at, Talker { comtree, address, path, bits, updates, dropped });
        self.found.truncate(MAX_TALKERS);
    }
}

impl Meter {
    fn set_budget(&mut self, now: Time, budget: Budget) {
        self.up.set_budget(now, &budget);
        self.budget = budget;
    }

    /// Counts a datagram of updates, and takes it from the budget.
    #[inline]
    pub(crate) fn take_datagram(&mut self, now: Time, bytes: usize, updates: u8) -> bool {
        self.bytes += bytes as u64;
        self.updates += u64::from(updates);
        self.up.take_bytes(now, bytes)
    }

    /// Takes an update from the budget.
    #[inline]
    pub(crate) fn take_update(&mut self, now: Time) -> bool {
        self.up.take_update(now)
    }

    pub(crate) fn take_keepalive(&mut self, now: Time) -> bool {
        self.keepalives.take(&KEEPALIVES, now, 1)
    }

    pub(crate) fn take_request(&mut self, now: Time, cost: u64) -> bool {
        self.requests.take(&REQUESTS, now, cost)
    }

    /// Takes a question for the way to an address.
    pub(crate) fn take_ask(&mut self, now: Time) -> bool {
        self.asks.take(&ASKS, now, 1)
    }

    /// Something of this member's was dropped.
    pub(crate) fn over_limit(&mut self, now: Time) -> Overdue {
        self.dropped += 1;
        let mut overdue = Overdue::default();
        if now >= self.tell_at {
            self.tell_at = now + TELL_EVERY;
            overdue.tell = Some((self.dropped - self.told).min(u32::MAX.into()) as u32);
            self.told = self.dropped;
        }
        if now >= self.note_at {
            self.note_at = now + NOTE_EVERY;
            overdue.note = true;
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_member_is_told_at_once_and_then_every_second() {
        let mut meter = Meter::default();
        let told: Vec<_> = (0..30u64)
            .filter_map(|tenth| meter.over_limit(Time::from_millis(100 * tenth + 1)).tell)
            .collect();
        assert_eq!(told, [1, 10, 10]);
        assert!(!meter.over_limit(Time::from_millis(4_000)).note);
        assert!(meter.over_limit(Time::from_millis(5_001)).note);
    }

    #[test]
    fn the_highest_budget_is_one() {
        let budget = Budget { up_packets: u64::MAX, up_bits: u64::MAX, ..Budget::default() };
        let mut meter = UpMeter::new(&budget).nearly_spent(Time::ZERO);
        assert!(meter.take_update(Time::ZERO) && meter.take_bytes(Time::ZERO, MAX_DATAGRAM));
    }

    #[test]
    fn a_receiver_may_be_sent_the_least_of_three() {
        let mut meters = Meters::new(2, 0);
        meters.open(0, Budget::default(), Time::ZERO);
        let found = |meters: &Meters| (meters.down_of(0), meters.down_and_why(0).1);
        let down = |updates, bits| Down { updates, bits };
        assert_eq!(found(&meters), (down(0, 0), Bound::Nothing));
        meters.set_asked(0, down(30, 0));
        assert_eq!(found(&meters), (down(30, 0), Bound::Asked));
        meters.set_path(0, 2_000);
        assert_eq!(found(&meters), (down(30, 2_000), Bound::Path));
        meters.set_budget(
            Time::ZERO,
            0,
            Budget { down_packets: 50, down_bits: 1_000, ..Budget::default() },
        );
        assert_eq!(found(&meters), (down(30, 1_000), Bound::Admitted));
        meters.set_asked(0, down(0, 999));
        assert_eq!(found(&meters), (down(50, 999), Bound::Asked));
        // Whoever opens the port next asks for nothing yet.
        meters.open(0, Budget::default(), Time::ZERO);
        assert_eq!(found(&meters), (down(0, 0), Bound::Nothing));
        assert_eq!(meters.down_and_why(7), (down(0, 0), Bound::Nothing));
    }

    #[test]
    fn what_every_datagram_touches_is_in_one_cache_line() {
        assert_eq!(core::mem::offset_of!(Meter, budget), 64);
    }

    #[test]
    fn the_heaviest_are_found_and_those_who_stop_are_forgotten() {
        let mut meters = Meters::new(100, 0);
        let path = Path::from(SocketAddr::from(([10, 0, 0, 1], 1)));
        let who = |port: u32| Some((Comtree(1), Address::unicast(1, 64 + port as u16), path));
        for port in 0..40 {
            meters.open(port, Budget::default(), Time::ZERO);
        }
        let mut now = Time::ZERO;
        let mut round = |meters: &mut Meters| {
            now = now + SECOND;
            assert!(meters.begin_round(now));
            while let Some(port) = meters.next_of_round(40) {
                meters.look(port, now, || who(port));
            }
            assert!(!meters.begin_round(now));
        };
        for port in 0..40 {
            let sent = 1000 + 100 * (port * 7 % 40);
            assert!(meters.meters[port].take_datagram(Time::ZERO, sent, 3));
        }
        round(&mut meters);
        let bits: Vec<_> = meters.talkers().iter().map(|one| one.bits).collect();
        assert_eq!(bits, (0..10).map(|place| 8 * (4900 - 100 * place)).collect::<Vec<_>>());
        assert!(meters.talkers().iter().all(|one| one.updates == 3 && one.dropped == 0));
        round(&mut meters);
        assert!(meters.talkers().is_empty());
    }
}
