//! Changes of subscriptions over a long link: a relay's participants walk, each through groups of its
//! own, and the next relay towards the core hears of every change. In the end an update to each group
//! shows who is subscribed.

use super::delay::Way;
use super::walk::{Walk, Walker};
use crate::members::{Heard, Member, Members, session};
use anyhow::{Context, bail, ensure};
use canopy_net::SocketOptions;
use canopy_node::{Command, NodeConfig, RelayWatch, RunningRelay, ThreadStatus};
use canopy_relay::{BranchConfig, BranchId, BranchRole, Change, ComtreeConfig, LinkConfig};
use canopy_session::{PublicKey, SessionLimits};
use canopy_wire::{Comtree, Flags, Group, Level, MAX_DATAGRAM};
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Each way.
const DELAY: Duration = Duration::from_millis(50);
const WALKERS: usize = 128;
/// Groups that each holds; with those that it walks to, as many as a relay's table has by default.
const HELD: u32 = 250;
/// Changes in a participant's packet.
const CHANGES: u32 = 250;
/// What was asked is at the next relay within this, or does not get there.
const SETTLE_LIMIT: Duration = Duration::from_secs(15);
/// A relay tells how it stands this often.
const STATUS_EVERY: Duration = Duration::from_millis(200);
/// Updates that leave at once when everything is tried.
const PROBES: usize = 64;
/// How often an update that did not come is sent again: only who is not subscribed never gets it.
const TRIES: u32 = 3;
const COMTREE: Comtree = Comtree(1);

/// How a link carries changes.
#[derive(Serialize)]
pub(super) struct LinkRow {
    path: super::Through,
    round_trip_ms: u64,
    changes_per_packet: u32,
    offered_per_second: f64,
    /// That the next relay has applied.
    changes_per_second: f64,
    /// Changes that participants made; those that the next relay has applied, refreshes among them.
    offered: u64,
    applied: u64,
    /// From the last change to when the next relay knew of all.
    settled_ms: u64,
    /// Groups held in the end of which no update comes, and groups not held of which one does.
    held: usize,
    missing: usize,
    unexpected: usize,
}

impl LinkRow {
    pub(super) fn in_words(&self) -> String {
        format!(
            "link    {:>4} changes a packet: {:>8.0} changes a second of {:.0} offered, {} ms there and \
             back, settled after {} ms; of {} groups {} missing, {} unexpected",
            self.changes_per_packet,
            self.changes_per_second,
            self.offered_per_second,
            self.round_trip_ms,
            self.settled_ms,
            self.held,
            self.missing,
            self.unexpected,
        )
    }
}

/// A relay at a site of its own, with its link given later.
fn relay(site: u16, pin: usize) -> anyhow::Result<RunningRelay> {
    let hour = Duration::from_secs(3600);
    RunningRelay::start(&NodeConfig {
        comtrees: vec![ComtreeConfig::new(COMTREE, site)],
        // So that next to nothing of what is counted is a refresh.
        session_limits: SessionLimits { subscription: hour, ..SessionLimits::default() },
        pin: vec![pin],
        ..NodeConfig::loopback()
    })
}

/// Gives a relay its neighbour.
fn link(
    watch: &RelayWatch,
    (key, remote, site): (PublicKey, SocketAddr, u16),
    (calls, role): (bool, BranchRole),
) -> anyhow::Result<()> {
    let link = LinkConfig { key, path: remote.into(), thread: 0, calls };
    watch.apply(Change::AddLink(link))?;
    let id = BranchId { comtree: COMTREE, link: key, thread: 0 };
    Ok(watch.apply(Change::AddBranch(BranchConfig { id, role, site }))?)
}

/// Offers so many changes a second for a while, and sees what becomes of them.
pub(super) fn measure(rate: u32, seconds: f64, relay_on: usize) -> anyhow::Result<LinkRow> {
    let (parent, child) = (relay(1, relay_on)?, relay(2, relay_on)?);
    let way = Way::between([child.address(), parent.address()], DELAY)?;
    link(&parent.watch(), (child.key(), way.ends[1], 2), (false, BranchRole::Child))?;
    link(&child.watch(), (parent.key(), way.ends[0], 1), (true, BranchRole::Parent))?;
    let mut walk = walk(child.address())?;
    let above = parent.watch();
    // Everybody begins.
    let of_packets = f64::from(rate) / f64::from(CHANGES);
    let begin = Duration::from_secs_f64(WALKERS as f64 / of_packets + 0.1);
    walk.run(begin, Some(of_packets))?;
    walk.settle()?;
    ensure!(walk.walkers.iter().all(|walker| walker.asked > 0), "not all participants began");
    let held = WALKERS * HELD as usize;
    let (before, _) = settle(&mut walk, &above, held)?;
    // They walk.
    let clock = walk.members.clock;
    let (packets, start) = (walk.packets, clock.now());
    let mut seen: Vec<ThreadStatus> = Vec::new();
    while clock.now().since(start).as_secs_f64() < seconds.max(1.0) {
        walk.run(STATUS_EVERY, Some(of_packets))?;
        seen.push(above.status());
    }
    walk.settle()?;
    let offered_for = clock.now().since(start);
    let offered = (walk.packets - packets) * u64::from(CHANGES);
    let (after, settled) = settle(&mut walk, &above, held)?;
    let (missing, unexpected) = try_all(&mut walk, parent.address())?;
    let row = LinkRow {
        path: super::Through::Link,
        round_trip_ms: 2 * DELAY.as_millis() as u64,
        changes_per_packet: CHANGES,
        offered_per_second: offered as f64 / offered_for.as_secs_f64(),
        changes_per_second: rate_of(&seen)?,
        offered,
        applied: after - before,
        settled_ms: settled.as_millis() as u64,
        held,
        missing,
        unexpected,
    };
    for relay in [parent, child] {
        relay.watch().command(Command::Stop);
        relay.join()?;
    }
    Ok(row)
}

/// The participants, joined, none of which has asked for anything.
fn walk(relay: SocketAddr) -> anyhow::Result<Walk> {
    let mut members = Members::new(65_535, false)?;
    let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    for number in 0..WALKERS {
        let session = session(number, std::iter::empty());
        members.add([from, relay], &SocketOptions::default(), Some(session), true)?;
    }
    members.join(|_| ())?;
    Ok(Walk {
        members,
        walkers: (0..WALKERS).map(|number| Walker::alone(number, HELD, CHANGES)).collect(),
        idle: (0..WALKERS).collect(),
        in_flight: Vec::new(),
        packets: 0,
        packets_a_send: 1,
    })
}

/// Waits until the next relay has so many groups and hears of no change any more. Returns the changes
/// that it has applied, and how long it took.
fn settle(walk: &mut Walk, above: &RelayWatch, held: usize) -> anyhow::Result<(u64, Duration)> {
    let clock = walk.members.clock;
    let start = clock.now();
    let mut last = (u64::MAX, start);
    loop {
        let status = above.status();
        let (applied, now) = (status.counters.subscription_changes, clock.now());
        // A refresh now and then goes on.
        if applied.abs_diff(last.0) > u64::from(CHANGES) {
            last = (applied, now);
        } else if status.groups as usize == held && now.since(last.1) > 3 * STATUS_EVERY {
            return Ok((applied, last.1.since(start)));
        }
        let is_late = now.since(start) > SETTLE_LIMIT;
        ensure!(
            !is_late,
            "after {SETTLE_LIMIT:?} the next relay has {} groups instead of {held}",
            status.groups
        );
        walk.receive(STATUS_EVERY / 4)?;
    }
}

/// The changes a second between the second look and the last: by then the first were on their way.
fn rate_of(seen: &[ThreadStatus]) -> anyhow::Result<f64> {
    let [_, first, .., last] = seen else { bail!("--seconds is too short to see a rate") };
    let time = last.at.since(first.at).as_secs_f64();
    ensure!(time > 0.0, "the relay did not say how it stands");
    let changes = |status: &ThreadStatus| status.counters.subscription_changes;
    Ok((changes(last) - changes(first)) as f64 / time)
}

/// Publishes an update to every group at the relay towards the core. Returns how many groups that are
/// held got none, and how many that are not held got one.
fn try_all(walk: &mut Walk, above: SocketAddr) -> anyhow::Result<(usize, usize)> {
    let publisher = walk.members.list.len();
    let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = SocketOptions::default();
    walk.members.add(
        [from, above],
        &options,
        Some(session(publisher, std::iter::empty())),
        true,
    )?;
    walk.members.join(|_| ())?;
    let expected: BTreeSet<u32> =
        walk.walkers.iter().flat_map(Walker::holds).map(|group| group.address().0).collect();
    let mut came = BTreeSet::new();
    for turn in 0..TRIES {
        // The first time those too that nobody holds.
        let all = 0..2 * HELD * WALKERS as u32;
        let all = all.map(|number| Group::new(number).address());
        let tried: Vec<_> = all
            .filter(|group| turn == 0 || expected.contains(&group.0) && !came.contains(&group.0))
            .collect();
        for some in tried.chunks(PROBES) {
            let Member { socket, session, .. } = &mut walk.members.list[publisher];
            let session = session.as_mut().context("the publisher has no session")?;
            for group in some {
                let mut out = [0; MAX_DATAGRAM];
                let payload = group.0.to_be_bytes();
                let len = session.publish(*group, Level(0), Flags(0), &payload, &mut out)?;
                socket.send(&out[..len])?;
            }
            listen(walk, &mut came, Duration::from_millis(2))?;
        }
        listen(walk, &mut came, 4 * DELAY)?;
    }
    Ok((expected.difference(&came).count(), came.difference(&expected).count()))
}

/// Notes of which groups updates come.
fn listen(walk: &mut Walk, came: &mut BTreeSet<u32>, time: Duration) -> anyhow::Result<()> {
    let clock = walk.members.clock;
    let start = clock.now();
    while clock.now().since(start) < time {
        walk.members.receive(Duration::from_millis(1), |heard| {
            if let Heard::Payload(_, payload) = heard
                && let Some(group) = payload.first_chunk::<4>()
            {
                came.insert(u32::from_be_bytes(*group));
            }
        })?;
    }
    let now = clock.now();
    walk.members.turn(now)
}
