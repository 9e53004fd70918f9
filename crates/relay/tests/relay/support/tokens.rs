//! Relays that ask for tokens, and whoever has one.

use super::{COMTREE, World, config};
use canopy_relay::{Mode, RelayConfig, Trust, UnixTime};
use canopy_session::{Event, Identity, SessionConfig};
use canopy_token::{
    Claims, ComtreeGrant, Delegation, Grant, KeySet, Revocations, Role, Scope, SigningKey, Unicast,
};
use canopy_wire::{Address, Level, RequestStatus, Verdict};
use std::sync::Arc;
use std::time::Duration;

/// The time of day when the worlds begin.
pub(crate) const DAY: UnixTime = UnixTime(1_800_000_000);

pub(crate) fn issuer() -> SigningKey {
    SigningKey::from_seed([1; 32])
}

pub(crate) fn delegate() -> SigningKey {
    SigningKey::from_seed([2; 32])
}

pub(crate) fn groups(range: &str, level: u8) -> Scope {
    Scope { groups: vec![range.parse().unwrap()], level: Level(level) }
}

/// Who has this number has a key of its own.
pub(crate) fn identity(number: u8) -> Identity {
    Identity::new([number; 32])
}

/// Groups 0 to 9 on the first comtree, and unicast to everybody, for an hour.
pub(crate) fn claims(number: u8) -> Claims {
    let comtree = ComtreeGrant {
        comtree: COMTREE,
        publish: groups("0-9", 1),
        subscribe: groups("0-9", 1),
        unicast: Unicast::Anybody,
    };
    Claims {
        subject: format!("player-{number}"),
        id: format!("token-{number}"),
        expires: DAY.after(3600),
        not_before: None,
        client_key: *identity(number).public(),
        grant: Grant {
            world: "main".to_owned(),
            address: None,
            site: None,
            comtrees: vec![comtree],
            budget: Default::default(),
            roles: Vec::new(),
        },
    }
}

pub(crate) fn server_claims(number: u8) -> Claims {
    let mut claims = claims(number);
    claims.grant.roles = vec![Role::Server];
    claims
}

pub(crate) fn trust(revoked: &[&str]) -> Arc<Trust> {
    let ceiling = Grant { comtrees: claims(0).grant.comtrees, ..claims(0).grant };
    let delegation = Delegation {
        key: delegate().public().clone(),
        expires: DAY.after(86_400),
        longest_s: 7200,
        ceiling,
    };
    let delegation = issuer().delegate(&delegation).unwrap();
    let keys = KeySet::new([issuer().public().clone()], &[&delegation], DAY).unwrap();
    let mut all = Revocations::new(16);
    revoked.iter().for_each(|id| all.add(id, DAY.after(3600), DAY).unwrap());
    Arc::new(Trust { keys, revoked: all })
}

pub(crate) fn guarded() -> RelayConfig {
    RelayConfig { trust: Some(trust(&[])), origin: DAY, ..config(Mode::Immediate) }
}

pub(crate) fn guarded_world(threads: u16) -> World {
    World::with_threads(guarded(), threads)
}

pub(crate) fn session(number: u8, token: String) -> SessionConfig {
    SessionConfig {
        identity: Some(identity(number)),
        token: token.into_bytes(),
        ..SessionConfig::new(COMTREE, [number; 16])
    }
}

/// Somebody with this number comes with these claims, signed by the issuer.
pub(crate) fn come(world: &mut World, asks: usize, number: u8, claims: &Claims) -> usize {
    come_with(world, asks, number, issuer().issue(claims).unwrap())
}

/// Somebody with this number comes with this token.
pub(crate) fn come_with(world: &mut World, asks: usize, number: u8, token: String) -> usize {
    world.now = world.now + Duration::from_millis(1);
    let participant = world.add_session(asks, session(number, token));
    world.settle();
    participant
}

/// Passes a verdict as a server.
pub(crate) fn judge(
    world: &mut World,
    server: usize,
    whom: Address,
    verdict: Verdict,
) -> RequestStatus {
    let request = world.participants[server].session.judge(whom, verdict).unwrap();
    status_of(world, server, request)
}

/// What becomes of a request.
pub(crate) fn status_of(world: &mut World, asker: usize, request: u64) -> RequestStatus {
    world.settle();
    let answer = |event| match event {
        Event::Answered(answered, status) if answered == request => Some(status),
        _ => None,
    };
    world.events(asker).into_iter().find_map(answer).expect("it is answered")
}
