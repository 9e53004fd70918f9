//! Joins while others flood the relay with connects that are right in all but their tokens' signatures.

use super::{Applicant, bring, exchange};
use anyhow::Context;
use canopy_relay::Relay;
use canopy_token::SigningKey;
use canopy_wire::{MAX_DATAGRAM, Time};
use std::net::SocketAddr;
use std::time::Duration;

/// In the relay's time. What a place may do at once is over when counting begins.
const LEAD: Duration = Duration::from_secs(4);
const LENGTH: Duration = Duration::from_secs(2);
const MILLISECOND: Duration = Duration::from_millis(1);
const CONNECTS_A_MILLISECOND: usize = 50;
const IPS: u32 = 4096;

/// Somebody whose token names a trusted key and was not signed by it, with the connect that it repeats.
struct Intruder {
    from: SocketAddr,
    connect: Vec<u8>,
}

/// Lets all in, spread over the flood. Returns the processor time of the joins, and what the flood
/// took of each second.
pub(super) fn join_all(
    mut relay: Relay,
    key: &SigningKey,
    applicants: &[Applicant],
) -> anyhow::Result<(Duration, f64)> {
    let mut now = Time::from_millis(1);
    let mut intruders = Vec::new();
    for number in 0..IPS {
        // Strangers are answered at a rate.
        now = now + Duration::from_micros(200);
        intruders.push(Intruder::new(number, key, &mut relay, now)?);
    }
    let mut repeated = intruders.iter().cycle();
    let mut flood = |relay: &mut Relay, now| {
        let connects = repeated.by_ref().take(CONNECTS_A_MILLISECOND);
        let connects = connects.map(|Intruder { from, connect }| (*from, connect.clone()));
        bring(relay, now, &mut connects.collect::<Vec<_>>()).0
    };
    let counts_at = now + LEAD;
    while now < counts_at {
        now = now + MILLISECOND;
        flood(&mut relay, now);
    }
    let (mut joined, mut joining, mut flooding) = (0, Duration::ZERO, Duration::ZERO);
    while now.since(counts_at) < LENGTH {
        now = now + MILLISECOND;
        flooding += flood(&mut relay, now);
        let due = now.since(counts_at).as_secs_f64() / LENGTH.as_secs_f64();
        let due = ((due * applicants.len() as f64) as usize).min(applicants.len());
        for applicant in &applicants[joined..due] {
            joining += applicant.join(&mut relay, now)?;
        }
        joined = due;
    }
    Ok((joining, flooding.as_secs_f64() / LENGTH.as_secs_f64()))
}

impl Intruder {
    fn new(
        number: u32,
        key: &SigningKey,
        relay: &mut Relay,
        now: Time,
    ) -> anyhow::Result<Intruder> {
        let from = SocketAddr::from((((203 << 24) + number).to_be_bytes(), 4040));
        let mut applicant = Applicant::new(number, key)?;
        applicant.token = with_false_signature(&applicant.token)?;
        let mut session = applicant.session();
        exchange(relay, &mut session, from, now)?;
        let mut out = [0; MAX_DATAGRAM];
        let len = session.poll_transmit(now, &mut out).context("an intruder has no cookie")?;
        Ok(Intruder { from, connect: out[..len].to_vec() })
    }
}

/// The same token, which names its key in the footer, with another signature: only who computes that
/// finds it false.
fn with_false_signature(token: &str) -> anyhow::Result<String> {
    let (signed, footer) = token.rsplit_once('.').context("a token has a footer")?;
    // The signature is the last 64 bytes, 86 characters; its second half is less than the curve's order,
    // so its last byte stays as it is.
    let at = signed.len().checked_sub(SIGNATURE_MIDDLE).context("a token has a signature")?;
    let other = if signed[at..].starts_with('A') { "B" } else { "A" };
    Ok(format!("{}{other}{}.{footer}", &signed[..at], &signed[at + 1..]))
}

/// How many characters before the end of a token the middle of its signature's second half is.
const SIGNATURE_MIDDLE: usize = 20;

#[cfg(test)]
mod tests {
    use super::super::{ORIGIN, trust};
    use super::*;
    use canopy_token::TokenError;

    /// A token that is refused for less than its signature would cost a relay nothing.
    #[test]
    fn an_intruders_token_fails_by_its_signature_alone() {
        let key = SigningKey::from_seed([1; 32]);
        let trust = trust(&key).unwrap();
        for number in 0..20 {
            let token = Applicant::new(number, &key).unwrap().token;
            let verify = |token: &str| trust.keys.verify(token, ORIGIN, &trust.revoked).map(|_| ());
            assert_eq!(verify(&token), Ok(()));
            let forged = with_false_signature(&token).unwrap();
            assert_eq!(verify(&forged), Err(TokenError::BadSignature));
        }
    }
}
