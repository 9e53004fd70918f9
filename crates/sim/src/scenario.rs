//! Everything that a seed decides before the first datagram.

use crate::config::{FLOODED_BELOW, SimConfig};
use crate::flood::{Floods, Setting};
use crate::network::LinkModel;
use crate::sabotage::Sabotage;
use canopy_judge::Rules;
use canopy_relay::{Budget, Budgets, DATA_WORDS, Mode, TableLimits};
use canopy_session::{PacketsPerKey, SessionLimits};
use canopy_wire::{Downlink, MAX_DATAGRAM, SAFE_DATAGRAM, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;
use std::time::Duration;

/// What the network is like in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Clean,
    Lossy,
    Reordering,
    Duplicating,
    Narrow,
    Corrupting,
    /// A little of everything.
    Storm,
}

/// Which of the relay's tables are too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fullness {
    None,
    Sessions,
    Subscriptions,
}

/// The relay's restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    pub(crate) stop_at: Time,
    /// How long it drains before it stops; zero for not at all.
    pub(crate) drain: Duration,
    pub(crate) down: Duration,
}

/// The world's geometry and what participants do in it.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// Cells on a side of the square.
    pub(crate) side: u32,
    /// Cells per second.
    pub(crate) speed: f64,
    /// Cells around one's own that are subscribed to.
    pub(crate) radius: i64,
    /// Milliseconds between updates of one participant.
    pub(crate) publish_ms: Range<u64>,
    /// The share of publishes that are a burst of updates.
    pub(crate) burst: f64,
    /// The share of publishes that are one bundle of updates.
    pub(crate) bundle: f64,
    /// The share of updates that ask for their echo.
    pub(crate) echo: f64,
    /// The share of updates that go to one participant.
    pub(crate) unicast: f64,
    /// The longest payload.
    pub(crate) longest: usize,
    /// Milliseconds between departures and rebinds of one participant; `None` if they stay.
    pub(crate) churn_ms: Option<Range<u64>>,
    /// The share of participants who, connected, try what is not allowed.
    pub(crate) insiders: f64,
}

/// All that is fixed about a run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) participants: usize,
    pub(crate) comtrees: u32,
    pub(crate) habits: Habits,
    pub(crate) weather: Weather,
    /// Each participant's links, up and down.
    pub(crate) links: Vec<[LinkModel; 2]>,
    /// The longest datagram in bytes that each participant's path takes.
    pub(crate) paths_take: Vec<u16>,
    /// The longest that the relay's own network takes.
    pub(crate) relay_takes: u16,
    /// How what the relay sends to its participants is protected.
    pub(crate) downlink: Downlink,
    /// How many packets a key of a session seals.
    pub(crate) packets_per_key: PacketsPerKey,
    pub(crate) mode: Mode,
    pub(crate) threads: u16,
    pub(crate) max_sessions: u32,
    pub(crate) limits: SessionLimits,
    pub(crate) tables: TableLimits,
    /// Copies that the network makes may come this much later than the first.
    pub(crate) late_copies: Duration,
    /// Words of eight bytes that each log holds in which a data thread passes updates to the others.
    pub(crate) data_log_words: usize,
    /// Datagrams that a data thread's socket holds at most while it is not read.
    pub(crate) receive_queue: usize,
    /// The share of sends that the relay's system refuses.
    pub(crate) send_failures: f64,
    /// The share of turns in which the socket takes nothing for a while, and how long at most.
    pub(crate) stalls: f64,
    pub(crate) stall: Duration,
    /// What one turn of a data thread takes; datagrams that arrive meanwhile wait for the next.
    pub(crate) turn: Duration,
    /// How long a data thread takes to wake when another has passed or told it something.
    pub(crate) wake_delay: Duration,
    pub(crate) restart: Option<Restart>,
    pub(crate) attack_every: Option<Duration>,
    /// From here on nothing is broken any more.
    pub(crate) calm_from: Time,
    /// From here on nothing is published any more.
    pub(crate) quiet_from: Time,
    pub(crate) end: Time,
    /// From how many receivers on the relay sends all the same bytes.
    pub(crate) smallest_set: Option<u32>,
    /// Whether the relay lets nobody in without a token.
    pub(crate) asks_for_tokens: bool,
    /// By participant: what it may be sent, if that is limited.
    pub(crate) budgets: Vec<Option<Budget>>,
    /// Whether the relay asks how much paths bear.
    pub(crate) asks_paths: bool,
    /// Whether there is a gateway whose ip:port participants share.
    pub(crate) shares_ip_port: bool,
    /// Who sends far beyond its limits, and what those are.
    pub(crate) floods: Option<Floods>,
}

/// How long nothing new happens at the end, so that all that is on its way arrives.
const QUIET: Duration = Duration::from_secs(3);
/// How long an update waits at most for who cannot be sent everything, because of a budget: those are drawn
/// such that all that can wait is sent in less. What waits because of a path may come later: until then it
/// counts as left out.
const WAITS: Duration = Duration::from_millis(4500);
/// The least that the relay believes a path to bear, in bits a second.
const SLOWEST_PATH: u64 = 16_000;
/// From here on what delays differ by can look like a queue.
const NOISY: Duration = Duration::from_millis(50);
/// What delays differ by at most where no path may seem to be narrow.
const STEADY: Duration = Duration::from_millis(5);
/// In which time a budget holds an update of every flow.
const ALL_FLOWS: u64 = 2;
/// Between the end of all patience and the beginning of the quiet.
const SLACK: Duration = Duration::from_secs(2);
/// The latest that a copy comes after the first.
const LATEST_COPY: Duration = Duration::from_secs(15);
/// Datagrams that a large receive buffer holds.
const ROOMY: usize = 1 << 16;
/// Words of a log between data threads that overflows.
const SMALL_DATA_LOG: Range<usize> = 256..300;
/// Tables that hold all that is wanted.
const ROOMY_TABLES: TableLimits = TableLimits {
    max_routes: 1 << 12,
    max_groups: 4096,
    max_subscriptions: 1 << 16,
    max_subscriptions_per_participant: 1024,
    max_new_groups_per_participant: 1024,
    max_flow_pairs: 1 << 16,
};
/// From so many participants on they stand in one place and say little, so that one flush has more
/// sends than a batch holds.
const THRONG: usize = FLOODED_BELOW as usize;
/// How long what is lost in a row takes to be sent, or what comes late to be overtaken, where nobody moves.
const LOST_IN_A_ROW: Duration = Duration::from_millis(300);
/// How many updates a burst has as a rule, and how many two bursts in one gap have at most.
const MEAN_BURST: f64 = 15.0;
const GAP_BURSTS: u64 = 60;
/// Packets that are sealed beside updates in a gap: signs of life, subscriptions and what asks again.
const GAP_SLACK: u64 = 14;
/// Expiry is not exact.
const EXPIRY_SLACK: Duration = Duration::from_millis(300);

impl Scenario {
    pub(crate) fn draw(config: &SimConfig) -> Scenario {
        let rng = &mut stream(config.seed, Stream::Scenario);
        let weather = draw_weather(rng);
        let is_crowd = rng.random_bool(0.1);
        let is_throng = config.participants.is_some_and(|count| count as usize >= THRONG);
        let drawn = if is_crowd { rng.random_range(60..140) } else { rng.random_range(4..36) };
        let participants = config.participants.unwrap_or(drawn).max(1) as usize;
        let limits = draw_limits(weather, rng);
        let fullness = draw_fullness(rng);
        // What came to the scenarios later has a stream of its own: older seeds stay what they are.
        let more = &mut stream(config.seed, Stream::More);
        let threads = [1, 1, 1, 1, 1, 1, 2, 2, 3, 4][rng.random_range(0..10)];
        let end = Time::from_millis(u64::from(config.seconds.max(2)) * 1000);
        let calm = (recovery(weather, &limits) + QUIET + SLACK).min(end.since(Time::ZERO) / 2);
        let calm_from = end - calm;
        let comtrees = if rng.random_bool(0.4) && !is_throng { 2 } else { 1 };
        let mut habits = draw_habits(is_crowd, fullness, rng);
        if is_throng {
            // A third of them speak in a run, each once or twice.
            (habits.side, habits.publish_ms, habits.churn_ms) = (1, 3_000..20_000, None);
        }
        let budgets = draw_budgets(participants, &habits, config, weather);
        let mut scenario = Scenario {
            participants,
            asks_paths: asks_paths(&budgets, config),
            budgets,
            asks_for_tokens: draws_tokens(config),
            late_copies: if more.random_bool(0.5) { LATEST_COPY } else { Duration::ZERO },
            receive_queue: if more.random_bool(0.25) { more.random_range(2..8) } else { ROOMY },
            send_failures: draw_some(more, 0.001..0.03),
            stalls: draw_some(more, 0.001..0.02),
            stall: Duration::from_millis(more.random_range(2..60)),
            relay_takes: draw_datagram(more),
            // A fault between the relay and the network does not get past a seal, as a rule.
            downlink: match config.sabotage {
                Some(sabotage) if sabotage != Sabotage::CountAgain => Downlink::None,
                _ => Downlink::ALL[more.random_range(0..Downlink::ALL.len())],
            },
            paths_take: (0..participants).map(|_| draw_datagram(more)).collect(),
            comtrees,
            habits,
            weather,
            links: (0..participants).map(|_| draw_links(weather, rng)).collect(),
            packets_per_key: PacketsPerKey::PROTOCOL,
            mode: draw_mode(rng),
            threads,
            max_sessions: draw_max_sessions(participants as u32, fullness, rng),
            limits,
            tables: draw_tables(participants as u32, fullness, rng),
            turn: Duration::from_micros(rng.random_range(20..500)),
            wake_delay: Duration::from_micros(rng.random_range(5..200)),
            restart: draw_restart(calm_from, rng),
            attack_every: rng
                .random_bool(0.5)
                .then(|| Duration::from_millis(rng.random_range(4..40))),
            calm_from,
            quiet_from: end - (QUIET + WAITS).min(calm / 2),
            end,
            smallest_set: rng.random_bool(0.4).then(|| rng.random_range(2..10)),
            data_log_words: DATA_WORDS,
            shares_ip_port: false,
            floods: None,
        };
        scenario.draw_gateway(config);
        scenario.draw_floods(config);
        scenario.draw_slow_threads(config);
        scenario.draw_short_keys(config);
        scenario.end = end + scenario.slow_paths();
        scenario
    }

    /// In some scenarios there is a gateway, where the relay lets sessions share an ip:port.
    fn draw_gateway(&mut self, config: &SimConfig) {
        let is_drawn = stream(config.seed, Stream::Gateway).random_bool(0.6);
        self.shares_ip_port = is_drawn && self.downlink == Downlink::Member;
    }

    /// In some scenarios there are floods, and the relay takes its time for each datagram.
    fn draw_floods(&mut self, config: &SimConfig) {
        let rng = &mut stream(config.seed, Stream::Floods);
        let is_drawn = rng.random_bool(0.25) && config.sabotage.is_none();
        let sabotage = config.sabotage.filter(|one| one.is_of_floods());
        // Nobody can say whose a datagram is in which a bit was flipped.
        let may_flood = self.weather != Weather::Corrupting && self.participants < THRONG;
        if !may_flood || (sabotage.is_none() && !config.floods.unwrap_or(is_drawn)) {
            return;
        }
        let setting = Setting {
            sabotage,
            lets_in: self.max_sessions as usize > self.participants && !self.asks_for_tokens,
            calm_from: self.calm_from,
            publish_ms: self.habits.publish_ms.start,
            longest: self.habits.longest,
            held_back: self.longest_way(0) + self.longest_hold(),
        };
        let comtrees = self.comtrees + 1;
        // What insiders hoard would have to fit as well.
        let leaves_room = self.tables == ROOMY_TABLES && self.habits.insiders == 0.0;
        let floods = self.floods.insert(Floods::draw(&setting, rng));
        if leaves_room {
            let most = self.habits.side.pow(2) + rng.random_range(1..10);
            // Half of the room is dealt out to all comtrees.
            self.tables.max_groups = most * comtrees * 2;
            floods.leaves_room = true;
        }
        self.receive_queue = floods.receive_queue;
        let up = floods.budgets.member;
        for budget in self.budgets.iter_mut().flatten() {
            (budget.up_packets, budget.up_bits) = (up.up_packets, up.up_bits);
        }
    }

    /// In some scenarios the logs between data threads hold a few updates only, and a thread takes long to
    /// wake: then it loses some. It is so only where the oracle can tell such a loss from one that a budget
    /// explains, or a path that seems to be narrow, and where no fault is tried out.
    fn draw_slow_threads(&mut self, config: &SimConfig) {
        let rng = &mut stream(config.seed, Stream::Threads);
        let is_drawn = rng.random_bool(0.8);
        let words = rng.random_range(SMALL_DATA_LOG);
        let wake_delay = Duration::from_millis(rng.random_range(20..120));
        let takes_all = matches!(self.weather, Weather::Clean | Weather::Reordering)
            && self.receive_queue == ROOMY
            && self.send_failures == 0.0
            && self.budgets.iter().all(Option::is_none)
            && self.floods.is_none();
        if is_drawn && takes_all && config.sabotage.is_none() {
            (self.data_log_words, self.wake_delay) = (words, wake_delay);
            for [_, down] in &mut self.links {
                (down.jitter, down.detour) = (down.jitter.min(STEADY), down.detour.min(STEADY));
            }
        }
    }

    /// In some scenarios a key seals few packets. It is no fewer than twice what may come late or be missed
    /// in a row, which is most where a participant moves and is sent to where it was. Only a second copy may
    /// come later, and so be of no use.
    fn draw_short_keys(&mut self, config: &SimConfig) {
        let rng = &mut stream(config.seed, Stream::Keys);
        let (is_drawn, times) = (rng.random_bool(0.7), [1, 1, 1, 2][rng.random_range(0..4)]);
        let is_asked_for = config.sabotage == Some(Sabotage::CountAgain);
        let may_be_short = config.sabotage.is_none() && self.floods.is_none();
        if is_asked_for || (is_drawn && may_be_short) {
            let bursts = if self.habits.burst > 0.0 { GAP_BURSTS } else { 0 };
            let missed = (self.packets_each_second() * self.longest_gap().as_secs_f64()) as u64;
            let most = missed + bursts + GAP_SLACK;
            self.packets_per_key = PacketsPerKey::at_least(most * 2 * times);
        }
    }

    /// How many packets a second are sealed for one participant at most, or by one.
    fn packets_each_second(&self) -> f64 {
        let Habits { publish_ms, burst, radius, side, .. } = &self.habits;
        let bursts = 1.0 + burst * MEAN_BURST;
        let up = 2000.0 / (publish_ms.start + publish_ms.end) as f64 * bursts;
        let in_view = ((radius * 2 + 1) as f64 / f64::from(*side)).powi(2).min(1.0);
        let heard = match self.downlink {
            Downlink::Member => in_view.max(self.habits.unicast),
            Downlink::Group | Downlink::None => self.habits.unicast,
        };
        let each = self.participants as f64 / f64::from(self.comtrees);
        up * (heard * each).max(1.0)
    }

    /// How long all that is sealed for a participant, or by one, may go astray in a row: one that has moved
    /// says something, is challenged, and proves where it is now.
    fn longest_gap(&self) -> Duration {
        let round_trip = self.longest_way(0) + self.longest_way(1);
        let speaks = Duration::from_millis(self.habits.publish_ms.end).min(self.limits.keepalive);
        let moves = self.habits.churn_ms.is_some();
        let lost = if moves { round_trip * 2 + speaks } else { Duration::ZERO };
        lost + self.longest_hold() + LOST_IN_A_ROW
    }

    /// By how much the end comes later where reports are lost, or where delays differ much by themselves: the
    /// relay may think there that any path is among the slowest, and all that waits for one has to come.
    fn slow_paths(&self) -> Duration {
        let loses = matches!(self.weather, Weather::Lossy | Weather::Narrow | Weather::Storm);
        if loses || self.is_noisy() { self.longest_wait() } else { Duration::ZERO }
    }

    /// Whether somebody's delays differ by so much that their path may seem to be narrow.
    fn is_noisy(&self) -> bool {
        let detour = |down: &LinkModel| if down.reorders() { down.detour } else { Duration::ZERO };
        self.links.iter().any(|[_, down]| down.jitter + detour(down) >= NOISY)
    }

    /// Whether the quiet at the end is long enough for all that waits.
    pub(crate) fn lets_all_come(&self) -> bool {
        self.end.since(self.quiet_from) > WAITS + self.slow_paths()
    }

    /// Whether all is well long enough before the end for everyone to have recovered.
    pub(crate) fn is_long_enough(&self) -> bool {
        self.end.since(self.calm_from) >= recovery(self.weather, &self.limits) + QUIET + SLACK
    }

    /// Whether a participant shares its ip:port where others do: half of them, but of those who may be
    /// sent so much only none, as that is measured by ip:port.
    pub(crate) fn shares(&self, participant: usize) -> bool {
        self.shares_ip_port && participant.is_multiple_of(2) && self.budgets[participant].is_none()
    }

    /// What the oracle may count on.
    pub(crate) fn rules(&self) -> Rules {
        let [way_up, way_down] = [0, 1].map(|side| self.longest_way(side));
        let delivery = self.longest_hold() + way_down + WAITS;
        Rules {
            delivery,
            waits: WAITS,
            forgotten: way_up
                + delivery
                + self.longest_wait()
                + self.longest_turn() * 4
                + self.late_copies * 2
                + SLACK,
            settle: None,
            propagation: Duration::ZERO,
            lifetime: self.limits.lifetime,
            unrefreshed: self.limits.subscription.saturating_sub(way_down + EXPIRY_SLACK),
            corruption: corruption_lasts(&self.limits),
            patience: Some(patience(&self.limits)),
        }
    }

    /// The longest from a relay's reading of an update to its last send of it.
    fn longest_hold(&self) -> Duration {
        let waits = match self.mode {
            Mode::Immediate => Duration::ZERO,
            Mode::Periodic { tick } => tick + self.mode.longest_unread(),
        };
        let stalled = if self.stalls > 0.0 { self.stall * 4 } else { Duration::ZERO };
        waits + self.wake_delay + self.longest_turn() * 4 + stalled
    }

    /// What a turn takes, unless it stalls.
    fn longest_turn(&self) -> Duration {
        self.turn + self.floods.as_ref().map_or(Duration::ZERO, Floods::longest_turn)
    }

    /// The longest that a datagram waits in a receive buffer where its lane is not flooded: for the turn
    /// under way, and the next ones if its lane has more than a quantum.
    pub(crate) fn longest_unread(&self) -> Duration {
        let stalled = if self.stalls > 0.0 { self.stall * 2 } else { Duration::ZERO };
        self.longest_turn() * 2 + self.mode.longest_unread() + stalled
    }

    /// How much longer than [`WAITS`] an update may wait for whoever has the slowest path of all. The relay may
    /// think so of any: where reports are lost, it believes less and less.
    fn longest_wait(&self) -> Duration {
        let all_flows = flows(self.participants) * update_bits(&self.habits);
        Duration::from_millis(all_flows * 1000 / SLOWEST_PATH)
    }

    /// The longest way down to any participant.
    pub(crate) fn longest_down(&self) -> Duration {
        self.longest_way(1)
    }

    /// The longest way up (0) from any participant, or down (1) to any.
    fn longest_way(&self, side: usize) -> Duration {
        self.links.iter().map(|links| links[side].worst()).max().unwrap_or_default()
    }
}

/// How long after the last thing that went wrong a participant may take to be in the world again:
/// a lost relay shows after three keepalives, an unanswered hello is repeated after 3 s, a
/// subscribe packet after 3.2 s.
fn patience(limits: &SessionLimits) -> Duration {
    limits.keepalive * 4 + Duration::from_secs(8)
}

/// How long what came of a flipped bit can last: a wrong subscription ends when its lifetime does,
/// plus the ten seconds of a whole sweep; so does a session.
fn corruption_lasts(limits: &SessionLimits) -> Duration {
    limits.subscription + limits.lifetime + Duration::from_secs(10)
}

fn recovery(weather: Weather, limits: &SessionLimits) -> Duration {
    if weather == Weather::Corrupting { corruption_lasts(limits) } else { patience(limits) }
}

/// Who draws random numbers: each from a stream of its own, so that they don't disturb each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    Scenario,
    Network,
    World,
    Host,
    Hostile,
    More,
    Overlay,
    Budgets,
    Moves,
    Topology,
    Threads,
    Keys,
    Tokens,
    Admission,
    Gateway,
    Roles,
    Floods,
    Flooders,
    Shaping,
    Operator,
    Steady,
    Paths,
    Important,
    Load,
    Levels,
}

pub(crate) fn stream(seed: u64, stream: Stream) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream as u64);
    rng
}

/// A share that is nothing in most scenarios.
fn draw_some(rng: &mut ChaCha8Rng, share: Range<f64>) -> f64 {
    if rng.random_bool(0.15) { rng.random_range(share) } else { 0.0 }
}

fn draw_weather(rng: &mut ChaCha8Rng) -> Weather {
    match rng.random_range(0..9) {
        0..3 => Weather::Clean,
        3 => Weather::Lossy,
        4 => Weather::Reordering,
        5 => Weather::Duplicating,
        6 => Weather::Narrow,
        7 => Weather::Corrupting,
        _ => Weather::Storm,
    }
}

/// Where datagrams are lost, subscriptions live longer than a run, so that only a fault can end
/// them; elsewhere they have to be refreshed many times.
fn draw_limits(weather: Weather, rng: &mut ChaCha8Rng) -> SessionLimits {
    let lossy = matches!(weather, Weather::Lossy | Weather::Narrow | Weather::Storm);
    let lifetime = Duration::from_millis(rng.random_range(3000..6000));
    // Long enough for a refresh to get through although a rebind comes between.
    let subscription = Duration::from_millis(rng.random_range(6000..9000));
    SessionLimits {
        lifetime,
        keepalive: lifetime / 5,
        subscription: if lossy { Duration::from_secs(3600) } else { subscription },
    }
}

fn draw_mode(rng: &mut ChaCha8Rng) -> Mode {
    let ticks = [10, 20, 50, 100];
    let tick = Duration::from_millis(ticks[rng.random_range(0..ticks.len())]);
    if rng.random_bool(0.5) { Mode::Immediate } else { Mode::Periodic { tick } }
}

fn draw_fullness(rng: &mut ChaCha8Rng) -> Fullness {
    match rng.random_range(0..8) {
        0 => Fullness::Sessions,
        1 => Fullness::Subscriptions,
        _ => Fullness::None,
    }
}

fn draw_habits(is_crowd: bool, fullness: Fullness, rng: &mut ChaCha8Rng) -> Habits {
    // A crowd stands in few cells, and each of it says little.
    let fastest = if is_crowd { 1500 } else { rng.random_range(60..250) };
    // In a full relay every place that is left is taken at once, and its address with it.
    let is_full = fullness == Fullness::Sessions;
    let shortest = rng.random_range(if is_full { 300..1000 } else { 500..6000 });
    let unicast = [0.0, 0.0, 0.1, 0.5][rng.random_range(0..4)];
    let some = |share: f64, rng: &mut ChaCha8Rng| if rng.random_bool(0.5) { share } else { 0.0 };
    Habits {
        side: rng.random_range(1..if is_crowd { 3 } else { 8 }),
        speed: rng.random_range(0.1..2.0),
        radius: rng.random_range(0..3),
        publish_ms: fastest..fastest * 3,
        burst: some(0.05, rng),
        bundle: some(0.1, rng),
        echo: some(0.1, rng),
        unicast: if is_full { 0.5 } else { unicast },
        longest: if rng.random_bool(0.15) { canopy_wire::MAX_UPDATE } else { 200 },
        churn_ms: (rng.random_bool(0.6) || is_full).then_some(shortest..shortest * 4),
        insiders: some(0.1, rng),
    }
}

fn draw_links(weather: Weather, rng: &mut ChaCha8Rng) -> [LinkModel; 2] {
    let delay = Duration::from_micros(match rng.random_range(0..10) {
        0..5 => rng.random_range(50..2000),
        5..9 => rng.random_range(2000..120_000),
        _ => rng.random_range(120_000..400_000),
    });
    [draw_link(weather, delay, rng), draw_link(weather, delay, rng)]
}

fn draw_link(weather: Weather, delay: Duration, rng: &mut ChaCha8Rng) -> LinkModel {
    let steady = LinkModel {
        delay,
        jitter: delay.mul_f64(rng.random_range(0.0..0.5)),
        ..LinkModel::default()
    };
    let detour = Duration::from_millis(rng.random_range(5..80));
    let rate = rng.random_range(20_000..200_000);
    // At most 300 ms of queue, but room for one datagram.
    let queue = rng.random_range(rate / 20..rate / 3).max(3000);
    match weather {
        Weather::Clean => steady,
        Weather::Lossy => LinkModel { loss: rng.random_range(0.001..0.15), ..steady },
        Weather::Reordering => LinkModel { reorder: rng.random_range(0.01..0.2), detour, ..steady },
        Weather::Duplicating => LinkModel { duplicate: rng.random_range(0.01..0.2), ..steady },
        Weather::Narrow => LinkModel { rate: Some(rate), queue, ..steady },
        Weather::Corrupting => LinkModel { corrupt: rng.random_range(0.0002..0.004), ..steady },
        Weather::Storm => LinkModel {
            loss: rng.random_range(0.001..0.05),
            reorder: rng.random_range(0.01..0.1),
            detour,
            duplicate: rng.random_range(0.01..0.1),
            rate: rng.random_bool(0.3).then_some(rate),
            queue,
            ..steady
        },
    }
}

/// Flows of which updates may wait for one participant.
fn flows(participants: usize) -> u64 {
    participants as u64 * 2
}

/// The bits of the longest update, with what carries it.
fn update_bits(habits: &Habits) -> u64 {
    (habits.longest as u64 + 100) * 8
}

/// In some scenarios some participants may be sent less than all, either of two amounts, so that there
/// are several of one mind. A budget holds an update of each flow in [`ALL_FLOWS`] seconds, and besides what
/// goes first because it is for one participant's eyes.
fn draw_budgets(
    participants: usize,
    habits: &Habits,
    config: &SimConfig,
    weather: Weather,
) -> Vec<Option<Budget>> {
    let rng = &mut stream(config.seed, Stream::Budgets);
    let is_of_updates = config.sabotage == Some(Sabotage::TwiceAsMany);
    let is_asked_for = is_of_updates
        || matches!(config.sabotage, Some(Sabotage::ThinUncounted | Sabotage::Starve));
    // What came of a flipped bit could be a flow of its own.
    let is_drawn = rng.random_bool(0.4) && config.sabotage.is_none();
    let has_budgets = (is_asked_for || is_drawn) && weather != Weather::Corrupting;
    let unicasts = (habits.unicast * 1000.0 / habits.publish_ms.start as f64).ceil() as u64;
    let each_second = flows(participants) / ALL_FLOWS + unicasts;
    let mut amount = || {
        let times = rng.random_range(10..30);
        let down_bits = each_second * update_bits(habits) * times / 10;
        let down_packets = each_second.max(4) * times / 10;
        match rng.random_bool(0.7) && !is_of_updates {
            true => Budget { down_bits, ..Budgets::default().member },
            false => Budget { down_packets, ..Budgets::default().member },
        }
    };
    let amounts = [amount(), amount()];
    let limited = |_| {
        let is_limited = rng.random_bool(0.5) && has_budgets;
        let amount = amounts[rng.random_range(0..2)];
        is_limited.then_some(amount)
    };
    (0..participants).map(limited).collect()
}

/// Where some may be sent so many updates only, the relay does not ask in half of the scenarios how much paths bear:
/// there it is known how many of them a datagram costs.
fn asks_paths(budgets: &[Option<Budget>], config: &SimConfig) -> bool {
    let are_asked = stream(config.seed, Stream::Paths).random_bool(0.5)
        && config.sabotage != Some(Sabotage::TwiceAsMany);
    are_asked || budgets.iter().flatten().all(|budget| budget.down_packets == 0)
}

/// In some scenarios nobody is let in without a token.
fn draws_tokens(config: &SimConfig) -> bool {
    let is_drawn = stream(config.seed, Stream::Admission).random_bool(0.3);
    config.sabotage.map_or(is_drawn, Sabotage::is_of_tokens)
}

/// The longest datagram that a path takes: as many take no more than any as take the longest.
fn draw_datagram(rng: &mut ChaCha8Rng) -> u16 {
    let between = rng.random_range(SAFE_DATAGRAM..=MAX_DATAGRAM);
    [SAFE_DATAGRAM, SAFE_DATAGRAM, between, MAX_DATAGRAM, MAX_DATAGRAM][rng.random_range(0..5)]
        as u16
}

fn draw_max_sessions(participants: u32, fullness: Fullness, rng: &mut ChaCha8Rng) -> u32 {
    if fullness == Fullness::Sessions {
        return participants.saturating_sub(rng.random_range(0..4)).max(2);
    }
    // Sessions of those who crashed live on beside the new ones for a while.
    participants * 8 + 8
}

fn draw_tables(participants: u32, fullness: Fullness, rng: &mut ChaCha8Rng) -> TableLimits {
    let mut tables = ROOMY_TABLES;
    if fullness == Fullness::Subscriptions {
        let tight = |share: u32, rng: &mut ChaCha8Rng| share + rng.random_range(0..share * 2);
        match rng.random_range(0..3) {
            0 => tables.max_groups = tight(4, rng),
            1 => tables.max_subscriptions = tight(participants * 2, rng),
            _ => tables.max_subscriptions_per_participant = tight(3, rng),
        }
    }
    tables
}

fn draw_restart(calm_from: Time, rng: &mut ChaCha8Rng) -> Option<Restart> {
    let wanted = rng.random_bool(0.3);
    let share = rng.random_range(0.3..0.9);
    let drains = rng.random_bool(0.5);
    let restart = Restart {
        stop_at: Time::from_nanos((calm_from.as_nanos() as f64 * share) as u64),
        drain: if drains { Duration::from_millis(500) } else { Duration::ZERO },
        down: Duration::from_millis(rng.random_range(0..2000)),
    };
    wanted.then_some(restart)
}
