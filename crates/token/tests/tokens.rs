//! Tokens from issuing to verifying: what passes, and every way in which one must not.

use canopy_token::{
    Budget, CLOCK_SKEW, Claims, ComtreeGrant, Delegation, Grant, KeySet, MAX_TOKEN, PublicKey,
    Revocations, RevocationsFull, Role, Scope, SigningKey, TokenError, Unicast, UnixTime,
};
use canopy_wire::{Address, Comtree, Group, Level};
use proptest::prelude::*;

const NOW: UnixTime = UnixTime(1_800_000_000);

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed([seed; 32])
}

fn groups(ranges: &[&str], level: u8) -> Scope {
    let groups = ranges.iter().map(|range| range.parse().unwrap()).collect();
    Scope { groups, level: Level(level) }
}

fn grant() -> Grant {
    Grant {
        world: "lobby".to_owned(),
        address: None,
        site: None,
        comtrees: vec![ComtreeGrant {
            comtree: Comtree(7),
            publish: groups(&["0-4095"], 0),
            subscribe: groups(&["0-4095", "9000"], 2),
            unicast: Unicast::Only(Address::unicast(1, 64)),
        }],
        budget: Budget { up_bits: Some(64_000), ..Budget::default() },
        roles: Vec::new(),
    }
}

fn claims() -> Claims {
    Claims {
        subject: "player-17".to_owned(),
        id: "5b0c8d2e".to_owned(),
        expires: NOW.after(3600),
        not_before: Some(NOW),
        client_key: [9; 32],
        grant: grant(),
    }
}

fn keys(seeds: &[u8]) -> KeySet {
    KeySet::new(seeds.iter().map(|seed| key(*seed).public().clone()), &[], NOW).unwrap()
}

fn verify(keys: &KeySet, token: &str, now: UnixTime) -> Result<Claims, TokenError> {
    keys.verify(token, now, &Revocations::new(0)).map(|verified| verified.claims)
}

#[test]
fn what_was_issued_is_what_is_verified() {
    let token = key(1).issue(&claims()).unwrap();
    assert!(token.starts_with("v4.public.") && token.len() < MAX_TOKEN, "{}", token.len());
    assert_eq!(verify(&keys(&[1, 2]), &token, NOW), Ok(claims()));
}

#[test]
fn a_token_has_its_time() {
    let token = key(1).issue(&claims()).unwrap();
    let keys = keys(&[1]);
    let ends = NOW.after(3600);
    assert!(verify(&keys, &token, ends.after(CLOCK_SKEW)).is_ok());
    let late = verify(&keys, &token, ends.after(CLOCK_SKEW + 1));
    assert_eq!(late, Err(TokenError::Expired(ends)));
    assert!(verify(&keys, &token, UnixTime(NOW.0 - CLOCK_SKEW)).is_ok());
    let early = verify(&keys, &token, UnixTime(NOW.0 - CLOCK_SKEW - 1));
    assert_eq!(early, Err(TokenError::NotYetValid(NOW)));
}

#[test]
fn another_keys_token_is_not_taken() {
    let token = key(3).issue(&claims()).unwrap();
    let unknown = verify(&keys(&[1, 2]), &token, NOW);
    assert_eq!(unknown, Err(TokenError::UnknownKey(key(3).public().id())));
    assert!(verify(&KeySet::default(), &token, NOW).is_err(), "nothing is trusted by default");
}

/// A forger signs with a key of their own and names one that is trusted.
#[test]
fn a_forged_signature_is_found() {
    let (mine, theirs) = (key(1).issue(&claims()).unwrap(), key(2).issue(&claims()).unwrap());
    let footer = mine.rsplit_once('.').unwrap().1;
    let forged = format!("{}.{footer}", theirs.rsplit_once('.').unwrap().0);
    assert_eq!(verify(&keys(&[1]), &forged, NOW), Err(TokenError::BadSignature));
}

#[test]
fn a_revoked_token_is_not_taken() {
    let token = key(1).issue(&claims()).unwrap();
    let mut revoked = Revocations::new(1);
    revoked.add("5b0c8d2e", NOW.after(3600), NOW).unwrap();
    assert_eq!(keys(&[1]).verify(&token, NOW, &revoked), Err(TokenError::Revoked));
}

#[test]
fn revocations_refuse_rather_than_forget() {
    let mut revoked = Revocations::new(2);
    assert_eq!(revoked.add("a", NOW.after(10), NOW), Ok(()));
    assert_eq!(revoked.add("b", NOW.after(500), NOW), Ok(()));
    assert_eq!(revoked.add("c", NOW.after(500), NOW), Err(RevocationsFull(2)));
    assert_eq!(revoked.add("b", NOW.after(100), NOW), Ok(()), "it is there already");
    // One has ended by now, clocks that differ allowed for.
    let later = NOW.after(10 + CLOCK_SKEW + 1);
    assert_eq!(revoked.add("c", NOW.after(500), later), Ok(()));
    assert!(!revoked.contains("a") && revoked.contains("b") && revoked.contains("c"));
}

#[test]
fn a_delegation_may_leave_open_how_long_its_tokens_last() {
    let delegation = Delegation { longest_s: u64::MAX, ..delegation(&key(2)) };
    let certificate = key(1).delegate(&delegation).unwrap();
    let keys = KeySet::new([key(1).public().clone()], &[&certificate], NOW).unwrap();
    assert_eq!(verify(&keys, &key(2).issue(&claims()).unwrap(), NOW), Ok(claims()));
}

fn delegation(to: &SigningKey) -> Delegation {
    let ceiling = Grant { roles: vec![Role::Server], ..grant() };
    Delegation { key: to.public().clone(), expires: NOW.after(7200), longest_s: 3600, ceiling }
}

fn delegated(change: impl FnOnce(&mut Claims)) -> Result<Claims, TokenError> {
    let certificate = key(1).delegate(&delegation(&key(2))).unwrap();
    let keys = KeySet::new([key(1).public().clone()], &[&certificate], NOW).unwrap();
    let mut claims = claims();
    change(&mut claims);
    verify(&keys, &key(2).issue(&claims).unwrap(), NOW)
}

#[test]
fn a_delegated_key_grants_up_to_its_ceiling() {
    assert_eq!(delegated(|_| ()), Ok(claims()));
    assert!(delegated(|claims| claims.grant.roles = vec![Role::Server]).is_ok());
    assert!(delegated(|claims| claims.grant.address = Some(Address::unicast(1, 70))).is_ok());
    assert!(delegated(|claims| claims.grant.budget.up_bits = Some(1)).is_ok());
}

#[test]
fn a_delegated_key_beyond_its_ceiling_is_refused() {
    let beyond = |change: fn(&mut Claims), part: &str| {
        let refused = delegated(change);
        let is_right =
            matches!(&refused, Err(TokenError::BeyondCeiling(why)) if why.contains(part));
        assert!(is_right, "{part}: {refused:?}");
    };
    fn on(claims: &mut Claims) -> &mut ComtreeGrant {
        &mut claims.grant.comtrees[0]
    }
    beyond(|claims| claims.grant.world = "arena".to_owned(), "world");
    beyond(|claims| on(claims).comtree = Comtree(8), "comtree 8");
    beyond(|claims| on(claims).publish = groups(&["0-4096"], 0), "publishing");
    beyond(|claims| on(claims).publish = groups(&["0-4095"], 1), "publishing");
    beyond(|claims| on(claims).subscribe = groups(&["8999-9000"], 0), "subscribing");
    beyond(|claims| on(claims).unicast = Unicast::Anybody, "unicast");
    beyond(|claims| on(claims).unicast = Unicast::Only(Address::unicast(1, 65)), "unicast");
    beyond(|claims| claims.grant.budget.up_bits = Some(64_001), "budget");
    beyond(|claims| claims.grant.budget.up_bits = None, "budget");
    beyond(|claims| claims.expires = NOW.after(3600 + CLOCK_SKEW + 1), "ends");
}

#[test]
fn a_token_may_be_for_one_site_alone() {
    let mut own = claims();
    own.grant.site = Some(7);
    assert_eq!(verify(&keys(&[1]), &key(1).issue(&own).unwrap(), NOW), Ok(own.clone()));
    let ceiling = Grant { site: Some(7), ..grant() };
    assert_eq!([own.grant.is_within(&ceiling), own.grant.is_within(&grant())], [Ok(()), Ok(())]);
    assert_eq!(grant().is_within(&ceiling), Err("another site".to_owned()));
}

#[test]
fn a_delegated_key_cannot_delegate() {
    let first = key(1).delegate(&delegation(&key(2))).unwrap();
    let second = key(2).delegate(&delegation(&key(3))).unwrap();
    let error = KeySet::new([key(1).public().clone()], &[&first, &second], NOW).unwrap_err();
    assert_eq!((error.number, error.reason), (2, TokenError::UnknownKey(key(2).public().id())));
}

/// A token is no delegation, and a delegation no token, whoever signed it.
#[test]
fn what_was_signed_for_one_purpose_does_not_serve_another() {
    let certificate = key(1).delegate(&delegation(&key(2))).unwrap();
    assert!(matches!(verify(&keys(&[1]), &certificate, NOW), Err(TokenError::Claims(_))));
    let token = key(1).issue(&claims()).unwrap();
    let error = KeySet::new([key(1).public().clone()], &[&token], NOW).unwrap_err();
    assert_eq!(error.reason, TokenError::BadSignature);
}

#[test]
fn a_delegation_that_has_ended_trusts_nobody() {
    let certificate = key(1).delegate(&delegation(&key(2))).unwrap();
    let later = NOW.after(7200);
    let keys = KeySet::new([key(1).public().clone()], &[&certificate], later).unwrap();
    let token = key(2).issue(&claims()).unwrap();
    assert!(matches!(verify(&keys, &token, NOW), Err(TokenError::UnknownKey(_))));
}

#[test]
fn what_no_relay_would_take_is_not_issued() {
    let refused = |change: fn(&mut Claims), part: &str| {
        let mut claims = claims();
        change(&mut claims);
        let error = key(1).issue(&claims).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    };
    refused(|claims| claims.subject = "x".repeat(65), "sub");
    refused(|claims| claims.id.clear(), "jti");
    refused(|claims| claims.grant.comtrees.clear(), "comtrees");
    refused(|claims| claims.not_before = Some(claims.expires), "exp");
    refused(
        |claims| {
            let twice = claims.grant.comtrees[0].clone();
            claims.grant.comtrees.push(twice);
        },
        "twice",
    );
    refused(
        |claims| {
            let long = groups(&["1000000000-1000000001"; 16], 255);
            claims.grant.comtrees[0].publish = long.clone();
            claims.grant.comtrees[0].subscribe = long;
        },
        "bytes",
    );
}

#[test]
fn keys_are_text_and_back() {
    let key = key(5);
    let again: SigningKey = key.to_secret_text().parse().unwrap();
    assert_eq!(again.public(), key.public());
    assert_eq!(key.public().to_string().parse::<PublicKey>().as_ref(), Ok(key.public()));
    for nonsense in ["", "k4.secret.", "k4.public.AAAA", "k2.secret.AAAA"] {
        assert!(nonsense.parse::<SigningKey>().is_err() && nonsense.parse::<PublicKey>().is_err());
    }
    assert!(!format!("{key:?}").contains(&key.to_secret_text()[10..]), "no secret in a log");
}

/// The claims as docs/tokens.md has them, so that an issuer in another language can rely on them.
#[test]
fn claims_read_as_documented() {
    let text = r#"{"sub":"player-17","jti":"5b0c8d2e","exp":"2027-01-15T09:00:00Z",
        "nbf":"2027-01-15T08:00:00Z","cnf":"CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk",
        "iss":"anything","world":"lobby","comtrees":[{"id":7,"pub":{"groups":["0-4095"]},
        "sub":{"groups":["0-4095","9000"],"level":2},"to":"1.64"}],"budget":{"up_bits":64000}}"#;
    assert_eq!(serde_json::from_str::<Claims>(text).unwrap(), claims());
    let unknown = text.replace("\"to\"", "\"too\"");
    assert!(serde_json::from_str::<Claims>(&unknown).is_err(), "a restriction is not passed over");
}

fn config() -> ProptestConfig {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(0x70c);
    ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

fn scope() -> impl Strategy<Value = Scope> {
    let range = (0u32..40, 0u32..12).prop_map(|(first, len)| format!("{first}-{}", first + len));
    (proptest::collection::vec(range, 0..5), 0u8..3).prop_map(|(ranges, level)| {
        groups(&ranges.iter().map(String::as_str).collect::<Vec<_>>(), level)
    })
}

proptest! {
    #![proptest_config(config())]

    /// One scope is within another exactly if it allows nothing that the other does not.
    #[test]
    fn within_means_no_more_is_allowed((mine, theirs) in (scope(), scope())) {
        let all = (0..64).flat_map(|group| (0..4).map(move |level| (Group::new(group), Level(level))));
        let allows_no_more = all.into_iter()
            .all(|(group, level)| !mine.allows(group, level) || theirs.allows(group, level));
        prop_assert_eq!(mine.is_within(&theirs), allows_no_more);
    }

    /// A token of which a bit was changed is not taken, or says the same.
    #[test]
    fn no_changed_token_is_taken(at in 0usize..1000, bit in 0u8..8) {
        let token = key(1).issue(&claims()).unwrap();
        let mut bytes = token.clone().into_bytes();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(text) = String::from_utf8(bytes) {
            prop_assert!(verify(&keys(&[1]), &text, NOW).is_err());
        }
    }

    /// Whatever is offered, it is refused in words.
    #[test]
    fn nonsense_is_refused(text in "(v4\\.public\\.)?[A-Za-z0-9_.-]{0,80}") {
        prop_assert!(verify(&keys(&[1]), &text, NOW).is_err());
    }
}
