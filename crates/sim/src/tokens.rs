//! Tokens: in some scenarios the relay lets nobody in without one. Each participant brings one of its own
//! whenever it joins, which grants everything. Some end within the run, and some of those are renewed;
//! some are revoked. Thieves come with tokens of others, and forgers with their own.

use crate::host::UNIX_ZERO;
use crate::scenario::{Scenario, Stream, stream};
use canopy_relay::{Trust, UnixTime};
use canopy_session::{Identity, SessionConfig};
use canopy_token::{
    Budget, CLOCK_SKEW, Claims, ComtreeGrant, Grant, KeySet, Revocations, Scope, SigningKey,
    Unicast,
};
use canopy_wire::{Comtree, Group, Level, Tag, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;

/// A token that ends within the run holds so many seconds.
const SHORT_S: std::ops::Range<u64> = 4..12;
/// A token that does not holds until long after the run.
const LONG_S: u64 = 24 * 3600;
/// Tokens are renewed this long before they end.
const RENEWED_BEFORE: Duration = Duration::from_secs(2);
/// A relay looks at every token once a second, and lets in until a second is over.
const SLACK: Duration = Duration::from_secs(3);
/// The most tokens that are revoked in a run.
const MOST_REVOKED: usize = 64;

/// What a participant holds.
#[derive(Clone)]
struct Held {
    id: String,
    comtree: Comtree,
    key: [u8; 32],
    token: Vec<u8>,
    /// From here on the relay may end the session, and from here on it must: they differ while a renewal
    /// is under way.
    may_end: Time,
    must_end: Time,
}

/// The issuer of all tokens, and who holds which.
pub(crate) struct Tokens {
    rng: ChaCha8Rng,
    issuer: SigningKey,
    revoked: Revocations,
    issued: u64,
    held: Vec<Option<Held>>,
    /// No token ends from here on.
    calm_from: Time,
}

impl Tokens {
    /// `None` where the relay lets in whoever comes.
    pub(crate) fn new(seed: u64, scenario: &Scenario) -> Option<Tokens> {
        scenario.asks_for_tokens.then(|| Tokens {
            rng: stream(seed, Stream::Tokens),
            issuer: SigningKey::from_seed([11; 32]),
            revoked: Revocations::new(MOST_REVOKED),
            issued: 0,
            held: vec![None; scenario.participants],
            calm_from: scenario.calm_from,
        })
    }

    /// Whom the relay is to believe now.
    pub(crate) fn trust(&self) -> Option<Arc<Trust>> {
        let keys = KeySet::new([self.issuer.public().clone()], &[], UNIX_ZERO).ok()?;
        Some(Arc::new(Trust { keys, revoked: self.revoked.clone() }))
    }

    /// A participant is about to join, as who it was or as someone new. Returns who it is, its token, and
    /// when it should renew that, if it means to.
    pub(crate) fn admit(
        &mut self,
        now: Time,
        number: usize,
        comtree: Comtree,
        was: Option<Identity>,
    ) -> (Identity, Vec<u8>, Option<Time>) {
        let identity = was.unwrap_or_else(|| Identity::new(self.rng.random()));
        let key = *identity.public();
        // Some try once more with what was taken from them.
        let again = self.held[number].take().filter(|held| held.key == key && held.must_end < now);
        if let Some(again) = again.filter(|_| self.rng.random_bool(0.3)) {
            let token = again.token.clone();
            self.held[number] = Some(again);
            return (identity, token, None);
        }
        let expires = expiry(now, self.rng.random_range(SHORT_S));
        let is_short = self.rng.random_bool(0.3) && end_of(expires) + SLACK < self.calm_from;
        let expires = if is_short { expires } else { expiry(now, LONG_S) };
        let held = self.issue(comtree, key, expires);
        let (renew_at, token) = (held.must_end - RENEWED_BEFORE, held.token.clone());
        self.held[number] = Some(held);
        let is_renewed = is_short && self.rng.random_bool(0.5);
        (identity, token, is_renewed.then_some(renew_at))
    }

    fn issue(&mut self, comtree: Comtree, key: [u8; 32], expires: UnixTime) -> Held {
        self.issued += 1;
        let (id, end) = (format!("token-{}", self.issued), end_of(expires));
        let token = issue(&self.issuer, &id, comtree, key, expires);
        Held { id, comtree, key, token, may_end: end, must_end: end }
    }

    /// A participant renews its token: the one that it will bring from now on.
    pub(crate) fn renewal(&mut self, now: Time, number: usize) -> Option<Vec<u8>> {
        let before = self.held[number].clone().filter(|held| now < held.may_end)?;
        let held = self.issue(before.comtree, before.key, expiry(now, LONG_S));
        let token = held.token.clone();
        self.held[number] = Some(Held { may_end: before.may_end, ..held });
        Some(token)
    }

    /// The relay has taken a participant's renewal.
    pub(crate) fn renewed(&mut self, number: usize) {
        if let Some(held) = &mut self.held[number] {
            held.may_end = held.must_end;
        }
    }

    /// Revokes somebody's token. Returns whose.
    pub(crate) fn revoke(&mut self, now: Time) -> Option<usize> {
        let number = self.rng.random_range(0..self.held.len());
        // A renewal that is under way may be of either token.
        let is_settled = |held: &&mut Held| held.may_end == held.must_end && now < held.may_end;
        let held = self.held[number].as_mut().filter(is_settled)?;
        let expires = UNIX_ZERO.after(2 * LONG_S);
        self.revoked.add(&held.id, expires, UNIX_ZERO).ok()?;
        (held.may_end, held.must_end) = (now, now);
        Some(number)
    }

    /// Whether the relay may have ended what a participant's token began.
    pub(crate) fn may_have_ended(&self, now: Time, number: usize) -> bool {
        self.held[number].as_ref().is_none_or(|held| held.may_end <= now)
    }

    /// Whether it must have.
    pub(crate) fn must_have_ended(&self, now: Time, number: usize) -> bool {
        self.held[number].as_ref().is_some_and(|held| held.must_end + SLACK < now)
    }

    /// Somebody who brings another's token, or one that nobody trusts issued.
    pub(crate) fn thief(&mut self) -> Option<SessionConfig> {
        let number = self.rng.random_range(0..self.held.len());
        let Held { comtree, token, .. } = self.held[number].clone()?;
        let (identity, seed) = (Identity::new(self.rng.random()), self.rng.random::<Tag>());
        let forger = SigningKey::from_seed([66; 32]);
        let own = || issue(&forger, "own", comtree, *identity.public(), UNIX_ZERO.after(LONG_S));
        let token = if self.rng.random_bool(0.5) { token } else { own() };
        let identity = Some(identity);
        Some(SessionConfig { identity, token, ..SessionConfig::new(comtree, seed) })
    }
}

/// What a token says of its end that is to be in so many seconds, as the relay takes it: clocks may differ.
fn expiry(now: Time, seconds: u64) -> UnixTime {
    let end_s = now.as_nanos() / 1_000_000_000 + seconds;
    UNIX_ZERO.after(end_s.saturating_sub(CLOCK_SKEW))
}

/// When the relay ends what such a token began.
fn end_of(expires: UnixTime) -> Time {
    Time::from_millis((expires.0 + CLOCK_SKEW - UNIX_ZERO.0) * 1000)
}

/// A token for everything on a comtree.
fn issue(
    issuer: &SigningKey,
    id: &str,
    comtree: Comtree,
    client_key: [u8; 32],
    expires: UnixTime,
) -> Vec<u8> {
    let all = || Scope {
        groups: format!("0-{}", Group::MAX).parse().into_iter().collect(),
        level: Level(u8::MAX),
    };
    let grant =
        ComtreeGrant { comtree, publish: all(), subscribe: all(), unicast: Unicast::Anybody };
    let claims = Claims {
        subject: "somebody".to_owned(),
        id: id.to_owned(),
        expires,
        not_before: None,
        client_key,
        grant: Grant {
            world: "main".to_owned(),
            address: None,
            comtrees: vec![grant],
            budget: Budget::default(),
            roles: Vec::new(),
        },
    };
    issuer.issue(&claims).map(String::into_bytes).unwrap_or_default()
}
