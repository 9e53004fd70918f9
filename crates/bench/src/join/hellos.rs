//! Joins while others flood the relay with hellos.

use super::{Applicant, bring};
use canopy_relay::Relay;
use canopy_session::{Session, State};
use canopy_wire::{Comtree, Hello, MAX_DATAGRAM, Time};
use std::net::SocketAddr;
use std::time::Duration;

/// In the relay's time. What anybody may be told at once is over when counting begins.
const LEAD: Duration = Duration::from_secs(1);
/// In which all begin to join, and how long the last of them tries.
const LENGTH: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);
const MILLISECOND: Duration = Duration::from_millis(1);
const HELLOS_A_MILLISECOND: u64 = 300;

/// In whose names the hellos are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Those of 4,096 ips of 16 networks, which are there and have thousands of ports each
    Hosts,
    /// Those of any ip: they are made up
    MadeUp,
}

/// What became of those who joined.
#[derive(Clone, Debug)]
pub(super) struct UnderHellos {
    /// The relay's time for them, their repeated hellos included.
    pub(super) joining: Duration,
    /// What the flood took of each second.
    pub(super) flood_share: f64,
    /// From first hello to welcome, milliseconds, the shortest first; nobody else was let in.
    pub(super) waits_ms: Vec<f64>,
}

/// Lets all try, spread over a part of the flood, until they are in or give up.
pub(super) fn join_all(
    mut relay: Relay,
    names: Names,
    applicants: &[Applicant],
) -> anyhow::Result<UnderHellos> {
    let mut flood = Flood { names, sent: 0 };
    let mut now = Time::from_millis(1);
    let counts_at = now + LEAD;
    while now < counts_at {
        now = now + MILLISECOND;
        flood.send(&mut relay, now, HELLOS_A_MILLISECOND)?;
    }
    let (mut joining, mut flooding, mut begun) = (Duration::ZERO, Duration::ZERO, 0);
    let (mut waiting, mut waits_ms): (Vec<Newcomer>, _) = (Vec::new(), Vec::new());
    while waits_ms.len() < applicants.len() && now.since(counts_at) < LENGTH + PATIENCE {
        now = now + MILLISECOND;
        // A newcomer's hello is anywhere between the others'.
        let before = mix(flood.sent) % HELLOS_A_MILLISECOND;
        flooding += flood.send(&mut relay, now, before)?;
        let due = now.since(counts_at).as_secs_f64() / LENGTH.as_secs_f64();
        let due = ((due * applicants.len() as f64) as usize).min(applicants.len());
        waiting.extend(applicants[begun..due].iter().map(|one| Newcomer::new(one, now)));
        begun = due;
        for newcomer in &mut waiting {
            joining += newcomer.ask(&mut relay, now)?;
        }
        waiting.retain(|newcomer| {
            let is_in = newcomer.session.state() == State::Connected;
            if is_in {
                waits_ms.push(now.since(newcomer.since).as_secs_f64() * 1e3);
            }
            !is_in
        });
        flooding += flood.send(&mut relay, now, HELLOS_A_MILLISECOND - before)?;
    }
    waits_ms.sort_by(f64::total_cmp);
    let flood_share = flooding.as_secs_f64() / now.since(counts_at).as_secs_f64();
    Ok(UnderHellos { joining, flood_share, waits_ms })
}

struct Newcomer {
    session: Session,
    from: SocketAddr,
    since: Time,
}

impl Newcomer {
    fn new(applicant: &Applicant, since: Time) -> Newcomer {
        Newcomer { session: applicant.session(), from: applicant.ip_port, since }
    }

    /// Sends what is due, and hears the answers. Returns the relay's time.
    fn ask(&mut self, relay: &mut Relay, now: Time) -> anyhow::Result<Duration> {
        let (mut spent, mut out) = (Duration::ZERO, [0; MAX_DATAGRAM]);
        while self.session.state() != State::Connected
            && let Some(len) = self.session.poll_transmit(now, &mut out)
        {
            let (more, answers) = bring(relay, now, &mut [(self.from, out[..len].to_vec())]);
            spent += more;
            for mut answer in answers {
                self.session.handle_datagram(now, &mut answer, |_| ())?;
            }
        }
        Ok(spent)
    }
}

struct Flood {
    names: Names,
    sent: u64,
}

impl Flood {
    /// Brings the relay so many hellos, and returns its time.
    fn send(&mut self, relay: &mut Relay, now: Time, count: u64) -> anyhow::Result<Duration> {
        let mut hellos = Vec::with_capacity(count as usize);
        for _ in 0..count {
            self.sent += 1;
            let mut out = [0; MAX_DATAGRAM];
            let len = Hello { nonce: mix(self.sent) }.encode(Comtree(0), &mut out)?;
            hellos.push((self.names.of(self.sent), out[..len].to_vec()));
        }
        Ok(bring(relay, now, &mut hellos).0)
    }
}

impl Names {
    fn of(self, number: u64) -> SocketAddr {
        let (ip, port) = match self {
            Names::Hosts => {
                let host = number % 4096;
                // Twelve bits, of which the upper four are the network's.
                ([203, 0, (host >> 8) as u8, host as u8], 1024 + number / 4096 % 60_000)
            }
            Names::MadeUp => {
                let [_, b, c, d, low, high, ..] = mix(number).to_be_bytes();
                // The newcomers are in another network.
                ([203, b, c, d], 1024 + u64::from(u16::from_be_bytes([low, high])) % 60_000)
            }
        };
        SocketAddr::from((ip, port as u16))
    }
}

/// Spreads numbers over all 64 bits (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::super::{relay, trust};
    use super::*;
    use canopy_relay::{Gate, GateLimits};
    use canopy_token::SigningKey;
    use std::sync::Arc;

    const NEWCOMERS: u32 = 40;

    fn under(names: Names) -> UnderHellos {
        let key = SigningKey::from_seed([1; 32]);
        let applicants = (0..NEWCOMERS).map(|number| Applicant::new(number, &key));
        let applicants: Vec<_> = applicants.collect::<Result<_, _>>().unwrap();
        let gate = Gate::new(GateLimits::default(), &[3; 16]);
        let relay = relay(Some(Arc::new(trust(&key).unwrap())), gate, NEWCOMERS);
        join_all(relay, names, &applicants).unwrap()
    }

    #[test]
    fn hosts_take_no_answers_from_newcomers_and_made_up_names_take_most() {
        let hosts = under(Names::Hosts);
        assert_eq!(hosts.waits_ms.len(), NEWCOMERS as usize);
        assert!(hosts.waits_ms.iter().all(|wait| *wait == 0.0), "{:?}", hosts.waits_ms);
        // One in fifteen of all hellos is answered, so it is a matter of chance and patience.
        let made_up = under(Names::MadeUp);
        let let_in = made_up.waits_ms.len();
        assert!((5..36).contains(&let_in), "{let_in}");
        assert!(made_up.waits_ms.last() > Some(&1000.0), "{:?}", made_up.waits_ms);
    }
}
