//! A comtree's own budget of what its participants are sent: they share it, and nobody else notices.

use crate::support::thinning::{Say, Stage};
use crate::support::{COMTREE, DOWNLINKS, OTHER_COMTREE, PERIODIC, World, config, with_downlink};
use canopy_relay::{Budget, Budgets, Change, Down, Mode, PathShare, RelayConfig};
use canopy_wire::{Comtree, Downlink, DropReason, Flags, SAFE_DATAGRAM, Time, Weight};
use std::ops::Range;
use std::time::Duration;

const MODES: [Mode; 2] = [Mode::Immediate, PERIODIC];
const SECOND: Duration = Duration::from_secs(1);
/// Publishers of the tests; the viewers come behind them.
const PUBLISHERS: usize = 10;

fn stage(mode: Mode, downlink: Downlink, viewers: usize) -> Stage {
    // What paths bear depends on when each was asked last, and that on whatever else is sent.
    let budgets = Budgets { paths: PathShare::Off, ..Budgets::default() };
    let config = RelayConfig { budgets, ..config(mode) };
    Stage::new(with_downlink(config, downlink), PUBLISHERS + viewers)
}

fn limit(stage: &mut Stage, down: Down) {
    limit_on(stage, COMTREE, down);
}

fn limit_on(stage: &mut Stage, comtree: Comtree, down: Down) {
    let budget = Budget { down_bits: down.bits, down_packets: down.updates, ..Budget::default() };
    let change = Change::SetComtreeBudget { comtree, budget };
    let now = stage.world.now;
    stage.world.relay_mut().apply(now, change).unwrap();
}

/// Every publisher says something twenty times a second.
fn talk(stage: &mut Stage, time: Duration) {
    talk_of(stage, 0..PUBLISHERS, time);
}

fn talk_of(stage: &mut Stage, publishers: Range<usize>, time: Duration) {
    let end = stage.world.now + time;
    while stage.world.now < end {
        for publisher in publishers.clone() {
            stage.say(publisher, Say::to((publisher % PUBLISHERS) as u32));
        }
        stage.pass(Duration::from_millis(50));
    }
}

/// All viewers want all publishers.
fn want_everything(stage: &mut Stage, viewers: Range<usize>) {
    for viewer in viewers {
        (0..PUBLISHERS as u32).for_each(|group| stage.want(viewer, group, 0, Weight::ONE));
    }
    stage.upkeep();
}

fn sum(stage: &Stage, from: Time, to: Time) -> f64 {
    let viewers = PUBLISHERS..stage.bytes.len();
    let bytes: usize = viewers.map(|viewer| stage.bytes_between(viewer, from, to)).sum();
    8.0 * bytes as f64 / to.since(from).as_secs_f64()
}

/// What all viewers together were sent at most in any 100 ms, in bytes.
fn most(stage: &Stage, from: Time) -> usize {
    let viewers = PUBLISHERS..stage.bytes.len();
    let mut sent: Vec<(Time, usize)> =
        viewers.flat_map(|viewer| stage.bytes[viewer].iter().copied()).collect();
    sent.retain(|(at, _)| *at >= from);
    sent.sort_unstable();
    let within = |at: Time| {
        let end = at + Duration::from_millis(100);
        sent.iter().filter(|(time, _)| *time >= at && *time < end).map(|(_, bytes)| bytes).sum()
    };
    sent.iter().map(|(at, _)| within(*at)).max().unwrap_or(0)
}

/// Six viewers that want a different number of publishers each: who wants little gets all of it, and the
/// others get the same of what is left. Nothing of the budget is left unused.
#[test]
fn receivers_of_a_comtree_share_its_budget() {
    for (mode, downlink) in DOWNLINKS.map(|one| MODES.map(|mode| (mode, one))).concat() {
        let mut stage = stage(mode, downlink, 6);
        let wanted = [1, 2, 10, 10, 10, 9];
        for (viewer, wants) in wanted.iter().enumerate() {
            for publisher in 0..*wants {
                stage.want(PUBLISHERS + viewer, publisher, 0, Weight::ONE);
            }
        }
        stage.upkeep();
        let start = stage.world.now;
        talk(&mut stage, 2 * SECOND);
        let each = sum(&stage, start, stage.world.now) / f64::from(wanted.iter().sum::<u32>());
        // A half of what is wanted.
        let bits = (each * 21.0) as u64;
        limit(&mut stage, Down { bits, updates: 0 });
        talk(&mut stage, 3 * SECOND);
        let from = stage.world.now;
        talk(&mut stage, 10 * SECOND);
        let to = stage.world.now;
        let used = sum(&stage, from, to) / bits as f64;
        assert!((0.93..=1.0).contains(&used), "{used}: {mode:?} {downlink:?}");
        let most = most(&stage, from);
        let may = bits as usize / 80 + 2 * SAFE_DATAGRAM;
        assert!(most <= may, "{most} of {may}: {mode:?} {downlink:?}");
        let got = |viewer: usize| {
            let all = stage.got[PUBLISHERS + viewer].iter();
            all.filter(|got| got.at >= from).count() as f64
        };
        assert!(got(0) >= 0.97 * 200.0 && got(1) >= 0.97 * 400.0, "{} {}", got(0), got(1));
        let others = [2, 3, 4, 5].map(got);
        let (least, most) = (others.map(|got| got as u32), others.map(|got| got as u32));
        let (least, most) = (least.iter().min().unwrap(), most.iter().max().unwrap());
        assert!(*least as f64 >= 0.9 * f64::from(*most), "{others:?}: {mode:?} {downlink:?}");
        stage.check_order_of_flows();
    }
}

/// A budget that holds everything changes not a byte, and neither does another comtree's that holds little.
#[test]
fn where_the_budget_holds_everything_bursts_leave_as_without() {
    for (mode, downlink) in DOWNLINKS.map(|one| MODES.map(|mode| (mode, one))).concat() {
        let mut runs = Vec::new();
        for budgets in [[0, 0], [20_000_000, 0], [0, 100_000], [20_000_000, 100_000]] {
            let mut stage = stage(mode, downlink, 4);
            let viewers = PUBLISHERS..PUBLISHERS + 4;
            // As many are on the other comtree.
            for _ in 0..PUBLISHERS + 4 {
                stage.world.add_participant(0, OTHER_COMTREE);
            }
            stage.world.settle();
            let others = viewers.end + PUBLISHERS..2 * viewers.end;
            want_everything(&mut stage, viewers.clone());
            want_everything(&mut stage, others.clone());
            for (comtree, bits) in [COMTREE, OTHER_COMTREE].into_iter().zip(budgets) {
                limit_on(&mut stage, comtree, Down { bits, updates: 0 });
            }
            // Nothing has been saved up when the clock begins.
            stage.pass(SECOND);
            let from = stage.world.now;
            talk_of(&mut stage, 0..2 * PUBLISHERS + 4, 3 * SECOND);
            let got = |viewers: Range<usize>| -> Vec<_> {
                viewers
                    .map(|viewer| (stage.got[viewer].clone(), stage.bytes[viewer].clone()))
                    .collect()
            };
            let is_less = got(others).iter().all(|(got, _)| got.len() < 300);
            assert_eq!(is_less, budgets[1] > 0);
            let since = |bytes: Vec<(Time, usize)>| -> Vec<_> {
                bytes.into_iter().filter(|(at, _)| *at >= from).collect()
            };
            let all = got(viewers).into_iter().map(|(got, bytes)| (got, since(bytes)));
            runs.push(all.collect::<Vec<_>>());
        }
        for run in &runs[1..] {
            assert!(runs[0] == *run, "{mode:?} {downlink:?}");
        }
    }
}

/// Receivers that want the same are sent the same bytes, whatever the budget leaves each of them.
#[test]
fn who_shares_a_budget_shares_bursts() {
    for mode in MODES {
        let mut stage = stage(mode, Downlink::None, 8);
        want_everything(&mut stage, PUBLISHERS..PUBLISHERS + 8);
        limit(&mut stage, Down { bits: 0, updates: 400 });
        talk(&mut stage, 5 * SECOND);
        let from = stage.world.now;
        talk(&mut stage, 10 * SECOND);
        let numbers = |viewer: usize| -> Vec<usize> {
            let all = stage.got[viewer].iter().filter(|got| got.at >= from);
            all.map(|got| got.number).collect()
        };
        let first = numbers(PUBLISHERS);
        assert!((470..=500).contains(&first.len()), "{} of 500: {mode:?}", first.len());
        for other in 1..8 {
            assert_eq!(numbers(PUBLISHERS + other), first, "{mode:?}");
        }
    }
}

/// What one leaves is the others', and whoever wakes has its part at once.
#[test]
fn who_wakes_has_its_part_of_a_comtrees_budget() {
    for mode in MODES {
        let mut stage = stage(mode, Downlink::Member, 2);
        want_everything(&mut stage, PUBLISHERS..PUBLISHERS + 1);
        limit(&mut stage, Down { bits: 0, updates: 100 });
        talk(&mut stage, 5 * SECOND);
        let count = |stage: &Stage, viewer: usize, from: Time| {
            stage.got[viewer].iter().filter(|got| got.at >= from).count()
        };
        let from = stage.world.now;
        talk(&mut stage, 5 * SECOND);
        let alone = count(&stage, PUBLISHERS, from);
        assert!((480..=500).contains(&alone), "{alone} of 500: {mode:?}");
        want_everything(&mut stage, PUBLISHERS + 1..PUBLISHERS + 2);
        let from = stage.world.now;
        talk(&mut stage, 2 * SECOND);
        let woken = count(&stage, PUBLISHERS + 1, from);
        assert!((80..=130).contains(&woken), "{woken} of 100 in the first two seconds: {mode:?}");
        // Without a budget both get everything again.
        limit(&mut stage, Down::NONE);
        talk(&mut stage, 3 * SECOND);
        let from = stage.world.now;
        talk(&mut stage, SECOND);
        for viewer in [PUBLISHERS, PUBLISHERS + 1] {
            assert_eq!(count(&stage, viewer, from), 200, "{mode:?}");
        }
    }
}

/// A participant's own budget is held beside its comtree's.
#[test]
fn a_members_own_budget_counts_too() {
    let mut stage = stage(PERIODIC, Downlink::Member, 3);
    want_everything(&mut stage, PUBLISHERS..PUBLISHERS + 3);
    limit(&mut stage, Down { bits: 0, updates: 200 });
    stage.limit(PUBLISHERS, 0, 20);
    talk(&mut stage, 5 * SECOND);
    let from = stage.world.now;
    talk(&mut stage, 10 * SECOND);
    let got = [0, 1, 2]
        .map(|viewer| stage.got[PUBLISHERS + viewer].iter().filter(|got| got.at >= from).count());
    assert!((180..=205).contains(&got[0]), "{got:?}");
    assert!((850..=900).contains(&got[1]) && (850..=900).contains(&got[2]), "{got:?}");
}

/// Two data threads of one relay, and what the participants of each send and are sent within a comtree's budget.
/// Participants 0 and 1, who publish, are on the threads of these numbers.
struct Threads {
    world: World,
}

impl Threads {
    fn new(mode: Mode, budget: Budget) -> Threads {
        let budgets = Budgets { paths: PathShare::Off, ..Budgets::default() };
        let config = RelayConfig { budgets, ..config(mode) };
        let mut world = World::with_threads(config, 2);
        for thread in [0, 1] {
            let number = world.join(thread);
            assert_eq!(world.thread_of(number), thread);
        }
        for thread in &mut world.threads {
            let change = Change::SetComtreeBudget { comtree: COMTREE, budget };
            thread.apply(world.now, change).unwrap();
        }
        Threads { world }
    }

    /// Each participant says something to so many groups of its own, every 50 ms.
    fn talk(&mut self, times: [usize; 2], time: Duration) {
        let end = self.world.now + time;
        while self.world.now < end {
            for (number, times) in times.into_iter().enumerate() {
                for group in 0..times as u32 {
                    self.world.publish(number, 1000 * number as u32 + group, 0, Flags(0), b"x");
                }
            }
            // Threads look at what waits every few milliseconds.
            (0..25).for_each(|_| self.world.pass(Duration::from_millis(2)));
        }
    }

    /// What each thread let in since it was last asked.
    fn let_in(&self, before: [u64; 2]) -> [u64; 2] {
        [0, 1].map(|thread| self.world.threads[thread].counters().updates_in - before[thread])
    }

    fn sent(&self, before: [u64; 2]) -> [u64; 2] {
        [0, 1].map(|thread| self.world.threads[thread].counters().deliveries_out - before[thread])
    }
}

/// What the participants of all data threads send together is no more than the budget, and all of it may come on any
/// thread.
#[test]
fn data_threads_share_what_a_comtree_may_send() {
    let mut threads =
        Threads::new(Mode::Immediate, Budget { up_packets: 1000, ..Budget::default() });
    // 2,000 and 100 a second; then as many of both; and then of one only.
    for (times, expected) in [
        ([100, 5], [870..=900, 100..=100]),
        ([100, 100], [485..=510, 485..=510]),
        ([0, 100], [0..=0, 980..=1000]),
    ] {
        threads.talk(times, 6 * SECOND);
        let before = threads.let_in([0, 0]);
        threads.talk(times, 5 * SECOND);
        let came = threads.let_in(before).map(|came| came / 5);
        assert!(came.iter().sum::<u64>() <= 1_010, "{times:?}: {came:?}");
        let is_as_expected =
            came.iter().zip(&expected).all(|(came, expected)| expected.contains(came));
        assert!(is_as_expected, "{times:?}: {came:?} of {expected:?}");
    }
    assert!(threads.world.dropped(DropReason::ComtreeOverBudget) > 0);
}

/// A world that says all at once, once a second, loses nothing of it on whichever thread, if the budget holds it.
#[test]
fn what_comes_at_once_is_let_in_on_any_data_thread() {
    let mut threads =
        Threads::new(Mode::Immediate, Budget { up_packets: 1000, ..Budget::default() });
    for second in 0..6 {
        (0..900).for_each(|_| threads.world.publish(1, 7, 0, Flags(0), b"x"));
        threads.talk([0, 0], SECOND);
        assert_eq!(threads.let_in([0, 0]), [0, 900 * (second + 1)]);
    }
}

/// So is what they are sent: whoever wants little gets all of it, on whatever thread.
#[test]
fn data_threads_share_what_a_comtree_may_be_sent() {
    for mode in MODES {
        let budget = Budget { down_packets: 300, ..Budget::default() };
        let mut threads = Threads::new(mode, budget);
        // Those of the first thread want 400 updates a second, and those of the other 100, and then 300.
        let all: Vec<usize> =
            (0..4).map(|viewer| threads.world.join(usize::from(viewer > 1))).collect();
        let want = |threads: &mut Threads, viewer: usize, groups: Range<u32>| {
            groups.for_each(|group| threads.world.subscribe(all[viewer], group, 0));
        };
        (0..2).for_each(|one| want(&mut threads, one, 0..10));
        want(&mut threads, 2, 1000..1005);
        let expected = [(false, [180..=205, 95..=100]), (true, [135..=155, 135..=155])];
        for (wakes, expected) in expected {
            if wakes {
                want(&mut threads, 3, 0..10);
            }
            threads.talk([10, 5], 4 * SECOND);
            let before = threads.sent([0, 0]);
            threads.talk([10, 5], 5 * SECOND);
            let sent = threads.sent(before).map(|sent| sent / 5);
            assert!(sent.iter().sum::<u64>() <= 305, "{mode:?}: {sent:?}");
            let is_as_expected =
                sent.iter().zip(&expected).all(|(sent, expected)| expected.contains(sent));
            assert!(is_as_expected, "{mode:?}: {sent:?} of {expected:?}");
        }
    }
}

/// Whoever wants the same as many others gets it beside a thread that wants all: what it takes to send each of them
/// something at once is more than the thread may save up.
#[test]
fn many_who_want_the_same_get_it_beside_a_hungry_data_thread() {
    for mode in MODES {
        let budget = Budget { down_packets: 300, ..Budget::default() };
        let mut threads = Threads::new(mode, budget);
        let hungry = [threads.world.join(0), threads.world.join(0)];
        for (viewer, group) in hungry.into_iter().flat_map(|one| (0..20).map(move |of| (one, of))) {
            threads.world.subscribe(viewer, group, 0);
        }
        threads.talk([20, 0], 2 * SECOND);
        let alike: Vec<usize> = (0..30).map(|_| threads.world.join(1)).collect();
        alike.iter().for_each(|viewer| threads.world.subscribe(*viewer, 1000, 0));
        let mut before = [0, 0];
        for half in 0..20 {
            if half == 6 {
                before = threads.sent([0, 0]);
            }
            threads.world.publish(1, 1000, 0, Flags(0), b"x");
            threads.talk([20, 0], SECOND / 2);
        }
        // Each of them two a second, which is a fifth of all that is sent.
        let [others, same] = threads.sent(before);
        assert!((400..=420).contains(&same), "{mode:?}: {same}");
        assert!((1_400..=1_700).contains(&others), "{mode:?}: {others}");
    }
}
