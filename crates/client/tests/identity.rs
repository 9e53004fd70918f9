//! A client is who it was: over a restart of its relay, and over one of its own process.

mod bed;

use bed::{Relay, settings};
use canopy_client::{ClientKey, Event, Incoming, PollClient, Resumption};
use canopy_node::{Command, NodeConfig};
use canopy_relay::{ComtreeConfig, Trust};
use canopy_session::Identity;
use canopy_token::{
    Budget, Claims, ComtreeGrant, Grant, KeySet, Revocations, Scope, SigningKey, Unicast, UnixTime,
};
use canopy_wire::{Address, Comtree, PORTABLE_SITES};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A relay that keeps its key.
fn kept(threads: u16) -> NodeConfig {
    NodeConfig { identity: Some(Identity::new([9; 32])), life: Some(1), ..settings(threads) }
}

fn join(relay: &Relay, resumption: Option<&Resumption>) -> PollClient {
    let builder = PollClient::builder(relay.address()).timeout(PATIENCE);
    let builder = match resumption {
        Some(resumption) => builder.resume(resumption.clone()),
        None => builder,
    };
    builder.connect_blocking().unwrap()
}

/// The next event like `wanted`, whatever else happens.
fn event(client: &mut PollClient, wanted: impl Fn(&Event) -> bool) -> Event {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        client.wait(Duration::from_millis(100));
        while let Some(incoming) = client.try_next() {
            match incoming {
                Incoming::Event(event) if wanted(&event) => return event,
                _ => {}
            }
        }
    }
    panic!("waited in vain for an event");
}

/// Whether it kept its address when it was connected next.
fn kept_address(client: &mut PollClient) -> bool {
    match event(client, |event| matches!(event, Event::Connected { .. })) {
        Event::Connected { kept_address, .. } => kept_address,
        _ => false,
    }
}

#[test]
fn a_client_keeps_its_address_when_its_relay_starts_anew_with_the_same_key() {
    for threads in [1, 2] {
        let relay = Relay::start(kept(threads));
        let mut clients: Vec<_> = (0..6).map(|_| join(&relay, None)).collect();
        let before: Vec<_> = clients.iter().map(|one| one.participant().unwrap()).collect();
        for client in &mut clients {
            assert!(!kept_address(client), "it had none before");
        }
        let settings = relay.end(Command::Stop);
        let relay = Relay::start(NodeConfig { life: Some(2), ..settings });
        let newcomer = join(&relay, None);
        for (client, before) in clients.iter_mut().zip(&before) {
            assert!(kept_address(client));
            assert_eq!(client.participant(), Some(*before));
        }
        assert!(!before.contains(&newcomer.participant().unwrap()));
    }
}

#[test]
fn a_client_hears_that_a_relay_with_another_key_does_not_know_it() {
    let relay = Relay::start(settings(1));
    let mut client = join(&relay, None);
    kept_address(&mut client);
    let _relay = Relay::start(relay.end(Command::Stop));
    assert!(!kept_address(&mut client));
}

#[test]
fn another_process_comes_back_as_who_the_first_was() {
    for threads in [1, 2] {
        let relay = Relay::start(kept(threads));
        for ended in [true, false] {
            let mut first = join(&relay, None);
            let participant = first.participant().unwrap();
            let bytes = first.resumption().unwrap().to_bytes();
            if ended {
                drop(first);
            } else {
                // The first does not know yet that it was replaced.
                kept_address(&mut first);
                std::mem::forget(first);
            }
            let resumption = Resumption::try_from(&bytes[..]).unwrap();
            let mut second = join(&relay, Some(&resumption));
            assert_eq!(second.participant(), Some(participant), "{threads} threads, {ended}");
            assert!(kept_address(&mut second));
        }
    }
}

/// What a backend signs for somebody who is to have this address at whichever relay.
fn token(key: &ClientKey, issuer: &SigningKey, address: Address) -> String {
    let comtree = ComtreeGrant {
        comtree: Comtree(1),
        publish: Scope::everything(),
        subscribe: Scope::everything(),
        unicast: Unicast::Anybody,
    };
    let grant = Grant {
        world: canopy_relay::DEFAULT_WORLD.to_owned(),
        address: Some(address),
        site: None,
        comtrees: vec![comtree],
        budget: Budget::default(),
        roles: Vec::new(),
    };
    let (subject, id) = ("player".to_owned(), "1".to_owned());
    let (expires, client_key) = (UnixTime(4_000_000_000), key.public_bytes());
    issuer.issue(&Claims { subject, id, expires, not_before: None, client_key, grant }).unwrap()
}

#[test]
fn a_client_whose_token_names_a_portable_address_keeps_it_at_its_next_relay() {
    let issuer = SigningKey::from_seed([7; 32]);
    let keys = KeySet::new([issuer.public().clone()], &[], UnixTime(0)).unwrap();
    let trust = Arc::new(Trust { keys, revoked: Revocations::new(1) });
    let relays = [1, 2].map(|site| {
        let comtrees = vec![ComtreeConfig::new(Comtree(1), site)];
        Relay::start(NodeConfig { trust: Some(trust.clone()), comtrees, ..settings(2) })
    });
    let [first, second] = &relays;
    let key = ClientKey::generate().unwrap();
    let address = Address::unicast(*PORTABLE_SITES.start(), 77);
    let token = token(&key, &issuer, address);
    let builder = PollClient::builder(first.address()).relay(second.address());
    let builder = builder.timeout(PATIENCE).key(key).token(token);
    let mut client = builder.connect_blocking().unwrap();
    let participant = client.participant().unwrap();
    assert_eq!((participant.site(), participant.endpoint()), (address.site(), 77));
    assert!(!kept_address(&mut client), "it had none before");
    let [first, second] = relays;
    first.end(Command::Stop);
    assert!(kept_address(&mut client));
    assert_eq!((client.participant(), client.relay()), (Some(participant), second.address()));
}

#[test]
fn before_it_is_connected_a_client_has_what_it_was_given() {
    let open = || PollClient::builder("127.0.0.1:9");
    assert!(open().open().unwrap().resumption().is_none());
    let relay = Relay::start(kept(1));
    let resumption = join(&relay, None).resumption().unwrap();
    let again = open().resume(resumption.clone()).open().unwrap().resumption().unwrap();
    assert_eq!(again.to_bytes(), resumption.to_bytes());
}

#[test]
fn who_sends_to_somebody_who_has_left_hears_of_it() {
    let relay = Relay::start(kept(2));
    for _ in 0..4 {
        // On the same data thread or on two, as chance has it.
        let mut sender = join(&relay, None);
        let mut other = join(&relay, None);
        let participant = other.participant().unwrap();
        other.leave();
        while other.poll() {
            other.wait(Duration::from_millis(10));
        }
        sender.send_to(participant, b"are you there?").unwrap();
        let gone = event(&mut sender, |event| matches!(event, Event::Gone { .. }));
        assert!(matches!(gone, Event::Gone { participant: who, .. } if who == participant));
    }
}
