//! `canopy bench join`: how many participants a relay lets in, a second and core, and what of it is
//! the key agreement and the token's signature.
//!
//! It is the data plane in memory, fed with the connects of participants whose cookies are right:
//! what comes before costs no cryptography but a hash. In further rows others flood the relay: with
//! connects whose tokens have false signatures, and with hellos.

mod flood;
mod hellos;

use crate::noise::median;
use anyhow::{Context, bail, ensure};
use canopy_net::thread_cpu_time;
use canopy_output::{print_line, print_note};
use canopy_relay::{
    ADDRESS_REST, Budgets, ComtreeConfig, Gate, GateLimits, Mode, Places, Relay, RelayConfig,
    Siblings, TableLimits, Trust, UnixTime,
};
use canopy_session::{
    Identity, Keyring, PacketsPerKey, Session, SessionConfig, SessionLimits, State,
};
use canopy_token::{
    Budget, Claims, ComtreeGrant, Grant, KeySet, Revocations, Scope, SigningKey, Unicast,
};
use canopy_wire::{Comtree, MAX_DATAGRAM, SAFE_DATAGRAM, Time};
use clap::Args;
use hellos::{Names, UnderHellos};
use serde::Serialize;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Counts the participants that one core of a relay lets in within a second of its processor time,
/// with tokens and without, in memory, and says how much of a join is the signature of its token.
/// All participants join anew in every round. A third row has them join while 50,000 connects a
/// second with false tokens come from 4,096 ips of 16 networks (/24); what these cost of each second
/// is no longer there for joins. In two more rows 300,000 hellos a second come, from as many ips or from
/// made-up ones, and participants ask until they are let in, for 20 seconds at least.
#[derive(Args)]
pub(crate) struct JoinBench {
    /// Rounds of each row, of which the median is told
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Participants of a round
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    participants: u32,
    /// Print the rows as JSON, one a line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct JoinRow {
    /// `open` lets in whoever comes, `token` who brings one, `flood` too while false ones come, `hellos`
    /// and `made-up` while hellos do.
    access: &'static str,
    /// With the usual limits of handshakes and answers under floods, and none otherwise.
    joins_per_core_second: f64,
    /// Against the row with tokens and no flood.
    of_quiet: Option<f64>,
    /// What the flood takes of each second of a processor.
    flood_cpu_share: Option<f64>,
    join_us: f64,
    /// The part of it that is the check of the token, with its signature.
    token_us: f64,
    /// The rest, of which the key agreement is most: four times X25519.
    key_agreement_and_rest_us: f64,
    /// Under hellos, in the relay's time.
    #[serde(flatten)]
    waits: Option<Waits>,
}

/// How long it takes to be let in while hellos flood the relay.
#[derive(Clone, Copy, Serialize)]
struct Waits {
    /// Which share of all participants were let in before they gave up.
    let_in: f64,
    /// From the first hello to the welcome, without the way; `null` if these gave up.
    wait_p50_ms: f64,
    wait_p99_ms: f64,
}

/// The time of day when a relay's time is zero.
const ORIGIN: UnixTime = UnixTime(1_800_000_000);
const COMTREE: Comtree = Comtree(1);
const WORLD: &str = "bench";

impl JoinBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let key = SigningKey::from_seed([1; 32]);
        let mut rounds = Vec::new();
        // The first round warms up. The rows take turns, so that all meet the same noise.
        for round in 0..=self.rounds {
            print_note(format_args!("round {round} of {}", self.rounds));
            rounds.push(self.round(&key)?);
        }
        for row in rows(&rounds[1..]) {
            print_line(if self.json { serde_json::to_string(&row)? } else { row.in_words() })?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn round(&self, key: &SigningKey) -> anyhow::Result<Round> {
        let applicants = (0..self.participants).map(|number| Applicant::new(number, key));
        let applicants: Vec<Applicant> = applicants.collect::<Result<_, _>>()?;
        let trust = Arc::new(trust(key)?);
        let guarded = |gate| relay(Some(Arc::clone(&trust)), gate, self.participants);
        let limited = || guarded(Gate::new(GateLimits::default(), &[3; 16]));
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / f64::from(self.participants);
        let (joining, flood_share) = flood::join_all(limited(), key, &applicants)?;
        let under = |names| {
            Flooded::under_hellos(hellos::join_all(limited(), names, &applicants)?, &applicants)
        };
        Ok(Round {
            open_us: each(join_all(relay(None, Gate::open(), self.participants), &applicants)?),
            token_us: each(join_all(guarded(Gate::open()), &applicants)?),
            check_us: each(check_all(&trust, &applicants)?),
            floods: [
                Flooded { join_us: each(joining), flood_share, waits: None },
                under(Names::Hosts)?,
                under(Names::MadeUp)?,
            ],
        })
    }
}

/// What a join cost in each row.
struct Round {
    open_us: f64,
    token_us: f64,
    /// The check of a token alone.
    check_us: f64,
    /// Under false tokens, and under hellos in either kind of name.
    floods: [Flooded; 3],
}

struct Flooded {
    join_us: f64,
    flood_share: f64,
    waits: Option<Waits>,
}

impl Flooded {
    fn under_hellos(seen: UnderHellos, applicants: &[Applicant]) -> anyhow::Result<Flooded> {
        let UnderHellos { joining, flood_share, waits_ms } = seen;
        ensure!(!waits_ms.is_empty(), "nobody was let in while hellos came");
        let at = |quantile: f64| {
            let wanted = (applicants.len() as f64 * quantile) as usize;
            waits_ms.get(wanted.min(applicants.len() - 1)).copied().unwrap_or(f64::INFINITY)
        };
        let waits = Waits {
            let_in: waits_ms.len() as f64 / applicants.len() as f64,
            wait_p50_ms: at(0.5),
            wait_p99_ms: at(0.99),
        };
        let join_us = joining.as_secs_f64() * 1e6 / waits_ms.len() as f64;
        Ok(Flooded { join_us, flood_share, waits: Some(waits) })
    }
}

fn rows(rounds: &[Round]) -> Vec<JoinRow> {
    let middle =
        |pick: &dyn Fn(&Round) -> f64| median(&rounds.iter().map(pick).collect::<Vec<_>>());
    let (quiet_us, token_us) = (middle(&|round| round.token_us), middle(&|round| round.check_us));
    let mut rows = vec![
        JoinRow::new("open", middle(&|round| round.open_us), 0.0),
        JoinRow::new("token", quiet_us, token_us),
    ];
    for (number, access) in ["flood", "hellos", "made-up"].into_iter().enumerate() {
        let join_us = middle(&|round| round.floods[number].join_us);
        let flood_share = middle(&|round| round.floods[number].flood_share);
        let wait = |pick: fn(&Waits) -> f64| {
            middle(&|round| round.floods[number].waits.as_ref().map_or(0.0, pick))
        };
        let waits = Waits {
            let_in: wait(|waits| waits.let_in),
            wait_p50_ms: wait(|waits| waits.wait_p50_ms),
            wait_p99_ms: wait(|waits| waits.wait_p99_ms),
        };
        let left = 1.0 - flood_share;
        rows.push(JoinRow {
            joins_per_core_second: (left * 1e6 / join_us).round(),
            of_quiet: Some(left * quiet_us / join_us),
            flood_cpu_share: Some(flood_share),
            waits: (number > 0).then_some(waits),
            ..JoinRow::new(access, join_us, token_us)
        });
    }
    rows
}

/// The processor time of letting all of them in.
fn join_all(mut relay: Relay, applicants: &[Applicant]) -> anyhow::Result<Duration> {
    let mut now = Time::from_millis(1);
    let mut spent = Duration::ZERO;
    for applicant in applicants {
        // Strangers are answered at a rate.
        now = now + Duration::from_millis(1);
        spent += applicant.join(&mut relay, now)?;
    }
    Ok(spent)
}

/// The processor time of checking all of their tokens.
fn check_all(trust: &Trust, applicants: &[Applicant]) -> anyhow::Result<Duration> {
    let started = thread_cpu_time();
    for applicant in applicants {
        trust.keys.verify(&applicant.token, ORIGIN, &trust.revoked)?;
    }
    Ok(thread_cpu_time().saturating_sub(started))
}

impl JoinRow {
    fn new(access: &'static str, join_us: f64, token_us: f64) -> JoinRow {
        JoinRow {
            access,
            joins_per_core_second: (1e6 / join_us).round(),
            of_quiet: None,
            flood_cpu_share: None,
            join_us,
            token_us,
            key_agreement_and_rest_us: join_us - token_us,
            waits: None,
        }
    }

    fn in_words(&self) -> String {
        let JoinRow { access, joins_per_core_second, join_us, token_us, .. } = self;
        format!(
            "{access:<7} {joins_per_core_second:>7.0} joins a core-second: {join_us:.0} µs each, of \
             which the token {token_us:.0} µs{}{}",
            self.of_quiet.map_or_else(String::new, |share| format!(
                "; {:.0} % of the quiet rate, as the flood takes {:.1} % of the processor",
                100.0 * share,
                100.0 * self.flood_cpu_share.unwrap_or_default(),
            )),
            self.waits.map_or_else(String::new, Waits::in_words),
        )
    }
}

impl Waits {
    fn in_words(self) -> String {
        let Waits { let_in, wait_p50_ms, wait_p99_ms } = self;
        let [p50, p99] = [wait_p50_ms, wait_p99_ms].map(|wait| {
            if wait.is_finite() { format!("{wait:.0} ms") } else { "never".to_owned() }
        });
        format!("; {:.0} % let in, after {p50} (p50) and {p99} (p99)", 100.0 * let_in)
    }
}

struct Applicant {
    number: u32,
    identity: Identity,
    token: String,
    ip_port: SocketAddr,
}

impl Applicant {
    fn new(number: u32, key: &SigningKey) -> anyhow::Result<Applicant> {
        let mut secret = [7; 32];
        secret[..4].copy_from_slice(&number.to_be_bytes());
        let identity = Identity::new(secret);
        let token = key.issue(&Claims {
            subject: format!("player-{number}"),
            id: format!("{number:032x}"),
            expires: ORIGIN.after(3600),
            not_before: None,
            client_key: *identity.public(),
            grant: Grant {
                world: WORLD.to_owned(),
                address: None,
                site: None,
                comtrees: vec![ComtreeGrant {
                    comtree: COMTREE,
                    publish: Scope::everything(),
                    subscribe: Scope::everything(),
                    unicast: Unicast::Anybody,
                }],
                budget: Budget::default(),
                roles: Vec::new(),
            },
        })?;
        // Each from a network of its own.
        let [_, b, c, d] = (number << 8 | 1).to_be_bytes();
        let ip_port = SocketAddr::from(([10, b, c, d], 4040));
        Ok(Applicant { number, identity, token, ip_port })
    }

    /// Joins, and returns the relay's time for its connect.
    fn join(&self, relay: &mut Relay, now: Time) -> anyhow::Result<Duration> {
        let mut session = self.session();
        exchange(relay, &mut session, self.ip_port, now)?;
        let spent = exchange(relay, &mut session, self.ip_port, now)?;
        ensure!(session.state() == State::Connected, "a participant was not let in");
        Ok(spent)
    }

    fn session(&self) -> Session {
        let mut seed = [3; 16];
        seed[..4].copy_from_slice(&self.number.to_be_bytes());
        Session::new(SessionConfig {
            identity: Some(self.identity.clone()),
            token: self.token.clone().into_bytes(),
            ..SessionConfig::new(COMTREE, seed)
        })
    }
}

fn trust(key: &SigningKey) -> anyhow::Result<Trust> {
    let keys = KeySet::new([key.public().clone()], &[], ORIGIN)?;
    Ok(Trust { keys, revoked: Revocations::new(0) })
}

fn relay(trust: Option<Arc<Trust>>, gate: Gate, participants: u32) -> Relay {
    let comtree = ComtreeConfig { world: WORLD.to_owned(), ..ComtreeConfig::new(COMTREE, 1) };
    let config = RelayConfig {
        mode: Mode::Immediate,
        comtrees: vec![comtree],
        trust,
        origin: ORIGIN,
        places: Places::new(participants),
        max_sessions: participants,
        max_datagram: SAFE_DATAGRAM as u16,
        slow_suites: 0,
        address_rest: ADDRESS_REST,
        life: None,
        log_keys: false,
        packets_per_key: PacketsPerKey::PROTOCOL,
        limits: SessionLimits::default(),
        tables: TableLimits::default(),
        budgets: Budgets::NONE,
        gate,
        smallest_set: None,
    };
    Relay::new(config, Siblings::alone(), Keyring::new([1; 16]), &[2; 16])
}

/// Brings the relay what a session has to send, and back the answer. Returns the relay's time.
fn exchange(
    relay: &mut Relay,
    session: &mut Session,
    from: SocketAddr,
    now: Time,
) -> anyhow::Result<Duration> {
    let mut out = [0; MAX_DATAGRAM];
    let len = session.poll_transmit(now, &mut out).context("a participant has nothing to say")?;
    let (spent, mut answers) = bring(relay, now, &mut [(from, out[..len].to_vec())]);
    let Some(mut answer) = answers.pop() else { bail!("the relay does not answer") };
    session.handle_datagram(now, &mut answer, |_| ())?;
    Ok(spent)
}

/// Brings the relay datagrams in one turn. Returns its time, and what it answers.
fn bring(
    relay: &mut Relay,
    now: Time,
    datagrams: &mut [(SocketAddr, Vec<u8>)],
) -> (Duration, Vec<Vec<u8>>) {
    let mut answers = Vec::new();
    let started = thread_cpu_time();
    for (from, datagram) in datagrams {
        relay.handle_datagram(now, *from, datagram);
    }
    relay.transmit(now, |batch| {
        for reply in batch.transmits() {
            answers.push(batch.parts(reply).collect::<Vec<_>>().concat());
        }
    });
    (thread_cpu_time().saturating_sub(started), answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_row_says_what_it_measured() {
        let bench = JoinBench { rounds: 1, participants: 20, json: true };
        let round = bench.round(&SigningKey::from_seed([1; 32])).unwrap();
        let rows: Vec<Value> =
            rows(&[round]).iter().map(|row| serde_json::to_value(row).unwrap()).collect();
        let names: Vec<_> = rows.iter().map(|row| row["access"].as_str().unwrap()).collect();
        assert_eq!(names, ["open", "token", "flood", "hellos", "made-up"]);
        for (row, name) in rows.iter().zip(names) {
            assert!(row["joins_per_core_second"].as_f64() > Some(0.0), "{row}");
            let is_flood = !["open", "token"].contains(&name);
            assert_eq!(row["of_quiet"].is_number() && row["flood_cpu_share"].is_number(), is_flood);
            assert_eq!(row["let_in"].is_number(), ["hellos", "made-up"].contains(&name), "{row}");
        }
        assert_eq!((&rows[3]["let_in"], &rows[3]["wait_p99_ms"]), (&1.0.into(), &0.0.into()));
    }
}
