//! Two streams side by side: from a member to another through the relays, and from host to host by the
//! routes of OSPF.

use super::super::bed::{Bed, name};
use super::routers::address;
use anyhow::{Context, bail};
use axum::http::Method;
use canopy_api::{Budget, Nearness, NewMember};
use canopy_client::join::Place;
use canopy_client::{ClientBuilder, ClientKey, Group, Level, PollClient};
use canopy_relay::DEFAULT_WORLD;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Both streams send this often.
const STEP: Duration = Duration::from_millis(5);
/// How long it may take until both come.
const BOTH_LIMIT: Duration = Duration::from_secs(10);
/// Both come if so much was heard of each.
const ENOUGH: usize = 100;
const GROUP: Group = Group::new(7);
const PORT: u16 = 9000;

/// Who sends and who receives.
pub(super) struct Pair {
    from: usize,
    to: usize,
    sender: ClientBuilder,
    receiver: ClientBuilder,
    addresses: [String; 2],
}

/// When something was heard.
type Heard = Mutex<Vec<Instant>>;

impl Pair {
    /// Members at two relays.
    ///
    /// # Errors
    /// The controller does not let them in there.
    pub(super) fn new(bed: &Bed, cut: u16, from: usize, to: usize) -> anyhow::Result<Pair> {
        let (sender, one) = member(bed, &format!("sender-{cut}"), from)?;
        let (receiver, other) = member(bed, &format!("receiver-{cut}"), to)?;
        Ok(Pair { from, to, sender, receiver, addresses: [one, other] })
    }

    /// Lets something fail while both streams run, and has the members leave later. Returns for how long
    /// nothing came of each at most, the relays' first.
    ///
    /// # Errors
    /// A stream does not come at all, or cannot be sent.
    pub(super) fn watch(
        self,
        bed: &Bed,
        fail: impl FnOnce() -> anyhow::Result<()>,
        watched: Duration,
    ) -> anyhow::Result<[Duration; 2]> {
        let Pair { from, to, sender, receiver, addresses } = self;
        let (stop, heard) = (AtomicBool::new(false), [Heard::default(), Heard::default()]);
        let (stop, [by_relays, by_routes]) = (&stop, &heard);
        let crowd = bed.crowd();
        let crowd = &*crowd;
        let outcome = std::thread::scope(|scope| {
            let threads = [
                scope.spawn(move || crowd.run(|| hear(receiver, by_relays, stop))?),
                scope.spawn(move || crowd.run(|| say(sender, stop))?),
                scope.spawn(move || bed.hosts()[to].run(|| receive(to, by_routes, stop))?),
                scope.spawn(move || bed.hosts()[from].run(|| send(from, to, stop))?),
            ];
            let watching = || {
                until_both(&heard, &|| threads.iter().any(|thread| thread.is_finished()))?;
                let at = Instant::now();
                fail()?;
                std::thread::sleep(watched);
                let now = Instant::now();
                anyhow::Ok([by_relays, by_routes].map(|heard| longest(&list(heard), at, now)))
            };
            let outcome = watching();
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().ok().context("a stream was lost")??;
            }
            outcome
        })?;
        dismiss(bed, &addresses)?;
        Ok(outcome)
    }

    /// Has both leave who have not come.
    pub(super) fn leave(self, bed: &Bed) -> anyhow::Result<()> {
        dismiss(bed, &self.addresses)
    }
}

fn dismiss(bed: &Bed, addresses: &[String]) -> anyhow::Result<()> {
    for address in addresses {
        let path = format!("/v1/worlds/{DEFAULT_WORLD}/members/{address}");
        bed.ask(Method::DELETE, &path, String::new())?;
    }
    Ok(())
}

/// Whether nobody is in the world.
pub(super) fn is_empty(bed: &Bed) -> anyhow::Result<bool> {
    let path = format!("/v1/worlds/{DEFAULT_WORLD}/members");
    let answer = bed.ask(Method::GET, &path, String::new())?;
    Ok(answer["members"].as_array().context("the controller lists no members")?.is_empty())
}

fn list(heard: &Heard) -> Vec<Instant> {
    heard.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

fn note(heard: &Heard) {
    heard.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Instant::now());
}

fn until_both(heard: &[Heard; 2], has_ended: &dyn Fn() -> bool) -> anyhow::Result<()> {
    let began = Instant::now();
    while !heard.iter().all(|heard| list(heard).len() >= ENOUGH) {
        let counts = heard.each_ref().map(|heard| list(heard).len());
        if began.elapsed() > BOTH_LIMIT || has_ended() {
            bail!("of {ENOUGH} updates and packets only {counts:?} have come");
        }
        std::thread::sleep(STEP);
    }
    Ok(())
}

/// For how long nothing came at most, from shortly before `at` until `now`.
fn longest(heard: &[Instant], at: Instant, now: Instant) -> Duration {
    let times: Vec<Instant> = heard.iter().copied().chain([now]).collect();
    let pauses = times.windows(2).filter(|pair| pair[1] >= at);
    pauses.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

/// Has the controller let a member in at a relay. Returns its address too.
fn member(bed: &Bed, subject: &str, relay: usize) -> anyhow::Result<(ClientBuilder, String)> {
    let key = ClientKey::generate()?;
    let (bits, packets) = (1_000_000, 1_000);
    let ask = NewMember {
        subject: subject.to_owned(),
        client_key: key.public(),
        budget: Some(Budget {
            up_bits: bits,
            up_packets: packets,
            down_bits: bits,
            down_packets: packets,
        }),
        measured: vec![Nearness { relay: name(relay), delay_us: 1 }],
    };
    let path = format!("/v1/worlds/{DEFAULT_WORLD}/members");
    let answer = bed.ask(Method::POST, &path, serde_json::to_string(&ask)?)?;
    let place: Place = serde_json::from_value(answer)?;
    let comtree = place.comtrees.first().copied().context("the world has no comtree")?;
    let builder = PollClient::builder(place.relay.address)
        .relay_key(place.relay.key)
        .key(key)
        .token(place.token)
        .comtree(comtree);
    Ok((builder, place.address))
}

fn hear(member: ClientBuilder, heard: &Heard, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut member = member.connect_blocking()?;
    drop(member.subscribe(GROUP, Level(0)));
    while !stop.load(Ordering::Relaxed) {
        member.wait(STEP);
        while let Some(incoming) = member.try_next() {
            if let canopy_client::Incoming::Update(_) = incoming {
                note(heard);
            }
        }
    }
    Ok(())
}

fn say(member: ClientBuilder, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut member = member.connect_blocking()?;
    let began = Instant::now();
    for step in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        member.publish(GROUP, Level(0), b"here I am")?;
        member.poll();
        wait_until(began + STEP * step);
    }
    Ok(())
}

fn receive(at: usize, heard: &Heard, stop: &AtomicBool) -> anyhow::Result<()> {
    let socket = UdpSocket::bind((address(at), PORT))?;
    socket.set_read_timeout(Some(STEP))?;
    while !stop.load(Ordering::Relaxed) {
        if socket.recv(&mut [0; 16]).is_ok() {
            note(heard);
        }
    }
    Ok(())
}

fn send(from: usize, to: usize, stop: &AtomicBool) -> anyhow::Result<()> {
    let socket = UdpSocket::bind((address(from), 0))?;
    let began = Instant::now();
    for step in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // There may be no route for a while: that is what is measured.
        let _ = socket.send_to(b"here I am", (address(to), PORT));
        wait_until(began + STEP * step);
    }
    Ok(())
}

fn wait_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_is_one_that_ends_after_the_cut() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let heard = [at(0), at(400), at(405), at(650), at(655)];
        let longest = |cut: u64, now: u64| longest(&heard, at(cut), at(now)).as_millis();
        assert_eq!(longest(410, 700), 245);
        assert_eq!(longest(300, 700), 400);
        assert_eq!(longest(410, 2_655), 2_000, "nothing comes any more");
    }
}
