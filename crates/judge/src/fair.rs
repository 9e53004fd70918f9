//! What would be fair, were updates a fluid: the reference that thinning is judged by. Slow and
//! obvious; it knows nothing of how a relay does it.
//!
//! A receiver's budget is shared among its flows by weight, such that no flow gets more than was sent
//! of it, what one flow leaves goes to the others, and none gets less than its floor (weighted max-min
//! with demands; Meru §4.3).

use canopy_wire::Time;
use core::time::Duration;

/// A receiver's budget. 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// Bits a second.
    pub bits: f64,
    /// Updates a second.
    pub updates: f64,
}

impl Capacity {
    /// The part of a second of this budget that an update of so many bytes takes.
    pub fn cost(&self, bytes: f64) -> f64 {
        let part = |of: f64, limit: f64| if limit > 0.0 { of / limit } else { 0.0 };
        part(8.0 * bytes, self.bits).max(part(1.0, self.updates))
    }
}

/// A flow that a receiver wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// How much it matters beside the others; finite and more than 0.
    pub weight: f64,
    /// Updates a second that are sent of it.
    pub demand: f64,
    /// Updates a second that it gets at least, if so many are sent.
    pub floor: f64,
    /// The [cost](Capacity::cost) of an update, seconds.
    pub cost: f64,
}

impl Flow {
    fn floor(&self) -> f64 {
        self.floor.min(self.demand)
    }

    /// The rate at a level of water: r = min(demand, max(floor, λ·w)).
    fn rate_at(&self, level: f64) -> f64 {
        (level * self.weight).max(self.floor).min(self.demand)
    }
}

/// Halvings of the interval that the level is in: more than a double tells apart, over twelve decades.
const HALVINGS: usize = 120;

/// The fair rate of each flow, updates a second: min(demand, max(floor, λ·w)) with the largest λ at which
/// all rates together cost no more than a second a second. If the floors alone cost more, all are scaled
/// down alike.
pub fn fair_rates(flows: &[Flow]) -> Vec<f64> {
    let cost = |rate: &dyn Fn(&Flow) -> f64| -> f64 {
        flows.iter().map(|flow| rate(flow) * flow.cost).sum()
    };
    if cost(&|flow| flow.demand) <= 1.0 {
        return flows.iter().map(|flow| flow.demand).collect();
    }
    let floors = cost(&Flow::floor);
    if floors >= 1.0 {
        return flows.iter().map(|flow| flow.floor() / floors).collect();
    }
    // At the highest level every flow has its demand, which is too much.
    let highest = |most: f64, flow: &Flow| most.max(flow.demand / flow.weight);
    let (mut low, mut high) = (0.0, flows.iter().fold(0.0, highest));
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if cost(&|flow| flow.rate_at(middle)) <= 1.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    flows.iter().map(|flow| flow.rate_at(low)).collect()
}

/// The fair shares of one receiver as time passes: flows come and go, weights and costs change, and of
/// each update that is sent it says which part a fluid would bring.
#[derive(Clone, Debug, Default)]
pub struct Fluid {
    flows: Vec<Option<Flow>>,
    rates: Vec<f64>,
    is_settled: bool,
}

impl Fluid {
    /// For so many flows at most, none of which is there yet.
    pub fn new(flows: usize) -> Fluid {
        Fluid { flows: vec![None; flows], rates: vec![0.0; flows], is_settled: true }
    }

    /// A flow is there from now on, or is another; or is there no more. A number beyond those that it was
    /// made for is nobody's.
    pub fn set(&mut self, number: usize, flow: Option<Flow>) {
        if let Some(place) = self.flows.get_mut(number).filter(|place| **place != flow) {
            *place = flow;
            self.is_settled = false;
        }
    }

    /// The rate that is fair for a flow now, updates a second; 0 if it is not there.
    pub fn rate(&mut self, number: usize) -> f64 {
        self.settle();
        self.rates.get(number).copied().unwrap_or(0.0)
    }

    /// The part of an update of this flow that a fluid would bring now, from 0 to 1. The sum of these over
    /// the updates of a window is the fluid count of the flow in that window.
    pub fn share(&mut self, number: usize) -> f64 {
        let rate = self.rate(number);
        let flow = self.flows.get(number).copied().flatten();
        flow.map_or(0.0, |flow| if flow.demand > 0.0 { rate / flow.demand } else { 0.0 })
    }

    fn settle(&mut self) {
        if self.is_settled {
            return;
        }
        let present: Vec<Flow> = self.flows.iter().flatten().copied().collect();
        let mut fair = fair_rates(&present).into_iter();
        for (flow, rate) in self.flows.iter().zip(&mut self.rates) {
            *rate = flow.and_then(|_| fair.next()).unwrap_or(0.0);
        }
        self.is_settled = true;
    }
}

/// One update of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// When it was published.
    pub at: Time,
    /// The part of it that was [fair](Fluid::share).
    pub share: f64,
    /// Whether it came.
    pub came: bool,
}

impl Sent {
    fn error(&self) -> f64 {
        f64::from(u8::from(self.came)) - self.share
    }
}

/// By how many updates a flow was ahead of its fluid count or behind, at most, in any window of this
/// length that lies wholly between its first update and its last. The updates are in order of time.
/// `None` if the flow was not there for so long.
pub fn worst_error(updates: &[Sent], window: Duration) -> Option<f64> {
    let last = updates.last()?.at;
    let (mut worst, mut sum, mut end) = (None::<f64>, 0.0, 0);
    for first in updates {
        let until = first.at + window;
        if until > last {
            break;
        }
        while let Some(next) = updates.get(end).filter(|next| next.at < until) {
            sum += next.error();
            end += 1;
        }
        worst = Some(worst.unwrap_or(0.0).max(f64::abs(sum)));
        sum -= first.error();
    }
    worst
}

/// Jain's index of what was delivered, each by what was fair: 1 if all got the same part of their fair
/// share, 1/n if one of n got everything. Who has no fair share is left out; `None` if nobody is left or
/// nothing was delivered.
pub fn weighted_jain(delivered_and_fair: impl IntoIterator<Item = (f64, f64)>) -> Option<f64> {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for (delivered, fair) in delivered_and_fair {
        if fair > 0.0 {
            let part = delivered / fair;
            count += 1.0;
            sum += part;
            squares += part * part;
        }
    }
    (squares > 0.0).then(|| sum * sum / (count * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Flow = Flow { weight: 1.0, demand: 10.0, floor: 0.0, cost: 0.1 };

    fn assert_close(rates: &[f64], expected: &[f64]) {
        assert_eq!(rates.len(), expected.len());
        for (rate, expected) in rates.iter().zip(expected) {
            assert!((rate - expected).abs() < 1e-9, "{rates:?} are not {expected:?}");
        }
    }

    #[test]
    fn weights_share_what_demands_leave_and_floors_hold() {
        let flow = |weight, demand, floor| Flow { weight, demand, floor, ..PLAIN };
        // Ten updates a second in all.
        assert_close(&fair_rates(&[flow(1.0, 10.0, 0.0), flow(4.0, 10.0, 0.0)]), &[2.0, 8.0]);
        let second_wants_little = [flow(1.0, 10.0, 0.0), flow(4.0, 3.0, 0.0)];
        assert_close(&fair_rates(&second_wants_little), &[7.0, 3.0]);
        let first_has_a_floor = [flow(1.0, 10.0, 4.0), flow(4.0, 10.0, 0.0)];
        assert_close(&fair_rates(&first_has_a_floor), &[4.0, 6.0]);
        assert_close(&fair_rates(&[flow(1.0, 2.0, 4.0), flow(4.0, 8.0, 0.0)]), &[2.0, 8.0]);
        let floors_alone_are_too_much = [flow(1.0, 20.0, 15.0), flow(4.0, 5.0, 9.0)];
        assert_close(&fair_rates(&floors_alone_are_too_much), &[7.5, 2.5]);
        assert_close(&fair_rates(&[]), &[]);
    }

    #[test]
    fn an_update_costs_what_is_scarcer_of_bits_and_updates() {
        let capacity = Capacity { bits: 8000.0, updates: 50.0 };
        assert_eq!((capacity.cost(100.0), capacity.cost(10.0)), (0.1, 0.02));
        assert_eq!(Capacity::default().cost(1000.0), 0.0);
        let free = Flow { cost: 0.0, ..PLAIN };
        assert_close(&fair_rates(&[free, free]), &[10.0, 10.0]);
    }

    #[test]
    fn shares_follow_who_is_there() {
        let mut fluid = Fluid::new(2);
        assert_eq!((fluid.rate(0), fluid.share(0), fluid.share(7)), (0.0, 0.0, 0.0));
        fluid.set(0, Some(Flow { demand: 20.0, ..PLAIN }));
        assert_close(&[fluid.rate(0), fluid.share(0)], &[10.0, 0.5]);
        fluid.set(1, Some(Flow { weight: 3.0, ..PLAIN }));
        assert_close(&[fluid.share(0), fluid.share(1)], &[2.5 / 20.0, 0.75]);
        fluid.set(0, None);
        assert_close(&[fluid.share(0), fluid.share(1)], &[0.0, 1.0]);
    }

    fn sent(seconds: u64, share: f64, came: impl Fn(u64) -> bool) -> Vec<Sent> {
        let one =
            |number: u64| Sent { at: Time::from_millis(100 * number), share, came: came(number) };
        (0..10 * seconds + 1).map(one).collect()
    }

    #[test]
    fn the_worst_window_is_found_wherever_it_is() {
        let window = Duration::from_secs(10);
        let even = worst_error(&sent(30, 0.5, |number| number % 2 == 0), window).unwrap();
        assert!(even < 1e-9, "{even}");
        let lacks_three = |number| number % 2 == 0 && !matches!(number, 150 | 170 | 190);
        let gap = worst_error(&sent(30, 0.5, lacks_three), window).unwrap();
        assert!((gap - 3.0).abs() < 1e-9, "{gap}");
        assert_eq!(worst_error(&sent(9, 0.5, |_| true), window), None, "it was not there so long");
        assert_eq!(worst_error(&[], window), None);
    }

    #[test]
    fn jains_index_is_one_if_all_get_alike_of_what_is_theirs() {
        let jain = |pairs: &[(f64, f64)]| weighted_jain(pairs.iter().copied());
        assert_eq!(jain(&[(1.0, 2.0), (50.0, 100.0)]), Some(1.0));
        assert_eq!(jain(&[(7.0, 1.0), (0.0, 1.0), (0.0, 5.0), (0.0, 1.0)]), Some(0.25));
        assert_eq!(jain(&[(1.0, 1.0), (9.0, 0.0)]), Some(1.0), "nothing was fair for the second");
        assert_eq!((jain(&[]), jain(&[(0.0, 1.0)])), (None, None));
    }
}
