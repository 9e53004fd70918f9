//! What a row sends of a crowd, beside the slow and obvious way, and how it treats single updates.

use super::super::allowance::WINDOW;
use super::*;
use canopy_wire::SAFE_DATAGRAM;

const LEN: u16 = 100;
const TICK: Duration = Duration::from_millis(50);

/// One of the flows of a test.
#[derive(Clone, Copy, Debug)]
struct Sends {
    weight: f32,
    /// Updates a second.
    hz: f64,
    /// When the first comes, as a part of the time between two.
    phase: f64,
}

/// The slow and obvious way: rates of weighted max-min fairness with demands and a floor, updates a second.
fn fair(flows: &[Sends], floor: f64, most: f64) -> Vec<f64> {
    let rates = |level: f64| -> Vec<f64> {
        let rate = |flow: &Sends| flow.hz.min(floor.max(level * f64::from(flow.weight)));
        flows.iter().map(rate).collect()
    };
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..200 {
        let level = (low + high) / 2.0;
        let fits = rates(level).iter().sum::<f64>() <= most;
        *(if fits { &mut low } else { &mut high }) = level;
    }
    rates(low)
}

/// What a row sends of some flows in some seconds: for each flow, when. `jitter` moves updates by a
/// part of the time between two.
fn sent(flows: &[Sends], down: Down, seconds: f64, every: Duration) -> Vec<Vec<f64>> {
    let (mut row, mut allowance) = (Row::default(), Allowance::default());
    let mut arrivals: Vec<(u64, usize)> = Vec::new();
    for (number, flow) in flows.iter().enumerate() {
        let count = (seconds * flow.hz) as u64;
        let at = |update: u64| ((update as f64 + flow.phase) / flow.hz * 1e9) as u64;
        arrivals.extend((0..count).map(|update| (at(update), number)));
    }
    arrivals.sort_unstable();
    let mut times = vec![Vec::new(); flows.len()];
    let (mut next, mut chosen) = (0, Vec::new());
    let ticks = (seconds / every.as_secs_f64()) as u32;
    for tick in 1..=ticks {
        let now = Time::from_nanos((every * tick).as_nanos() as u64);
        while let Some((at, flow)) = arrivals.get(next).filter(|one| one.0 <= now.as_nanos()) {
            let (weight, update) = (flows[*flow].weight, next as u64);
            let order = update + 1;
            let news = News {
                flow: *flow as u32,
                weight,
                level: 0,
                len: LEN,
                update,
                order,
                series: order as u16,
            };
            row.note(Time::from_nanos(*at), &news, || true);
            next += 1;
        }
        allowance.advance(now, every, spare(down), WINDOW);
        chosen.clear();
        row.serve(now, (down, Fairness::default()), &mut allowance, &mut chosen);
        for update in &chosen {
            times[arrivals[*update as usize].1].push(now.as_nanos() as f64 / 1e9);
        }
    }
    times
}

/// The greatest difference of what came of a flow in ten seconds, after the first five.
fn worst(flows: &[Sends], down: Down, every: Duration) -> (f64, f64) {
    let times = sent(flows, down, 25.0, every);
    let most = down.bits as f64 / (8.0 * f64::from(LEN));
    let fair = fair(flows, 0.5, most);
    let (mut worst, mut gap) = (0.0_f64, 0.0_f64);
    for ((times, fair), flow) in times.iter().zip(&fair).zip(flows) {
        for start in 5..=15 {
            let start = f64::from(start);
            let count = times.iter().filter(|at| (start..start + 10.0).contains(*at)).count();
            let off = (count as f64 - 10.0 * fair).abs();
            worst = worst.max(off);
        }
        let gaps = times.windows(2).filter(|two| two[0] > 5.0).map(|two| two[1] - two[0]);
        gap = gap.max(gaps.map(|gap| gap - 1.1 / fair - 1.0 / flow.hz).fold(0.0, f64::max));
    }
    (worst, gap)
}

fn crowd(count: usize, hz: f64) -> Vec<Sends> {
    let weight = |number: usize| 1.0 / (1.0 + number as f32).powi(2);
    (0..count).map(|number| Sends { weight: weight(number), hz, phase: 0.5 }).collect()
}

#[test]
fn what_was_overtaken_on_its_way_does_not_take_the_place_of_newer_state() {
    let mut row = Row::default();
    let mut order = 0;
    let mut note = |millis: u64, series: u16| {
        order += 1;
        let (flow, weight, update) = (1, 1.0, order);
        let news = News { flow, weight, level: 0, len: LEN, update, order, series };
        row.note(Time::from_millis(millis), &news, || true)
    };
    assert_eq!(note(100, 3), Noted::Waits);
    assert_eq!(note(110, u16::MAX), Noted::Overtaken, "numbers wrap");
    assert_eq!(note(110, 4), Noted::Waits, "several of a free flow wait");
    assert_eq!(note(359, 3), Noted::Overtaken);
    assert_eq!(note(360, 3), Noted::Waits, "by then it is a publisher that began anew");
    assert_eq!(note(361, 40_000), Noted::Waits, "and so is this");
}

/// A row at work: one flow of so many updates a second, of which a budget holds so many.
struct OneFlow {
    row: Row,
    allowance: Allowance,
    down: Down,
    updates: u64,
}

impl OneFlow {
    fn new(hz: u64) -> OneFlow {
        let down = Down { bits: 0, updates: hz };
        OneFlow { row: Row::default(), allowance: Allowance::default(), down, updates: 0 }
    }

    /// Something came at this time.
    fn note(&mut self, millis: u64) -> Noted {
        self.note_of(1, millis)
    }

    /// The same of another flow.
    fn note_of(&mut self, flow: FlowId, millis: u64) -> Noted {
        self.updates += 1;
        let (update, order, series) = (self.updates, self.updates, self.updates as u16);
        let news = News { flow, weight: 1.0, level: 0, len: LEN, update, order, series };
        self.row.note(Time::from_millis(millis), &news, || true)
    }

    /// What goes at this time.
    fn serve(&mut self, millis: u64) -> Vec<LogNumber> {
        let (now, mut chosen) = (Time::from_millis(millis), Vec::new());
        self.allowance.advance(now, TICK, spare(self.down), WINDOW);
        let how = (self.down, Fairness::default());
        self.row.serve(now, how, &mut self.allowance, &mut chosen);
        chosen
    }
}

#[test]
fn what_comes_between_two_looks_goes_whole_up_to_eight_where_there_is_room_to_spare() {
    let mut one = OneFlow::new(1000);
    for look in 0..40 {
        let now = 50 * look;
        assert_eq!(one.note(now + 1), Noted::Waits);
        assert_eq!(one.note(now + 2), Noted::Waits);
        let newest = one.updates;
        assert_eq!(one.row.count_waiting(), 2);
        assert_eq!(one.serve(now + 50), [newest - 1, newest], "in their order");
        assert_eq!(one.row.count_waiting(), 0);
    }
    let mut burst = (2001..2009).map(|at| one.note(at));
    assert!(burst.all(|noted| noted == Noted::Waits));
    assert_eq!(one.note(2009), Noted::Replaces([81, NOTHING]), "the oldest of nine");
    assert_eq!(one.serve(2050), (82..90).collect::<Vec<_>>());
    for at in 2051..2054 {
        one.note(at);
    }
    let mut left_out = Vec::new();
    one.row.retain(|_| false, |update| left_out.push(update), |_| panic!("none is urgent"));
    assert_eq!((left_out.as_slice(), one.row.count_waiting()), ([90, 91, 92].as_slice(), 0));
}

/// Several wait, as there was room to spare. Then the budget is a fraction of what all send.
#[test]
fn of_several_that_wait_the_last_two_stay_at_most_where_there_is_none_to_spare_any_more() {
    let mut one = OneFlow::new(1000);
    for look in 0..40 {
        one.note(50 * look + 1);
        one.serve(50 * look + 50);
    }
    for at in 2101..2109 {
        assert_eq!(one.note(at), Noted::Waits);
    }
    let newest = one.updates;
    one.down = Down { bits: 0, updates: 2 };
    one.note_of(2, 2149);
    let chosen = one.serve(2150);
    let mut overdue = Vec::new();
    one.row.take_overdue(&mut overdue);
    assert!((newest - 7..newest - 1).all(|update| overdue.contains(&update)), "{overdue:?}");
    assert_eq!(one.row.count_waiting() + chosen.len() + overdue.len(), 9);
}

/// An update of one flow, with this number in the log and in the order in which they came.
fn of_one_flow(update: LogNumber, order: u64) -> News {
    News { flow: 1, weight: 1.0, level: 0, len: LEN, update, order, series: order as u16 }
}

#[test]
fn two_that_stand_in_the_log_the_other_way_round_do_not_both_wait() {
    let (mut row, now) = (Row::default(), Time::from_millis(10));
    assert_eq!(row.note(now, &of_one_flow(4, 1), || true), Noted::Waits);
    assert_eq!(row.note(now, &of_one_flow(6, 2), || true), Noted::Waits);
    assert_eq!(row.note(now, &of_one_flow(5, 3), || true), Noted::Replaces([6, 4]));
    assert_eq!(row.count_waiting(), 1);
    assert_eq!(row.all_waiting().collect::<Vec<_>>(), [(1, 5, LEN)]);
}

#[test]
fn of_two_that_wait_whichever_is_wanted_stays() {
    for (wanted, unwanted) in [(4, 5), (5, 4)] {
        let (mut row, now) = (Row::default(), Time::from_millis(10));
        row.note(now, &of_one_flow(4, 1), || true);
        row.note(now, &of_one_flow(5, 2), || true);
        let mut left_out = Vec::new();
        let is_wanted = |update: LogNumber| update == wanted;
        row.retain(is_wanted, |update| left_out.push(update), |_| panic!("none is urgent"));
        assert_eq!(left_out, [unwanted]);
        assert_eq!(row.all_waiting().collect::<Vec<_>>(), [(1, wanted, LEN)]);
        assert_eq!(row.note(now, &of_one_flow(6, 3), || true), Noted::Waits);
        assert_eq!(row.count_waiting(), 2);
    }
}

/// Both were due while all could go. Then the budget holds a fraction of it, and whatever goes is the last for long.
#[test]
fn of_two_that_wait_the_newest_goes_where_only_one_is_due_any_more() {
    let mut one = OneFlow::new(1000);
    for look in 0..40 {
        one.note(50 * look + 1);
        one.note_of(2, 50 * look + 2);
        one.serve(50 * look + 50);
    }
    assert_eq!([one.note(2101), one.note(2102)], [Noted::Waits; 2]);
    let (earlier, newest) = (one.updates - 1, one.updates);
    one.down = Down { bits: 0, updates: 2 };
    let mut looks = (43..120).map(|look| {
        one.note_of(2, 50 * look - 1);
        one.serve(50 * look)
    });
    let is_either = |update: &LogNumber| [earlier, newest].contains(update);
    assert_eq!(looks.find_map(|chosen| chosen.into_iter().find(is_either)), Some(newest));
    let mut overdue = Vec::new();
    one.row.take_overdue(&mut overdue);
    assert_eq!(overdue, [earlier]);
}

/// Both were due when the newest came, a moment after the other. Then the flow got half a credit a second.
#[test]
fn of_two_that_wait_the_newest_goes_where_it_would_be_old_after_the_other() {
    let mut one = OneFlow::new(13);
    assert_eq!([one.note(10), one.note(11)], [Noted::Waits; 2]);
    let pair = &mut one.row.pairs[0];
    (pair.rate, pair.demand, pair.credit) = (0.5, 0.89, 1.31);
    assert!(pair.gets_most() && !pair.are_two_due());
    assert!(!pair.has_overdue(311, 2000), "it follows 0.8 s later");
    assert!(pair.has_overdue(1443, 2000), "it would be 2.2 s old");
}

/// It gets four of the twenty updates that it sends.
#[test]
fn of_a_flow_that_gets_a_part_the_newest_waits_alone() {
    let mut one = OneFlow::new(4);
    let mut sent = 0;
    for look in 0..400 {
        one.note(50 * look + 1);
        let waiting = one.row.count_waiting();
        let chosen = one.serve(50 * look + 50);
        if look >= 200 {
            assert_eq!(waiting, 1, "look {look}");
            assert!(chosen.iter().all(|update| *update == one.updates), "{chosen:?}");
            sent += chosen.len();
        }
    }
    assert!((38..=42).contains(&sent), "{sent} in ten seconds");
}

/// What updates cost was learned from short ones. A long one that is then thought to be more than can be
/// saved up goes all the same.
#[test]
fn what_is_thought_to_be_too_dear_goes_once_a_datagram_is_saved_up() {
    let down = Down { bits: 16_000, updates: 0 };
    let (mut row, mut allowance) = (Row::default(), Allowance::default());
    row.learn_cost(1, 4);
    (0..99).for_each(|_| row.learn_cost(1, 4));
    let now = Time::from_millis(10_000);
    let news = News { flow: 1, weight: 1.0, level: 0, len: 1_000, update: 7, order: 1, series: 1 };
    row.note(now, &news, || true);
    allowance.advance(now, TICK, spare(down), WINDOW);
    let mut chosen = Vec::new();
    row.serve(now, (down, Fairness::default()), &mut allowance, &mut chosen);
    assert_eq!(chosen, [7]);
}

#[test]
fn what_urgent_updates_take_is_not_shared_out() {
    let down = Down { bits: 16_000, updates: 0 };
    let (mut row, mut allowance) = (Row::default(), Allowance::default());
    let mut chosen = Vec::new();
    // One of each a tick: the urgent one is what the budget bears in all.
    for number in 1..=100 {
        let now = Time::ZERO + TICK * number as u32;
        row.note_urgent(now, (number, LEN), number);
        let (flow, weight, series) = (1, 1.0, number as u16);
        let (update, order) = (100 + number, number);
        let news = News { flow, weight, level: 0, len: LEN, update, order, series };
        row.note(now, &news, || true);
        allowance.advance(now, TICK, spare(down), WINDOW);
        row.serve(now, (down, Fairness::default()), &mut allowance, &mut chosen);
    }
    assert!((0.9..=1.0).contains(&row.urgent_share), "{}", row.urgent_share);
}

/// An urgent update may owe what it takes beyond what has been saved up, but 100 ms bring no more than the budget holds
/// and a datagram, also where updates take a third more than they are thought to. None waits for ever, and nothing else
/// goes before it.
#[test]
fn urgent_updates_keep_to_the_window_and_to_their_order() {
    let down = Down { bits: 16_000, updates: 0 };
    let most = 200 + SAFE_DATAGRAM as u64;
    let (mut row, mut allowance) = (Row::default(), Allowance::default());
    let lens = [600, 30, 900, 500, 60, 600, 600];
    row.dearness = 1.0 / 3.0;
    for (number, len) in (1..).zip(lens) {
        row.note_urgent(Time::from_millis(1_000), (number, len), number);
    }
    let news = News { flow: 1, weight: 1.0, level: 0, len: 20, update: 100, order: 1, series: 1 };
    row.note(Time::from_millis(1_000), &news, || true);
    let mut sent: Vec<(u64, LogNumber)> = Vec::new();
    for milli in (1_000..4_000).step_by(5) {
        let now = Time::from_millis(milli);
        allowance.advance(now, TICK, spare(down), WINDOW);
        let mut chosen = Vec::new();
        let thought = row.serve(now, (down, Fairness::default()), &mut allowance, &mut chosen);
        allowance.spend(thought / 3);
        sent.extend(chosen.iter().map(|update| (milli, *update)));
    }
    let order: Vec<LogNumber> = sent.iter().map(|(_, update)| *update).collect();
    assert_eq!(order, [1, 2, 3, 4, 5, 6, 7, 100]);
    let len = |update: LogNumber| lens.get(update as usize - 1).copied().unwrap_or(20);
    let within = |from: u64| -> u64 {
        let window = sent.iter().filter(|(at, _)| (from..from + 100).contains(at));
        window.map(|(_, update)| u64::from(len(*update)) * 4 / 3).sum()
    };
    let worst = sent.iter().map(|(at, _)| within(*at)).max().unwrap();
    assert!(worst <= most, "{worst} bytes in 100 ms: {sent:?}");
}

/// All come together, which is the hardest. `tests/relay/thinning.rs` has more, with a whole relay.
#[test]
fn a_crowd_in_step_shares_a_budget_by_weight() {
    for (share, most) in [(0.05, 4.0), (0.25, 2.0), (0.5, 3.5)] {
        let flows = crowd(60, 16.0);
        let bits = (60.0 * 16.0 * 8.0 * f64::from(LEN) * share) as u64;
        let every = TICK / 2;
        let (off, late) = worst(&flows, Down { bits, updates: 0 }, every);
        assert!(off <= most && late <= 0.05, "{share}: {off} updates, {late} s");
    }
}

/// All come at once five times a second, and nearly fill the budget. A part of them goes at once, and the rest in
/// the time until the next come.
#[test]
fn what_comes_in_bunches_and_leaves_between_them_is_not_too_much() {
    let flows: Vec<Sends> = crowd(40, 5.0);
    let bits = (40.0 * 5.0 * 8.0 * f64::from(LEN) * 1.05) as u64;
    let times = sent(&flows, Down { bits, updates: 0 }, 25.0, TICK / 2);
    for (number, times) in times.iter().enumerate() {
        let count = times.iter().filter(|at| (5.0..25.0).contains(*at)).count();
        assert!(count >= 98, "{count} of 100 of flow {number}");
    }
}

/// The floors alone need twice the budget: all flows get the same, one update at a time.
#[test]
fn where_the_floors_do_not_fit_nobody_waits_longer_than_the_others() {
    let flows = crowd(400, 16.0);
    let times = sent(&flows, Down { bits: 0, updates: 100 }, 40.0, TICK / 2);
    for (number, times) in times.iter().enumerate() {
        let gaps = times.windows(2).filter(|two| two[0] > 15.0).map(|two| two[1] - two[0]);
        let longest = gaps.fold(0.0_f64, f64::max);
        assert!((3.0..5.0).contains(&longest), "{longest} s of flow {number}");
    }
}

/// A long update and a short one of a flow wait together: both cost what the long one does.
#[test]
fn what_waits_before_a_short_update_is_not_thought_to_be_short() {
    let mut row = Row::default();
    let long = News { len: 1_100, ..of_one_flow(1, 1) };
    let now = Time::from_millis(10);
    assert_eq!(row.note(now, &long, || true), Noted::Waits);
    assert_eq!(row.note(now, &News { len: 30, ..of_one_flow(2, 2) }, || true), Noted::Waits);
    assert!(row.all_waiting().all(|(_, _, len)| len == 1_100));
    let (down, mut allowance) = (Down { bits: 64_000, updates: 0 }, Allowance::default());
    allowance.advance(Time::from_millis(150), TICK, spare(down), WINDOW);
    let mut chosen = Vec::new();
    row.serve(Time::from_millis(150), (down, Fairness::default()), &mut allowance, &mut chosen);
    assert_eq!(chosen, [1], "the budget holds 800 bytes in 100 ms");
}

/// Everybody is near for a while, and far for a while: a flow that was ahead of its time when its rate fell does not
/// wait longer than the floor for that.
#[test]
fn nobody_goes_below_the_floor_while_a_crowd_walks_about() {
    let (count, look) = (40, Duration::from_micros(25_600));
    for share in [0.05, 0.1, 0.25, 0.5] {
        let down =
            Down { bits: (f64::from(count * 16 * 8 * u32::from(LEN)) * share) as u64, updates: 0 };
        let (mut row, mut allowance) = (Row::default(), Allowance::default());
        let mut sent = vec![0.0; count as usize];
        let (mut order, mut longest) = (0, 0.0_f64);
        let mut chosen = Vec::new();
        for number in 1..=4000 {
            let now = Time::ZERO + look * number;
            let seconds = now.as_nanos() as f64 / 1e9;
            for flow in 0..count {
                let phase = f64::from(flow) * 0.618;
                let before = seconds - look.as_secs_f64();
                if (seconds * 16.0 + phase).floor() == (before * 16.0 + phase).floor() {
                    continue;
                }
                let place = (flow + number / 10) % count;
                let weight = 1.0 / (1.0 + place as f32).powi(2);
                order += 1;
                let (update, series) = (order << 16 | u64::from(flow), order as u16);
                let news = News { flow, weight, level: 0, len: LEN, update, order, series };
                row.note(now, &news, || true);
            }
            allowance.advance(now, TICK, spare(down), WINDOW);
            chosen.clear();
            row.serve(now, (down, Fairness::default()), &mut allowance, &mut chosen);
            for update in &chosen {
                let sent = &mut sent[usize::from(*update as u16)];
                longest = longest.max(seconds - *sent);
                *sent = seconds;
            }
        }
        assert!(longest <= 2.2, "{share}: {longest} s");
    }
}

/// A row of many flows that send alike, and a budget of so many updates a second. Times are milliseconds.
struct Many {
    row: Row,
    allowance: Allowance,
    down: Down,
    window: Duration,
    updates: u64,
    now: u64,
    /// What went: when, and of which flow.
    sent: Vec<(u64, FlowId)>,
    /// When an update came in place of an older one, and of which flow.
    replaced: Vec<(u64, FlowId)>,
}

impl Many {
    /// One update of a flow each 40 ms, and a look each 20 ms.
    const EVERY: u64 = 40;
    const LOOK: u64 = 20;

    fn new(updates: u64) -> Many {
        let (row, allowance) = (Row::default(), Allowance::default());
        let down = Down { bits: 0, updates };
        Many {
            row,
            allowance,
            down,
            window: WINDOW,
            updates: 0,
            now: 0,
            sent: Vec::new(),
            replaced: Vec::new(),
        }
    }

    fn note(&mut self, flow: FlowId, weight: f32) {
        self.updates += 1;
        let order = self.updates;
        let (update, series) = (order << 16 | u64::from(flow), order as u16);
        let news = News { flow, weight, level: 0, len: LEN, update, order, series };
        let noted = self.row.note(Time::from_millis(self.now), &news, || true);
        if let Noted::Replaces(_) = noted {
            self.replaced.push((self.now, flow));
        }
    }

    /// Some flows are there for this long.
    fn pass(&mut self, millis: u64, flows: core::ops::Range<FlowId>) {
        self.pass_weighted(millis, flows, |_| 1.0);
    }

    fn pass_weighted(
        &mut self,
        millis: u64,
        flows: core::ops::Range<FlowId>,
        weight: impl Fn(FlowId) -> f32,
    ) {
        let end = self.now + millis;
        while self.now < end {
            self.now += Many::LOOK;
            let is_due =
                |flow: &FlowId| (self.now + u64::from(*flow) * 20).is_multiple_of(Many::EVERY);
            let due: Vec<FlowId> = flows.clone().filter(is_due).collect();
            due.into_iter().for_each(|flow| self.note(flow, weight(flow)));
            let (now, mut chosen) = (Time::from_millis(self.now), Vec::new());
            self.allowance.advance(now, TICK, spare(self.down), self.window);
            let how = (self.down, Fairness::default());
            self.row.serve(now, how, &mut self.allowance, &mut chosen);
            self.sent.extend(chosen.iter().map(|update| (self.now, *update as u16 as FlowId)));
        }
    }

    fn count(&self, flow: FlowId, (from, to): (u64, u64)) -> usize {
        let is_it = |(at, of): &&(u64, FlowId)| *of == flow && (from..to).contains(at);
        self.sent.iter().filter(is_it).count()
    }
}

#[test]
fn who_sends_no_more_leaves_its_share_to_the_others_at_once() {
    // Each of ten gets four of the 25 that it sends, and then each of two gets 20.
    let mut many = Many::new(40);
    many.pass(10_000, 0..10);
    many.pass(2_000, 0..2);
    for flow in 0..2 {
        assert!((38..=42).contains(&many.count(flow, (0, 10_000))), "four a second");
        let later = many.count(flow, (10_500, 11_500));
        assert!((19..=21).contains(&later), "{later} of 20");
    }
}

#[test]
fn who_comes_into_sight_is_seen_after_its_interval_and_gets_no_more_than_its_share() {
    // Each gets two a second.
    let mut many = Many::new(42);
    many.pass(10_000, 0..20);
    many.pass(4_000, 0..21);
    assert_eq!(many.count(20, (10_000, 10_450)), 0, "its interval is 500 ms");
    assert_eq!(many.count(20, (10_000, 10_600)), 1, "the first");
    let all = many.count(20, (10_000, 14_000));
    assert!((7..=8).contains(&all), "{all} of 8");
}

#[test]
fn those_who_come_together_are_seen_in_turn_and_then_evenly() {
    // A budget of 10 a tick of 40 ms, and a hundred that get 2.5 a second: one in 400 ms.
    let mut many = Many::new(250);
    many.pass(5_000, 0..1);
    many.pass(5_000, 0..100);
    // Those that came together have all been seen within the time that they take.
    assert!((1..100).all(|flow| many.count(flow, (5_000, 5_600)) > 0));
    let at = |from: u64| many.sent.iter().filter(|(at, _)| (from..from + 200).contains(at)).count();
    for from in (7_000..9_800).step_by(200) {
        assert!((38..=60).contains(&at(from)), "{} of 50 from {from} on", at(from));
    }
}

/// Forty send 25 a second each, and seven one or two. The budget holds 30 more. Then the seven send more for 40 ms, for
/// which that makes up in a second: until then some wait, but none for so long that it misses an update.
#[test]
fn what_is_short_for_a_moment_takes_nothing_from_who_gets_all_it_sends() {
    let mut many = Many::new(1_040);
    // Five looks are 100 ms exactly.
    many.window = Duration::from_millis(98);
    let weight = |flow| 1.0 / (1.0 + flow as f32);
    for _ in 0..10 {
        (100..107).for_each(|flow| many.note(flow, 1.0));
        many.pass_weighted(500, 0..40, weight);
    }
    for _ in 0..2 {
        (100..107).for_each(|flow| many.note(flow, 1.0));
        many.pass_weighted(Many::LOOK, 0..40, weight);
    }
    many.pass_weighted(3_960, 0..40, weight);
    many.replaced.retain(|(at, _)| *at > 5_000);
    assert_eq!(many.replaced, []);
    let counts: Vec<usize> = (0..40).map(|flow| many.count(flow, (5_000, 9_000))).collect();
    assert!(counts.iter().all(|count| *count >= 99), "of 100: {counts:?}");
}

#[test]
fn another_weight_counts_from_the_next_update_on() {
    let mut many = Many::new(40);
    many.pass(5_000, 0..10);
    let rate = |many: &Many| many.row.pairs.iter().find(|pair| pair.flow == 3).unwrap().rate;
    let before = rate(&many);
    many.note(3, 2.0);
    assert_eq!(rate(&many), 2.0 * before);
}

#[test]
fn a_crowd_that_comes_into_sight_does_not_push_aside_who_is_near() {
    // Twenty get ten a second of 25, and then five, beside two hundred that get one in two seconds. While these come,
    // nobody near waits longer than three and a half of its new intervals and a look.
    let mut many = Many::new(200);
    let weight = |flow| if flow < 20 { 10.0 } else { 0.1 };
    many.pass_weighted(5_000, 0..20, weight);
    many.pass_weighted(3_000, 0..220, weight);
    for flow in 0..20 {
        let times =
            many.sent.iter().filter(|(at, of)| *of == flow && *at >= 4_800).map(|(at, _)| *at);
        let times: Vec<u64> = times.collect();
        let longest = times.windows(2).map(|two| two[1] - two[0]).max().unwrap();
        assert!(longest <= 720, "{longest} ms of flow {flow}");
    }
}
