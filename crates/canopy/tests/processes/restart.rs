//! A relay that was killed comes up again, and everyone is who they were.

use crate::support::Server;
use canopy_client::{Event, Incoming, Participant, PollClient};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const CLIENTS: usize = 50;
const NEWCOMERS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(60);

fn join(relay: &Server) -> PollClient {
    let relay = relay.address("relay");
    PollClient::builder(relay).timeout(PATIENCE).connect_blocking().unwrap()
}

fn who(client: &PollClient) -> Participant {
    client.participant().expect("it is connected")
}

/// Polls all of them until `is_done` with each.
fn poll_until(clients: &mut [PollClient], mut is_done: impl FnMut(usize, &mut PollClient) -> bool) {
    let begun = Instant::now();
    let mut open: BTreeSet<usize> = (0..clients.len()).collect();
    while !open.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "{open:?} wait in vain");
        for (number, client) in clients.iter_mut().enumerate() {
            assert!(client.poll(), "{number} has left");
            if open.contains(&number) && is_done(number, client) {
                open.remove(&number);
            }
        }
    }
}

/// Whether a client was connected again, and kept its address.
fn came_back(client: &mut PollClient) -> Option<bool> {
    while let Some(event) = client.try_next_event() {
        if let Event::Connected { kept_address, .. } = event {
            return Some(kept_address);
        }
    }
    None
}

#[test]
fn after_a_kill_everyone_has_their_address_again_and_nobody_anothers() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("relay.key");
    let flags = ["--threads", "2", "--keepalive-ms", "500", "--key", key.to_str().unwrap()];
    let relay = Server::relay(&flags);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| join(&relay)).collect();
    assert!(clients.iter_mut().all(|client| came_back(client) == Some(false)));
    let before: Vec<_> = clients.iter().map(who).collect();
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), CLIENTS);

    let address = relay.address("relay").to_string();
    relay.kill();
    let killed = Instant::now();
    let relay = Server::start(&[&["relay", "--listen", &address, "--json"], &flags[..]].concat());
    // They are quicker than who has to learn first that the relay was restarted.
    let newcomers: Vec<_> = (0..NEWCOMERS).map(|_| join(&relay)).collect();
    poll_until(&mut clients, |number, client| match came_back(client) {
        Some(kept) => {
            assert!(kept, "{number} was {} and is {}", before[number], who(client));
            true
        }
        None => false,
    });
    println!("all are back after {:?}", killed.elapsed());
    for (client, before) in clients.iter().zip(&before) {
        assert_eq!(who(client), *before);
    }
    assert!(newcomers.iter().all(|newcomer| !before.contains(&who(newcomer))));

    // What is for one reaches that one, under the address of before.
    for number in 0..CLIENTS {
        let next = before[(number + 1) % CLIENTS];
        clients[number].send_to(next, &(number as u32).to_be_bytes()).unwrap();
    }
    poll_until(&mut clients, |number, client| match client.try_next() {
        Some(Incoming::Update(update)) => {
            let sender = (number + CLIENTS - 1) % CLIENTS;
            assert_eq!(update.payload[..], (sender as u32).to_be_bytes());
            assert_eq!(update.from, before[sender]);
            true
        }
        _ => false,
    });
}
