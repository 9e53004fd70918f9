//! Tokens: in some scenarios the relay lets nobody in without one. Each participant brings one of its own
//! whenever it joins. Some end within the run, and some of those are renewed; some are revoked. In some
//! scenarios they grant one participant less than another. Thieves come with tokens of others, and forgers with their own.

use crate::config::SimConfig;
use crate::host::UNIX_ZERO;
use crate::sabotage::Sabotage;
use crate::scenario::{Scenario, Stream, stream};
use canopy_relay::{Trust, UnixTime};
use canopy_session::{Identity, SessionConfig};
use canopy_token::{
    Budget, CLOCK_SKEW, Claims, ComtreeGrant, Grant, KeySet, Revocations, Scope, SigningKey,
    Unicast,
};
use canopy_wire::{Address, Comtree, Group, Level, Tag, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
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

/// What all tokens of a participant grant: groups up to a number, at levels up to one.
#[derive(Clone, Copy, Debug)]
struct Rights {
    publish: (u32, u8),
    subscribe: (u32, u8),
    unicast: bool,
}

impl Rights {
    const ALL: Rights =
        Rights { publish: (Group::MAX, u8::MAX), subscribe: (Group::MAX, u8::MAX), unicast: true };

    /// Those of somebody who may do a part of what there is to do.
    fn draw(groups: u32, rng: &mut ChaCha8Rng) -> Rights {
        let mut scope = || {
            let last = rng.random_range(groups.div_ceil(2)..=groups);
            (last, [1, 2, 3, u8::MAX][rng.random_range(0..4)])
        };
        let (publish, subscribe) = (scope(), scope());
        Rights { publish, subscribe, unicast: rng.random_bool(0.5) }
    }
}

fn holds((last, level): (u32, u8), group: Group, at: Level) -> bool {
    group.number() <= last && at.0 <= level
}

/// The issuer of all tokens, and who holds which.
pub(crate) struct Tokens {
    rng: ChaCha8Rng,
    issuer: SigningKey,
    revoked: Revocations,
    issued: u64,
    held: Vec<Option<Held>>,
    /// By participant.
    rights: Vec<Rights>,
    /// Updates that were published without the right to.
    not_granted: BTreeSet<u64>,
    /// All tokens grant everything, by a fault.
    grants_all: bool,
    /// No token ends from here on.
    calm_from: Time,
}

impl Tokens {
    /// `None` where the relay lets in whoever comes.
    pub(crate) fn new(config: &SimConfig, scenario: &Scenario) -> Option<Tokens> {
        if !scenario.asks_for_tokens {
            return None;
        }
        let mut rng = stream(config.seed, Stream::Tokens);
        let grants_all = config.sabotage == Some(Sabotage::GrantAll);
        let are_limited = rng.random_bool(0.5) || grants_all;
        let groups = scenario.habits.side.pow(2);
        let rights = (0..scenario.participants).map(|_| {
            let is_limited = rng.random_bool(0.5) && are_limited;
            if is_limited { Rights::draw(groups, &mut rng) } else { Rights::ALL }
        });
        Some(Tokens {
            rights: rights.collect(),
            not_granted: BTreeSet::new(),
            grants_all,
            rng,
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
        let held = self.issue(number, comtree, key, expires);
        let (renew_at, token) = (held.must_end - RENEWED_BEFORE, held.token.clone());
        self.held[number] = Some(held);
        let is_renewed = is_short && self.rng.random_bool(0.5);
        (identity, token, is_renewed.then_some(renew_at))
    }

    fn issue(&mut self, number: usize, comtree: Comtree, key: [u8; 32], expires: UnixTime) -> Held {
        self.issued += 1;
        let (id, end) = (format!("token-{}", self.issued), end_of(expires));
        let rights = if self.grants_all { Rights::ALL } else { self.rights[number] };
        let token = issue(&self.issuer, &id, (comtree, rights), key, expires);
        Held { id, comtree, key, token, may_end: end, must_end: end }
    }

    /// A participant renews its token: the one that it will bring from now on.
    pub(crate) fn renewal(&mut self, now: Time, number: usize) -> Option<Vec<u8>> {
        let before = self.held[number].clone().filter(|held| now < held.may_end)?;
        let held = self.issue(number, before.comtree, before.key, expiry(now, LONG_S));
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

    /// A participant publishes an update, which reaches nobody if it may not.
    pub(crate) fn publishes(&mut self, number: usize, id: u64, dst: Address, level: Level) {
        let Rights { publish, unicast, .. } = self.rights[number];
        if !dst.group().map_or(unicast, |group| holds(publish, group, level)) {
            self.not_granted.insert(id);
        }
    }

    /// Whether an update may be on its way to anybody.
    pub(crate) fn is_granted(&self, id: u64) -> bool {
        !self.not_granted.contains(&id)
    }

    /// How many updates were published without the right to.
    pub(crate) fn not_granted(&self) -> u64 {
        self.not_granted.len() as u64
    }

    /// Whether a participant may have what is published to a group at a level.
    pub(crate) fn may_hear(&self, number: usize, group: Group, level: Level) -> bool {
        holds(self.rights[number].subscribe, group, level)
    }

    /// Somebody who brings another's token, or one that nobody trusts issued.
    pub(crate) fn thief(&mut self) -> Option<SessionConfig> {
        let number = self.rng.random_range(0..self.held.len());
        let Held { comtree, token, .. } = self.held[number].clone()?;
        let (identity, seed) = (Identity::new(self.rng.random()), self.rng.random::<Tag>());
        let forger = SigningKey::from_seed([66; 32]);
        let all = (comtree, Rights::ALL);
        let own = || issue(&forger, "own", all, *identity.public(), UNIX_ZERO.after(LONG_S));
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

/// A token for rights on a comtree.
fn issue(
    issuer: &SigningKey,
    id: &str,
    (comtree, rights): (Comtree, Rights),
    client_key: [u8; 32],
    expires: UnixTime,
) -> Vec<u8> {
    let scope = |(last, level): (u32, u8)| Scope {
        groups: format!("0-{last}").parse().into_iter().collect(),
        level: Level(level),
    };
    let grant = ComtreeGrant {
        comtree,
        publish: scope(rights.publish),
        subscribe: scope(rights.subscribe),
        unicast: if rights.unicast { Unicast::Anybody } else { Unicast::Nobody },
    };
    let claims = Claims {
        subject: "somebody".to_owned(),
        id: id.to_owned(),
        expires,
        not_before: None,
        client_key,
        grant: Grant {
            world: "main".to_owned(),
            address: None,
            site: None,
            comtrees: vec![grant],
            budget: Budget::default(),
            roles: Vec::new(),
        },
    };
    issuer.issue(&claims).map(String::into_bytes).unwrap_or_default()
}
