//! What a listener on the way captures of whole lives of sessions, and finds nothing in.

use crate::support::tokens::{DAY, identity, issuer, server_claims, trust};
use crate::support::{
    self, PERIODIC, World, config, group, ip_port, is_of_group, is_sealed, with_downlink,
};
use canopy_relay::{Change, RelayConfig};
use canopy_session::{Event, SessionConfig};
use canopy_token::{Claims, ComtreeGrant, Scope};
use canopy_wire::{
    Acts, Address, Comtree, Downlink, Flags, Group, Kind, Level, Packet, Restriction, Sealed,
    Verdict,
};
use std::collections::BTreeSet;
use std::time::Duration;

const WORLD: Comtree = Comtree(0xc0ff_ee42);
const SITE: u16 = 0x5ac3;
const GROUPS: [u32; 2] = [0x5a_17c3, 0x1c_93e5];
const LEVEL: u8 = 0xa7;
const PAYLOAD: &[u8] = b"a secret of some length, and so on";
/// One of four has a small budget.
const MEMBERS: u8 = 4;
/// Pieces of what is text or random are searched for in this length: chance does not make one.
const PIECE: usize = 6;

/// What either side says in a session. The rest of the kinds is for relays or those without one.
const UP: [Kind; 7] = [
    Kind::Updates,
    Kind::Subscribe,
    Kind::Keepalive,
    Kind::Leave,
    Kind::Rebind,
    Kind::Report,
    Kind::Request,
];
const DOWN: [Kind; 10] = [
    Kind::Updates,
    Kind::SubscribeAck,
    Kind::KeepaliveAck,
    Kind::Leave,
    Kind::Left,
    Kind::Challenge,
    Kind::Probe,
    Kind::Response,
    Kind::Gone,
    Kind::Busy,
];
const IN_CLEAR: [Kind; 6] =
    [Kind::Hello, Kind::Cookie, Kind::Connect, Kind::Connected, Kind::Refused, Kind::Unknown];

/// Everything that was sent, and what of it nobody else may know.
struct Life {
    world: World,
    captured: Vec<Vec<u8>>,
    secrets: Vec<(String, Vec<u8>)>,
}

fn claims_of(number: u8) -> Claims {
    let scope = || Scope { groups: vec!["0-8000000".parse().unwrap()], level: Level(LEVEL) };
    let mut claims = server_claims(number);
    claims.subject = format!("subject:{number}:of-somebody");
    claims.id = format!("jti:{number}:of-a-token");
    let [comtree] = &claims.grant.comtrees[..] else { unreachable!() };
    claims.grant.comtrees = vec![ComtreeGrant {
        comtree: WORLD,
        publish: scope(),
        subscribe: scope(),
        ..comtree.clone()
    }];
    if number == MEMBERS - 1 {
        claims.grant.budget.up_packets = Some(1);
    }
    claims
}

fn relay_config(downlink: Downlink) -> RelayConfig {
    let mut config = with_downlink(config(PERIODIC), downlink);
    (config.comtrees[0].comtree, config.comtrees[0].site) = (WORLD, SITE);
    RelayConfig { trust: Some(trust(&[])), origin: DAY, ..config }
}

impl Life {
    /// The whole life of sessions, with everything that either side says in it.
    fn of(downlink: Downlink) -> Life {
        let mut world = World::of(relay_config(downlink), 0);
        world.captured = Some(Vec::new());
        let mut life = Life { world, captured: Vec::new(), secrets: Vec::new() };
        (0..MEMBERS).for_each(|number| life.join(number));
        life.talk();
        life.ask();
        life.end();
        life.captured = life.world.captured.take().unwrap();
        life
    }

    fn keep(&mut self, what: &str, secret: &[u8]) {
        self.secrets.push((what.to_owned(), secret.to_vec()));
    }

    fn join(&mut self, number: u8) {
        let claims = claims_of(number);
        let token = issuer().issue(&claims).unwrap();
        let config = SessionConfig {
            identity: Some(identity(number)),
            token: token.clone().into_bytes(),
            ..SessionConfig::new(WORLD, [number; 16])
        };
        let member = self.world.add_session(0, config);
        self.world.settle();
        let ticket = self.world.participants[member].session.ticket();
        assert!(ticket.bytes().len() >= 16, "there is a ticket to look for");
        self.keep("ticket", ticket.bytes());
        self.keep("token", token.as_bytes());
        self.keep("token's id", claims.id.as_bytes());
        self.keep("subject", claims.subject.as_bytes());
        self.keep("public key", identity(number).public());
    }

    /// Members hear each other for a while, and one moves meanwhile.
    fn talk(&mut self) {
        let world = &mut self.world;
        GROUPS.iter().for_each(|group| world.subscribe_all(*group, LEVEL));
        for step in 0..30 {
            world.now = world.now + Duration::from_millis(250);
            world.publish(step % 2, GROUPS[0], 0, Flags(0), PAYLOAD);
            world.publish(step % 2, GROUPS[1], 0, Flags::ECHO, PAYLOAD);
            world.publish_to(2, world.address(step % 2), 0, Flags(0), PAYLOAD);
            if step == 15 {
                world.participants[0].path = ip_port(100).into();
            }
            let now = world.now;
            if step == 10 {
                world.relay_mut().handle_timeout(now);
            }
            world.tick();
        }
        world.unsubscribe(0, GROUPS[0]);
        assert!(world.participants.iter().all(|one| one.received.len() >= 30));
        assert!(world.events(0).contains(&Event::Rebound));
    }

    /// What a member asks for beyond updates, and what it hears when it goes too far.
    fn ask(&mut self) {
        let restriction = Restriction::new(Acts::PUBLISH, Group::new(1), Group::new(GROUPS[0]));
        let whom = self.world.address(2);
        let session = &mut self.world.participants[0].session;
        session.judge(whom, Verdict::Restrict(restriction)).unwrap();
        let renewed = Claims { id: "jti:of-a-later-token".to_owned(), ..claims_of(1) };
        let token = issuer().issue(&renewed).unwrap();
        self.keep("renewed token", token.as_bytes());
        self.keep("renewed token's id", renewed.id.as_bytes());
        let session = &mut self.world.participants[1].session;
        session.set_token(token.into_bytes()).unwrap();
        self.world.settle();
        let nobody = Address::unicast(SITE, 9999);
        self.world.publish_to(0, nobody, 0, Flags(0), PAYLOAD);
        (0..600).for_each(|_| self.world.publish(3, GROUPS[0], 0, Flags(0), PAYLOAD));
        self.world.tick();
        assert!(self.world.events(0).contains(&Event::Gone(nobody)));
        assert!(self.world.events(3).iter().any(|event| matches!(event, Event::Busy(_))));
    }

    /// One leaves, and something of its session comes late; then the relay is drained.
    fn end(&mut self) {
        let world = &mut self.world;
        let is_its =
            |datagram: &&Vec<u8>, id| Sealed::of(datagram).map(|it| it.session) == Some(id);
        let id = world.participants[0].session.id();
        world.participants[0].session.leave();
        world.settle();
        let late = world.captured.as_ref().unwrap().iter().find(|one| is_its(one, id));
        let (late, from) = (late.unwrap().clone(), world.participants[0].path);
        world.arrive(0, from, &late);
        world.settle();
        let addresses = [1, 2].map(|number| world.address(number));
        let now = world.now;
        world.relay_mut().apply(now, Change::Drain).unwrap();
        world.relay_mut().handle_timeout(now);
        world.settle();
        for address in addresses {
            self.keep("address", &address.0.to_be_bytes());
        }
    }

    /// The kinds that it has, with whether they are the relay's: in clear, sealed for a session, and for all.
    fn kinds(&mut self) -> [BTreeSet<(Kind, bool)>; 3] {
        let mut kinds: [BTreeSet<_>; 3] = Default::default();
        for datagram in &self.captured {
            let (of, opened, is_relays) = if is_of_group(datagram) {
                (2, self.world.open_of_group(0, datagram).expect("there is such a key"), true)
            } else if is_sealed(datagram) {
                let keys = self.world.keys(0, support::session_of(datagram));
                let relays = keys.from_relay.peek(datagram);
                let is_relays = relays.is_some();
                let opened = relays.or_else(|| keys.from_participant.peek(datagram)).unwrap();
                (1, opened, is_relays)
            } else {
                (0, datagram.clone(), false)
            };
            let kind = Packet::new_checked(&opened).unwrap().header().kind;
            kinds[of].insert((kind, is_relays));
        }
        kinds
    }

    fn has(&self, bytes: &[u8]) -> bool {
        let has = |datagram: &Vec<u8>| datagram.windows(bytes.len()).any(|some| some == bytes);
        self.captured.iter().any(has)
    }

    /// None of it is anywhere in what was captured, in whole or in pieces.
    fn assert_hides(&self, what: &str, secret: &[u8], piece: usize) {
        for (at, some) in secret.windows(piece).enumerate() {
            assert!(!self.has(some), "{what}, from {at}: {some:02x?}");
        }
    }
}

fn assert_tells_nothing(life: &Life) {
    let total: usize = life.captured.iter().map(Vec::len).sum();
    assert!(life.captured.len() > 200 && total > 20_000, "{} datagrams", life.captured.len());
    life.assert_hides("payload", PAYLOAD, 4);
    for number in GROUPS {
        life.assert_hides("group", &group(number).0.to_be_bytes(), 4);
        life.assert_hides("group", &number.to_be_bytes()[1..], 3);
    }
    life.assert_hides("comtree", &WORLD.0.to_be_bytes(), 4);
    for (what, secret) in &life.secrets {
        life.assert_hides(what, secret, PIECE.min(secret.len()));
    }
}

#[test]
fn captured_traffic_tells_neither_payloads_nor_groups_nor_tokens_nor_the_comtree() {
    let mut life = Life::of(Downlink::Member);
    assert_tells_nothing(&life);
    let [clear, sealed, of_group] = life.kinds();
    let said = UP.map(|kind| (kind, false)).into_iter().chain(DOWN.map(|kind| (kind, true)));
    assert_eq!(sealed, said.collect(), "all kinds are among what was captured");
    assert_eq!(of_group, BTreeSet::new());
    let in_clear = |kind: &Kind| IN_CLEAR.contains(kind);
    assert!(clear.iter().all(|(kind, _)| in_clear(kind)), "{clear:?}");
    assert!(clear.contains(&(Kind::Unknown, false)));
}

#[test]
fn captured_traffic_that_is_sealed_for_all_tells_no_more() {
    let mut life = Life::of(Downlink::Group);
    assert_tells_nothing(&life);
    let [clear, sealed, of_group] = life.kinds();
    let for_all = [(Kind::GroupKey, true), (Kind::GroupKeyHeld, false)];
    let said = UP.map(|kind| (kind, false)).into_iter().chain(DOWN.map(|kind| (kind, true)));
    assert_eq!(sealed, said.chain(for_all).collect(), "all kinds are among what was captured");
    assert_eq!(of_group, BTreeSet::from([(Kind::Updates, true)]));
    assert!(clear.iter().all(|(kind, _)| IN_CLEAR.contains(kind)), "{clear:?}");
    assert!(clear.contains(&(Kind::Unknown, false)));
}
