//! Who is let in, and what a member may do on its comtree (Forest §3.1: what an access router
//! checks).

use crate::meters::Budget;
use canopy_session::{PublicKey, derive};
use canopy_token::{
    CLOCK_SKEW, Claims, ComtreeGrant, KeyId, KeySet, Revocations, Role, Scope, TokenError, Unicast,
    UnixTime, Verified,
};
use canopy_wire::{Acts, Address, Comtree, DropReason, Group, Level, Restriction, Time, Verdict};
use core::fmt::{self, Write as _};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whose tokens a relay takes, and which of them no more.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The keys.
    pub keys: KeySet,
    /// Tokens that have not ended and are taken no more.
    pub revoked: Revocations,
}

/// The time of day, where the relay's time was zero at `origin`.
pub(crate) fn time_of_day(origin: UnixTime, now: Time) -> UnixTime {
    origin.after(now.as_nanos() / 1_000_000_000)
}

/// Why somebody was not let in by what it brought.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenRefusal {
    /// It brought no token.
    Missing,
    /// The token does not hold.
    Invalid(TokenError),
    /// The token is for the owner of another key: it may be stolen.
    OtherKey,
    /// The token is for another world than the comtree's.
    OtherWorld(String),
    /// The token grants nothing on the comtree.
    OtherComtree(Comtree),
    /// The token is for relays of another site.
    OtherSite(u16),
    /// A server has thrown the token's bearer out.
    ThrownOut,
    /// The address that the token names has no place here any more.
    Dismissed(Address),
}

impl fmt::Display for TokenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenRefusal::Missing => f.write_str("it brought no token"),
            // What it says may be anybody's words, and is not to look like another line of a log.
            TokenRefusal::Invalid(error) => {
                f.write_str("its token is not taken: ")?;
                error.to_string().chars().try_for_each(|c| match c.is_control() {
                    true => write!(f, "{}", c.escape_default()),
                    false => f.write_char(c),
                })
            }
            TokenRefusal::OtherKey => f.write_str("its token is for the owner of another key"),
            TokenRefusal::OtherWorld(world) => write!(f, "its token is for the world {world:?}"),
            TokenRefusal::OtherComtree(Comtree(id)) => {
                write!(f, "its token grants nothing on comtree {id}")
            }
            TokenRefusal::OtherSite(site) => {
                write!(f, "its token is for relays of site {site}")
            }
            TokenRefusal::ThrownOut => f.write_str("a server has thrown its token's bearer out"),
            TokenRefusal::Dismissed(address) => {
                write!(
                    f,
                    "its token is for the address {address}, which has no place here any more"
                )
            }
        }
    }
}

/// A token's identifier and the key that it is for, shortened to what data threads tell each other.
/// Whoever issues tokens chooses the identifiers: so two of the same name are one for the owner of one
/// key alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TokenId(pub(crate) u64);

impl TokenId {
    fn of(client_key: &PublicKey, id: &str) -> TokenId {
        let [a, b, c, d, e, f, g, h, ..] = derive(client_key, id.as_bytes());
        TokenId(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// What a token grants on its comtree. Most members of a world may do the same, and share it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    publish: Scope,
    subscribe: Scope,
    unicast: Unicast,
    budget: canopy_token::Budget,
}

/// What a member may do on its comtree, by its token and by what servers have said of it.
#[derive(Clone, Debug)]
pub(crate) struct Rights {
    granted: Arc<Granted>,
    is_server: bool,
    address: Option<Address>,
    restrictions: Vec<Restriction>,
    token: TokenId,
    /// The token's whole identifier, and the key that signed it.
    id: Box<str>,
    key: KeyId,
    ends: Time,
}

impl Rights {
    /// What a token grants on a comtree, if it grants anything there. Where that is what `last` was
    /// granted, they share it.
    pub(crate) fn new(
        origin: UnixTime,
        verified: Verified,
        comtree: Comtree,
        last: &mut Option<Arc<Granted>>,
    ) -> Option<Rights> {
        let Verified { claims, key } = verified;
        let Claims { id, expires, client_key, mut grant, .. } = claims;
        let at = grant.comtrees.iter().position(|one| one.comtree == comtree)?;
        let ComtreeGrant { publish, subscribe, unicast, .. } = grant.comtrees.swap_remove(at);
        let seconds = expires.after(CLOCK_SKEW).0.saturating_sub(origin.0);
        let granted = Granted { publish, subscribe, unicast, budget: grant.budget };
        let shared = last.take().filter(|last| **last == granted);
        let granted = shared.unwrap_or_else(|| Arc::new(granted));
        *last = Some(Arc::clone(&granted));
        Some(Rights {
            granted,
            is_server: grant.roles.contains(&Role::Server),
            address: grant.address,
            restrictions: Vec::new(),
            token: TokenId::of(&client_key, &id),
            id: id.into(),
            key,
            ends: Time::from_nanos(seconds.saturating_mul(1_000_000_000)),
        })
    }

    pub(crate) fn token(&self) -> TokenId {
        self.token
    }

    /// What the token lets its bearer send, where it says so, and otherwise what all may.
    pub(crate) fn budget(&self, all: Budget) -> Budget {
        // A token may grant nothing, and 0 is no limit here.
        let granted = |number: Option<u64>, all| number.map_or(all, |number| number.max(1));
        let budget = &self.granted.budget;
        Budget {
            up_packets: granted(budget.up_packets, all.up_packets),
            up_bits: granted(budget.up_bits, all.up_bits),
            down_packets: granted(budget.down_packets, all.down_packets),
            down_bits: granted(budget.down_bits, all.down_bits),
        }
    }

    /// The address that the token names for its bearer.
    pub(crate) fn address(&self) -> Option<Address> {
        self.address
    }

    /// When the token ends.
    pub(crate) fn ends(&self) -> Time {
        self.ends
    }

    /// Whether it may restrict other members and throw them out.
    pub(crate) fn is_server(&self) -> bool {
        self.is_server
    }

    /// Whether the token is still taken.
    pub(crate) fn is_trusted(&self, trust: &Trust) -> bool {
        trust.keys.trusts(&self.key) && !trust.revoked.contains(&self.id)
    }

    pub(crate) fn restrict(&mut self, restrictions: &[Restriction]) {
        self.restrictions = restrictions.to_vec();
    }

    /// Whether an update may be sent.
    #[inline]
    pub(crate) fn check_update(&self, dst: Address, level: Level) -> Result<(), DropReason> {
        let Some(group) = dst.group() else {
            let is_restricted = self.restrictions.iter().any(|one| one.acts.any_of(Acts::UNICAST));
            return match (self.granted.unicast.allows(dst), is_restricted) {
                (false, _) => Err(DropReason::UnicastNotAllowed),
                (true, true) => Err(DropReason::Restricted),
                (true, false) => Ok(()),
            };
        };
        let publish = &self.granted.publish;
        if !publish.allows(group, level) {
            return Err(match publish.has_group(group) {
                true => DropReason::PublishLevelNotAllowed,
                false => DropReason::PublishNotAllowed,
            });
        }
        if self.is_restricted(Acts::PUBLISH, group) {
            return Err(DropReason::Restricted);
        }
        Ok(())
    }

    /// Whether a subscription may be had.
    pub(crate) fn check_subscription(&self, group: Group, level: Level) -> Result<(), DropReason> {
        let subscribe = &self.granted.subscribe;
        if !subscribe.allows(group, level) {
            return Err(match subscribe.has_group(group) {
                true => DropReason::SubscribeLevelNotAllowed,
                false => DropReason::SubscribeNotAllowed,
            });
        }
        if self.is_restricted(Acts::SUBSCRIBE, group) {
            return Err(DropReason::Restricted);
        }
        Ok(())
    }

    fn is_restricted(&self, act: Acts, group: Group) -> bool {
        let covers =
            |one: &Restriction| one.acts.any_of(act) && (one.first..=one.last).contains(&group);
        self.restrictions.iter().any(covers)
    }
}

/// What a server has said of the bearer of a token. It holds for as long as the token, wherever its
/// bearer joins again.
#[derive(Clone, Debug)]
pub(crate) struct Conduct {
    ends: Time,
    pub(crate) is_thrown_out: bool,
    pub(crate) restrictions: Vec<Restriction>,
}

/// What servers have said, by token.
#[derive(Debug, Default)]
pub(crate) struct Conducts {
    by_token: BTreeMap<TokenId, Conduct>,
}

/// The most bearers of whom something is remembered.
const MAX_CONDUCTS: usize = 4096;
/// The most restrictions of one bearer.
const MAX_RESTRICTIONS: usize = 16;

impl Conducts {
    pub(crate) fn of(&self, token: TokenId) -> Option<&Conduct> {
        self.by_token.get(&token)
    }

    /// Notes a verdict on the bearer of a token that ends at `ends`. False if there is no room.
    pub(crate) fn note(&mut self, now: Time, token: TokenId, ends: Time, verdict: Verdict) -> bool {
        if self.by_token.len() >= MAX_CONDUCTS && !self.by_token.contains_key(&token) {
            self.by_token.retain(|_, conduct| conduct.ends > now);
            if self.by_token.len() >= MAX_CONDUCTS {
                return false;
            }
        }
        let unblamed = Conduct { ends, is_thrown_out: false, restrictions: Vec::new() };
        let conduct = self.by_token.entry(token).or_insert(unblamed);
        conduct.ends = conduct.ends.max(ends);
        match verdict {
            Verdict::ThrowOut => conduct.is_thrown_out = true,
            Verdict::Restrict(restriction) if conduct.restrictions.contains(&restriction) => {}
            Verdict::Restrict(_) if conduct.restrictions.len() >= MAX_RESTRICTIONS => return false,
            Verdict::Restrict(restriction) => conduct.restrictions.push(restriction),
            Verdict::Restore(restriction) => conduct.restrictions.retain(|one| *one != restriction),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_session::Identity;
    use canopy_token::{Grant, SigningKey};

    const NOW: UnixTime = UnixTime(1_800_000_000);

    /// What a token of this bearer grants, up to a level.
    fn rights(bearer: u8, level: Level, last: &mut Option<Arc<Granted>>) -> Rights {
        let key = SigningKey::from_seed([1; 32]);
        let scope = Scope { level, ..Scope::everything() };
        let comtree = ComtreeGrant {
            comtree: Comtree(1),
            publish: scope.clone(),
            subscribe: scope,
            unicast: Unicast::Anybody,
        };
        let token = key.issue(&Claims {
            subject: format!("player-{bearer}"),
            id: format!("{bearer:032x}"),
            expires: NOW.after(3600),
            not_before: None,
            client_key: *Identity::new([bearer; 32]).public(),
            grant: Grant {
                world: "main".to_owned(),
                address: None,
                site: None,
                comtrees: vec![comtree],
                budget: canopy_token::Budget::default(),
                roles: Vec::new(),
            },
        });
        let keys = KeySet::new([key.public().clone()], &[], NOW).unwrap();
        let verified = keys.verify(&token.unwrap(), NOW, &Revocations::new(0)).unwrap();
        Rights::new(NOW, verified, Comtree(1), last).unwrap()
    }

    #[test]
    fn those_who_may_do_the_same_share_what_is_kept_of_it() {
        let mut last = None;
        let [one, two, other] =
            [(1, 2), (2, 2), (3, 1)].map(|(bearer, level)| rights(bearer, Level(level), &mut last));
        assert!(Arc::ptr_eq(&one.granted, &two.granted) && one.token != two.token);
        assert!(!Arc::ptr_eq(&two.granted, &other.granted));
        let (group, asked) = (Group::new(7), Level(2));
        assert_eq!(two.check_subscription(group, asked), Ok(()));
        let refused = Err(DropReason::SubscribeLevelNotAllowed);
        assert_eq!(other.check_subscription(group, asked), refused);
    }
}
