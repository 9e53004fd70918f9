//! `canopy bench join`: how many participants a relay lets in, a second and core, and what of it is
//! the key agreement and the token's signature.
//!
//! It is the data plane in memory, fed with the connects of participants whose cookies are right:
//! what comes before costs no cryptography but a hash. One row has others flood the relay with
//! connects whose tokens have false signatures.

mod flood;

use crate::noise::median;
use anyhow::{Context, bail, ensure};
use canopy_net::thread_cpu_time;
use canopy_output::{print_line, print_note};
use canopy_relay::{
    ADDRESS_REST, Budgets, ComtreeConfig, Gate, GateLimits, Mode, Places, Relay, RelayConfig,
    Siblings, TableLimits, Trust, UnixTime,
};
use canopy_session::{Identity, Keyring, Session, SessionConfig, SessionLimits, State};
use canopy_token::{
    Budget, Claims, ComtreeGrant, Grant, KeySet, Revocations, Scope, SigningKey, Unicast,
};
use canopy_wire::{Comtree, MAX_DATAGRAM, SAFE_DATAGRAM, Time};
use clap::Args;
use serde::Serialize;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Counts the participants that one core of a relay lets in within a second of its processor time,
/// with tokens and without, in memory, and says how much of a join is the signature of its token.
/// All participants join anew in every round. A third row has them join while 50,000 connects a
/// second with false tokens come from 4,096 ips of 16 networks (/24); what these cost of each second
/// is no longer there for joins.
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
    /// `open` lets in whoever comes, `token` who brings one, `flood` too while false ones come.
    access: &'static str,
    /// With the usual limits of handshakes in the third row, and none in the others.
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
}

/// The time of day when a relay's time is zero.
const ORIGIN: UnixTime = UnixTime(1_800_000_000);
const COMTREE: Comtree = Comtree(1);
const WORLD: &str = "bench";

impl JoinBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let key = SigningKey::from_seed([1; 32]);
        let (mut open, mut guarded, mut checks) = (Vec::new(), Vec::new(), Vec::new());
        let (mut flooded, mut floods) = (Vec::new(), Vec::new());
        // The first round warms up. The rows take turns, so that all meet the same noise.
        for round in 0..=self.rounds {
            print_note(format_args!("round {round} of {}", self.rounds));
            let applicants = (0..self.participants).map(|number| Applicant::new(number, &key));
            let applicants: Vec<Applicant> = applicants.collect::<Result<_, _>>()?;
            let trust = Arc::new(trust(&key)?);
            let each = |spent: Duration| spent.as_secs_f64() * 1e6 / f64::from(self.participants);
            let relay = |trust, gate| relay(trust, gate, self.participants);
            open.push(each(join_all(relay(None, Gate::open()), &applicants)?));
            let guard = |gate| relay(Some(Arc::clone(&trust)), gate);
            guarded.push(each(join_all(guard(Gate::open()), &applicants)?));
            checks.push(each(check_all(&trust, &applicants)?));
            let gate = Gate::new(GateLimits::default(), &[3; 16]);
            let (joining, flood) = flood::join_all(guard(gate), &key, &applicants)?;
            flooded.push(each(joining));
            floods.push(flood);
        }
        let middle = |rounds: &[f64]| median(&rounds[1..]);
        let (quiet_us, token_us) = (middle(&guarded), middle(&checks));
        let left = 1.0 - middle(&floods);
        let under_flood = JoinRow {
            joins_per_core_second: (left * 1e6 / middle(&flooded)).round(),
            of_quiet: Some(left * quiet_us / middle(&flooded)),
            flood_cpu_share: Some(middle(&floods)),
            ..JoinRow::new("flood", middle(&flooded), token_us)
        };
        let open = JoinRow::new("open", middle(&open), 0.0);
        for row in [open, JoinRow::new("token", quiet_us, token_us), under_flood] {
            print_line(if self.json { serde_json::to_string(&row)? } else { row.in_words() })?;
        }
        Ok(ExitCode::SUCCESS)
    }
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
        }
    }

    fn in_words(&self) -> String {
        let JoinRow { access, joins_per_core_second, join_us, token_us, .. } = self;
        format!(
            "{access:<6} {joins_per_core_second:>7.0} joins a core-second: {join_us:.0} µs each, of \
             which the token {token_us:.0} µs{}",
            self.of_quiet.map_or_else(String::new, |share| format!(
                "; {:.0} % of the quiet rate, as the flood takes {:.1} % of the processor",
                100.0 * share,
                100.0 * self.flood_cpu_share.unwrap_or_default(),
            ))
        )
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
