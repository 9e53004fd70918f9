//! Who may join: what a credential says, and what it bounds.

use crate::trust::TrustFile;
use canopy_api::{Budget, Problem};
use canopy_control::{Admission, Member, MemberState, Owner};
use canopy_plan::{Limits, Rate};
use canopy_session::derive;
use canopy_token::{
    Claims, ComtreeGrant, Grant, KeySet, MAX_COMTREES, Revocations, SigningKey, TokenError,
    UnixTime,
};
use canopy_wire::Comtree;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// How the identifiers of tokens begin whose bearers a backend has let in. No credential bounds those, so such a token
/// is a credential for the place: it renews that and moves it, until it ends or the place does. The number of the
/// entry follows: once its bearer has come in otherwise, the token counts no more. Who came with a credential needs
/// that each time, so that its end and its revocation count.
const LET_IN: &str = "in-";
const ASK_FOR_ANOTHER: &str = "ask the world's backend for another";

/// Whose credentials are good for a join.
pub(crate) enum Admits {
    /// Tokens by the keys of a trust file.
    Trusted(TrustFile),
    /// Everybody: worlds are open.
    Everybody,
}

/// What credentials are checked against.
pub(super) struct Credentials {
    admits: Mutex<Admits>,
    /// The controller's own key. Whoever has a place has a token by it, which is a credential if a backend let its
    /// bearer in: see [`LET_IN`].
    own: KeySet,
}

/// What somebody may do whose credential was checked.
#[derive(Clone, Debug)]
pub(super) struct Right {
    pub(super) owner: Owner,
    pub(super) subject: String,
    ceiling: Ceiling,
    source: Source,
}

/// Where a right is from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A credential that somebody brings, or nobody needs one.
    Itself,
    /// A backend answers for it. This is the entry's number, unless there is one already.
    Backend(u64),
    /// The token of a place that there is, by the entry of this number. It lets nobody in who has none, unless the relay
    /// of that was lost.
    Place(u64),
}

/// What bounds a right.
#[derive(Clone, Debug)]
enum Ceiling {
    Nothing,
    /// What a credential grants, whose comtrees are counted within the world.
    Credential(Grant),
    /// What a place's token grants.
    Token(Grant),
}

impl Credentials {
    pub(super) fn new(admits: Admits, issuer: &SigningKey) -> Credentials {
        let own = KeySet::of([issuer.public().clone()]);
        Credentials { admits: Mutex::new(admits), own }
    }

    /// What the credential lets whoever has this key do in the world.
    ///
    /// # Errors
    /// It does not do.
    pub(super) fn check(
        &self,
        world: &str,
        credential: Option<&str>,
        client_key: &[u8; 32],
    ) -> Result<Right, Problem> {
        if let Some(own) = credential.and_then(|credential| self.own(credential)) {
            let (claims, number) = own?;
            let right = Right::of(claims, world, client_key, Ceiling::Token)?;
            let source = Source::Place(number);
            return Ok(Right { source, ..right });
        }
        let mut admits = self.admits.lock().unwrap_or_else(PoisonError::into_inner);
        let Admits::Trusted(trust) = &mut *admits else {
            credential.map_or(Ok(()), readable)?;
            let (owner, subject) = (owner_of("", client_key), "anybody".to_owned());
            return Ok(Right::without_bounds(owner, subject));
        };
        let Some(credential) = credential else {
            return Err(refused(401, "there is none", "ask the world's backend for a token"));
        };
        let trust = trust.get();
        let verified = trust.keys.verify(credential, unix_now(), &trust.revoked);
        let verified = verified.map_err(|error| refused(401, error, ASK_FOR_ANOTHER))?;
        Right::of(verified.claims, world, client_key, Ceiling::Credential)
    }

    /// What a token says that this controller has signed itself for somebody whom a backend let in; nothing if it is
    /// another.
    fn own(&self, credential: &str) -> Option<Result<(Claims, u64), Problem>> {
        let mut admits = self.admits.lock().unwrap_or_else(PoisonError::into_inner);
        let none = Revocations::new(0);
        let revoked = match &mut *admits {
            Admits::Trusted(trust) => &trust.get().revoked,
            Admits::Everybody => &none,
        };
        match self.own.verify(credential, unix_now(), revoked) {
            Ok(verified) => let_in_number(&verified.claims.id).map(|of| Ok((verified.claims, of))),
            Err(TokenError::UnknownKey(_) | TokenError::NotAToken) => None,
            Err(error) => Some(Err(refused(401, error, ASK_FOR_ANOTHER))),
        }
    }
}

impl Right {
    /// That of somebody for whom a backend answers.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn of_backend(subject: String, client_key: &[u8; 32]) -> Result<Right, Problem> {
        let owner = owner_of(&subject, client_key);
        let source = Source::Backend(u64::from_ne_bytes(chance()?).max(1));
        Ok(Right { source, ..Right::without_bounds(owner, subject) })
    }

    fn without_bounds(owner: Owner, subject: String) -> Right {
        let ceiling = Ceiling::Nothing;
        Right { owner, subject, ceiling, source: Source::Itself }
    }

    fn of(
        claims: Claims,
        world: &str,
        client_key: &[u8; 32],
        ceiling: fn(Grant) -> Ceiling,
    ) -> Result<Right, Problem> {
        let Claims { subject, client_key: key, grant, .. } = claims;
        if grant.world != world {
            let what = format!("it is for the world {}, not {world}", grant.world);
            return Err(refused(403, what, "ask the world's backend for one for this world"));
        }
        if key != *client_key {
            let what = "it names another key than the one that you have proved to have";
            return Err(refused(403, what, "use the key that it was issued for"));
        }
        let owner = owner_of(&subject, client_key);
        Ok(Right { ceiling: ceiling(grant), ..Right::without_bounds(owner, subject) })
    }

    /// Whether it counts for this place of its owner's, which that has or had last.
    ///
    /// # Errors
    /// It is by the token of a place that has ended, or that its owner has come into otherwise since.
    pub(super) fn check_place(&self, known: Option<&Member>) -> Result<(), Problem> {
        let Source::Place(number) = self.source else { return Ok(()) };
        match known {
            Some(known) if known.entry.let_in == number => Ok(()),
            Some(known) if known.state == MemberState::Held => {
                let what = "whoever it is for has come in otherwise since";
                Err(refused(401, what, "use the credential or the token that they came in by last"))
            }
            _ => {
                let remedy = "ask the world's backend to let you in";
                Err(refused(401, "your place has ended", remedy))
            }
        }
    }

    /// The number that the tokens of its place name, which was this before; 0 if they are no credentials.
    pub(super) fn let_in(&self, before: u64) -> u64 {
        match self.source {
            Source::Itself => 0,
            // Whom a backend has let in already goes on by the token that it has, with no more than it had.
            Source::Backend(_) if before != 0 => before,
            Source::Backend(new) => new,
            Source::Place(number) => number,
        }
    }

    /// What a place by it may bear at most; anything if nothing.
    pub(super) fn most(&self) -> Option<Limits> {
        let (Ceiling::Credential(Grant { budget: most, .. })
        | Ceiling::Token(Grant { budget: most, .. })) = &self.ceiling
        else {
            return None;
        };
        let number = |most: Option<u64>| most.map_or(f64::INFINITY, |most| most as f64);
        let rate = |bits, packets| Rate { bits: number(bits), packets: number(packets) };
        Some(Limits {
            send: rate(most.up_bits, most.up_packets),
            receive: rate(most.down_bits, most.down_packets),
        })
    }

    /// What is asked for of the controller: at most what the credential grants.
    pub(super) fn budget(&self, asked: Option<Budget>) -> Result<Option<Budget>, Problem> {
        let (Ceiling::Credential(Grant { budget: most, .. })
        | Ceiling::Token(Grant { budget: most, .. })) = &self.ceiling
        else {
            return Ok(asked);
        };
        let Some(asked) = asked else {
            let all = most.up_bits.zip(most.up_packets).zip(most.down_bits.zip(most.down_packets));
            let budget = all.map(|((up_bits, up_packets), (down_bits, down_packets))| Budget {
                up_bits,
                up_packets,
                down_bits,
                down_packets,
            });
            return Ok(budget);
        };
        for (field, asked, most) in [
            ("up_bits", asked.up_bits, most.up_bits),
            ("up_packets", asked.up_packets, most.up_packets),
            ("down_bits", asked.down_bits, most.down_bits),
            ("down_packets", asked.down_packets, most.down_packets),
        ] {
            if let Some(most) = most.filter(|most| asked > *most) {
                let what = format!("{asked} is more than your credential grants, {most}");
                return Err(Problem::new(403, what, &format!("budget.{field}"), "ask for less"));
            }
        }
        Ok(Some(asked))
    }

    /// What the token grants: of what was admitted, what the credential grants. The token of a place narrows nothing:
    /// it grants what was admitted then, and the world may have other levels by now.
    pub(super) fn grant(&self, admission: Admission) -> Grant {
        let Ceiling::Credential(grant) = &self.ceiling else { return admission.grant };
        let bounded = |granted: ComtreeGrant| {
            let of = admission.grant.on(granted.comtree)?;
            let publish = granted.publish.up_to(of.publish.level);
            let subscribe = granted.subscribe.up_to(of.subscribe.level);
            Some(ComtreeGrant { publish, subscribe, ..granted })
        };
        let granted = granted(grant, &admission.comtrees).filter_map(bounded);
        let comtrees = granted.take(MAX_COMTREES).collect();
        Grant { comtrees, roles: grant.roles.clone(), ..admission.grant }
    }

    /// Whether it grants anything in a world of these comtrees.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn check_comtrees(&self, comtrees: &[Comtree]) -> Result<(), Problem> {
        let Ceiling::Credential(grant) = &self.ceiling else { return Ok(()) };
        if granted(grant, comtrees).next().is_some() {
            return Ok(());
        }
        let what = "it grants nothing on the world's comtrees";
        let remedy = "ask for one that grants something on comtree 1, the world's first";
        Err(Problem::new(403, what, "credential", remedy))
    }
}

/// What a credential grants on each of a world's comtrees, which it counts from 1.
fn granted(grant: &Grant, comtrees: &[Comtree]) -> impl Iterator<Item = ComtreeGrant> {
    (1..).zip(comtrees).filter_map(|(number, comtree)| {
        Some(ComtreeGrant { comtree: *comtree, ..grant.on(Comtree(number))?.clone() })
    })
}

/// The number of the entry that a token's identifier names; nothing if the token is no credential.
fn let_in_number(id: &str) -> Option<u64> {
    u64::from_str_radix(id.strip_prefix(LET_IN)?.get(..16)?, 16).ok()
}

/// A new identifier of a token for a place by this entry.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn token_id(let_in: u64) -> Result<String, Problem> {
    Ok(match let_in {
        0 => format!("{:032x}", u128::from_ne_bytes(chance()?)),
        number => format!("{LET_IN}{number:016x}{:016x}", u64::from_ne_bytes(chance()?)),
    })
}

fn chance<const N: usize>() -> Result<[u8; N], Problem> {
    let mut bytes = [0; N];
    let drawn = getrandom::fill(&mut bytes);
    drawn.map_err(|error| Problem::new(500, error.to_string(), "controller", "see its host"))?;
    Ok(bytes)
}

/// Who brings a credential where none is needed may mean another world or controller. Whose keys are known nowhere,
/// nobody can tell; what is no token is a mistake.
fn readable(credential: &str) -> Result<(), Problem> {
    let remedy = "give the token as the world's backend has issued it, or none: the world is open";
    let read = Claims::read_unverified(credential);
    read.map(|_| ()).map_err(|error| refused(401, error, remedy))
}

/// A credential does not do.
fn refused(status: u16, what: impl ToString, remedy: &str) -> Problem {
    Problem::new(status, what.to_string(), "credential", remedy)
}

/// Who somebody is: by the name that the backend gives them, and by their key.
fn owner_of(subject: &str, client_key: &[u8; 32]) -> Owner {
    let digest = derive(client_key, &[b"canopy member ", subject.as_bytes()].concat());
    let mut owner = [0; 16];
    owner.copy_from_slice(&digest[..16]);
    owner
}

fn unix_now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixTime(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_control::{Entry, RelayId, WorldId};
    use canopy_wire::{Address, Time};

    #[test]
    fn whose_relay_is_lost_comes_back_by_its_token_and_who_has_left_does_not() {
        let right = Right::without_bounds([1; 16], "player".to_owned());
        let right = Right { source: Source::Place(5), ..right };
        let none = Rate { bits: 0.0, packets: 0.0 };
        let limits = Limits { send: none, receive: none };
        let member = |state, let_in| Member {
            world: WorldId(1),
            address: Address::unicast(0x7000, 64),
            relay: RelayId(1),
            owner: [1; 16],
            limits,
            reserved: limits,
            until: Time::ZERO,
            state,
            barred: None,
            entry: Entry { let_in, visit: 0 },
            subject: "player".to_owned(),
            token_until: Time::ZERO,
        };
        let said = |known: Option<Member>| {
            right.check_place(known.as_ref()).err().map(|problem| problem.to_string())
        };
        let is = |said: Option<String>, words: &str| said.is_some_and(|text| text.contains(words));
        assert_eq!(said(Some(member(MemberState::Held, 5))), None);
        assert_eq!(said(Some(member(MemberState::Resting, 5))), None, "its relay was lost");
        assert!(is(said(Some(member(MemberState::Held, 6))), "come in otherwise"));
        assert!(is(said(Some(member(MemberState::Resting, 0))), "has ended"));
        assert!(is(said(None), "has ended"));
    }
}
