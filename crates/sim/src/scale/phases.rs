//! What a world goes through, one after the other, and what each part costs.

use super::config::{Gauge, ScaleConfig, WANTS};
use super::machine::Keys;
use super::row::{Routes, ScaleRow};
use super::world::{Deed, Spent, World};
use canopy_relay::{Counters, Relay};
use std::time::Duration;

/// Links come up within so long.
const LINKS: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(100);
/// Over how long participants do something, and how long what it caused takes to settle.
const SPREAD: Duration = Duration::from_secs(2);
const SETTLE: Duration = Duration::from_secs(1);
/// How long nothing is done, to see what links cost by themselves.
const IDLE: Duration = Duration::from_secs(3);

/// What a part of the run cost, without what links cost by themselves.
struct Cost {
    /// Processor time of all relays.
    cpu: Duration,
    over_links: f64,
    over_access: u64,
    before: Counters,
    after: Counters,
}

impl Cost {
    /// How much a counter has grown.
    fn of(&self, counter: fn(&Counters) -> u64) -> f64 {
        (counter(&self.after) - counter(&self.before)) as f64
    }

    /// Microseconds of processor time for each of so many.
    fn cpu_us(&self, each: f64) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / each.max(1.0)
    }
}

/// Builds a world, lets everyone join, write to somebody, subscribe and publish, and tells what that
/// cost.
///
/// `progress` hears of each part when it begins.
///
/// # Errors
/// What did not come about, or must not be.
pub fn run_scale(
    config: &ScaleConfig,
    gauge: &dyn Gauge,
    progress: &mut dyn FnMut(&str),
) -> Result<ScaleRow, String> {
    progress("participants");
    let keys = Keys::new(config.relays as usize);
    let mut world = World::new(config, &keys, gauge);
    let start = gauge.memory();
    progress("relays and links");
    world.start_relays(&keys);
    let mut waited = Duration::ZERO;
    while !world.is_linked() && waited < LINKS && world.heard.problems.is_empty() {
        world.pass(STEP);
        waited += STEP;
    }
    check(&world, "links that are down", u64::from(!world.is_linked()))?;
    let empty = gauge.memory().saturating_sub(start);
    world.spent = Spent::default();
    world.pass(IDLE);
    let idle = world.spent.clone();

    let everyone = u64::from(world.endpoints());
    progress("joins");
    let join = part(&mut world, Deed::Join, &idle);
    check(&world, "participants that did not join", everyone - u64::from(world.settled()))?;
    progress("first contacts");
    let ask = part(&mut world, Deed::Ask, &idle);
    let routes = ways(&world)?;
    progress("contacts of a few with many");
    let ask_many = part(&mut world, Deed::AskMany, &idle);
    let busy_routes = ways(&world)?;
    progress("subscriptions");
    let subscribe = part(&mut world, Deed::Subscribe, &idle);
    let wants = everyone * WANTS as u64;
    check(&world, "subscriptions missing", wants.saturating_sub(world.heard.subscribed))?;
    progress("updates");
    let publish = part(&mut world, Deed::Publish, &idle);
    let full = gauge.memory().saturating_sub(start);
    let deliveries = judge(&mut world)?;
    let asks = [(ask, routes), (ask_many, busy_routes)];
    let costs = Costs { join, asks, subscribe, publish, idle, deliveries, empty, full };
    Ok(costs.row(&world))
}

/// What all parts of a run cost.
struct Costs {
    join: Cost,
    /// First contacts, and those of a few with many; with the routes that are there then.
    asks: [(Cost, Routes); 2],
    subscribe: Cost,
    publish: Cost,
    idle: Spent,
    deliveries: u64,
    /// Bytes of all relays, before anyone joins and in the end.
    empty: u64,
    full: u64,
}

impl Costs {
    fn row(&self, world: &World<'_>) -> ScaleRow {
        let Costs { join, asks: [(ask, routes), (_, busy)], subscribe, publish, .. } = self;
        let (relays, own) = (world.config.relays, u32::from(world.config.endpoints_per_relay));
        let (each, wants) =
            (f64::from(world.endpoints()), f64::from(world.endpoints()) * WANTS as f64);
        let links = f64::from(relays - 1).max(1.0);
        let largest = |count: fn(&Relay) -> u32| {
            world.machines.iter().map(|machine| count(machine.relay())).max().unwrap_or(0)
        };
        let kib_of_relay = |bytes: u64| bytes as f64 / 1024.0 / f64::from(relays);
        ScaleRow {
            relays,
            endpoints: world.endpoints(),
            core: world.config.core,
            sites: world.tree.sites,
            depth: world.tree.depth(),
            groups: world.groups,
            routes_median: routes.median,
            routes_max: routes.max,
            busy_routes_median: busy.median,
            busy_routes_max: busy.max,
            addresses_median: busy.median + own,
            addresses_max: busy.max + own,
            addresses_planned: world.tree.most_known(own),
            addresses_per_root: f64::from(busy.max + own) / each.sqrt(),
            join_datagrams: join.over_access as f64 / each,
            join_link_datagrams: join.over_links / each,
            join_cpu_us: join.cpu_us(each),
            contact_copies: ask.of(|counters| counters.route_requests) / each,
            contact_replies: ask.of(|counters| counters.route_replies) / each,
            contact_cpu_us: ask.cpu_us(ask.of(|counters| counters.updates_in)),
            subscribe_relays: subscribe.of(|counters| counters.subscription_changes) / wants,
            subscribe_hops: subscribe.of(|counters| counters.subscriptions_asked) / wants,
            subscribe_link_datagrams: subscribe.over_links / wants,
            subscribe_cpu_us: subscribe.cpu_us(wants),
            groups_max: largest(Relay::groups),
            subscriptions_max: largest(Relay::subscriptions),
            update_copies: publish.of(|counters| counters.deliveries_out) / each,
            deliveries: self.deliveries,
            delivery_cpu_us: publish.cpu_us(self.deliveries as f64),
            memory_empty_kib: kib_of_relay(self.empty),
            memory_kib: kib_of_relay(self.full),
            idle_cpu_us: self.idle.cpu.as_secs_f64() * 1e6 / IDLE.as_secs_f64() / links,
        }
    }
}

/// The routes that relays have learned, after everyone was answered.
///
/// # Errors
/// Answers are missing, or a relay knows more than one way to each other site and one to each endpoint of
/// its own.
fn ways(world: &World<'_>) -> Result<Routes, String> {
    let own = u32::from(world.config.endpoints_per_relay);
    check(world, "answers missing", world.heard.questions.abs_diff(world.heard.answers))?;
    let beyond = |number: usize, learned: u32| {
        u64::from(learned.saturating_sub(world.tree.most_learned(number, own)))
    };
    let machines = world.machines.iter().enumerate();
    let beyond = machines.map(|(number, machine)| beyond(number, machine.relay().routes())).sum();
    check(world, "routes beyond one for each site and each endpoint of the own site", beyond)?;
    Ok(Routes::of(world))
}

/// Everyone does something; what it cost.
fn part(world: &mut World<'_>, deed: Deed, idle: &Spent) -> Cost {
    let before = world.counters();
    world.spent = Spent::default();
    world.plan(deed, SPREAD);
    world.pass(SPREAD + SETTLE);
    let seconds = (SPREAD + SETTLE).as_secs_f64() / IDLE.as_secs_f64();
    let Spent { cpu, over_links, over_access } = world.spent.clone();
    Cost {
        cpu: cpu.saturating_sub(idle.cpu.mul_f64(seconds)),
        over_links: (over_links as f64 - idle.over_links as f64 * seconds).max(0.0),
        over_access,
        before,
        after: world.counters(),
    }
}

/// Every update has reached each of its receivers once. Returns how many deliveries those were.
fn judge(world: &mut World<'_>) -> Result<u64, String> {
    let mut deliveries = std::mem::take(&mut world.heard.deliveries);
    let made = deliveries.len() as u64;
    deliveries.sort_unstable();
    deliveries.dedup();
    let twice = made - deliveries.len() as u64;
    check(world, "updates that came twice", twice)?;
    let expected = world.heard.expected;
    check(world, "deliveries missing or too many", expected.abs_diff(made))?;
    Ok(made)
}

fn check(world: &World<'_>, what: &str, wrong: u64) -> Result<(), String> {
    if wrong == 0 && world.heard.problems.is_empty() {
        return Ok(());
    }
    let problems: String = world.heard.problems.iter().map(|one| format!("\n  {one}")).collect();
    let config = &world.config;
    Err(format!(
        "{} relays, core {}, seed {}: {wrong} {what}{problems}",
        config.relays,
        config.core.name(),
        config.seed
    ))
}
