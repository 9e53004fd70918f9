//! Joins while others flood the relay with connects that are right in all but their tokens.

use super::{Applicant, bring, exchange};
use anyhow::Context;
use canopy_relay::Relay;
use canopy_token::SigningKey;
use canopy_wire::{MAX_DATAGRAM, Time};
use std::net::SocketAddr;
use std::time::Duration;

/// In the relay's time.
const LENGTH: Duration = Duration::from_secs(2);
const CONNECTS_A_MILLISECOND: usize = 50;
const IPS: u32 = 4096;

/// Somebody whose token the relay's keys have not signed, with the connect that it repeats.
struct Intruder {
    from: SocketAddr,
    connect: Vec<u8>,
}

/// Lets all in, spread over the flood. Returns the processor time of the joins, and what the flood
/// took of each second.
pub(super) fn join_all(
    mut relay: Relay,
    applicants: &[Applicant],
) -> anyhow::Result<(Duration, f64)> {
    let mut now = Time::from_millis(1);
    let mut intruders = Vec::new();
    for number in 0..IPS {
        // Strangers are answered at a rate.
        now = now + Duration::from_micros(200);
        intruders.push(Intruder::new(number, &mut relay, now)?);
    }
    let (start, mut joined) = (now, 0);
    let (mut joining, mut flooding) = (Duration::ZERO, Duration::ZERO);
    let mut repeated = intruders.iter().cycle();
    while now.since(start) < LENGTH {
        for Intruder { from, connect } in repeated.by_ref().take(CONNECTS_A_MILLISECOND) {
            flooding += bring(&mut relay, now, *from, &mut connect.clone()).0;
        }
        now = now + Duration::from_millis(1);
        let due = now.since(start).as_secs_f64() / LENGTH.as_secs_f64();
        let due = ((due * applicants.len() as f64) as usize).min(applicants.len());
        for applicant in &applicants[joined..due] {
            joining += applicant.join(&mut relay, now)?;
        }
        joined = due;
    }
    Ok((joining, flooding.as_secs_f64() / LENGTH.as_secs_f64()))
}

impl Intruder {
    fn new(number: u32, relay: &mut Relay, now: Time) -> anyhow::Result<Intruder> {
        let from = SocketAddr::from((((203 << 24) + number).to_be_bytes(), 4040));
        let mut session = Applicant::new(number, &SigningKey::from_seed([9; 32]))?.session();
        exchange(relay, &mut session, from, now)?;
        let mut out = [0; MAX_DATAGRAM];
        let len = session.poll_transmit(now, &mut out).context("an intruder has no cookie")?;
        Ok(Intruder { from, connect: out[..len].to_vec() })
    }
}
