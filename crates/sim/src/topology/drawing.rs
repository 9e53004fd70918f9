//! What everybody sends in a run with load, as it is drawn: so much of so many that links get full.

use super::config::TopologyConfig;
use super::load::{Load, Receivers};
use crate::scenario::{Stream, stream};
use canopy_plan::{Limits, Rate};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

/// How many participants there are in each world, and whom a link bears of them, as a part.
const CROWD: RangeInclusive<usize> = 16..=32;
const BORNE: Range<f64> = 0.15..0.4;
/// Fewer would not fill a link.
const LEAST_CROWD: usize = 12;
/// Everybody is in after nine seconds, and what is judged is published after that.
const LEAST_SECONDS: u32 = 12;
/// Updates that a link bears in a second. What is let in is carried without loss where one takes a link few milliseconds.
const UPDATES: Range<f64> = 300.0..900.0;
/// Hellos take a large part of slower links.
const SLOWEST: f64 = 500e3;
/// About what a datagram has beside its payload.
const BESIDE: f64 = 50.0;
const PAYLOADS: RangeInclusive<usize> = 16..=1_000;
/// How much more somebody may get than all that others send: whose own limit is nearly full gets a little less.
const RECEIVES: f64 = 1.2;
/// Limits let all that may be sent in a longer time pass at once, and then not all of it arrives in time.
const EVERY: RangeInclusive<u64> = 1..=5;

/// The same run with the load that the seed draws, if that is asked for; with the numbers of nodes of each world.
///
/// # Errors
/// Links cannot get full in such a run.
pub(crate) fn with_load(
    config: &TopologyConfig,
    worlds: &[usize],
) -> Result<TopologyConfig, String> {
    let mut config = config.clone();
    if !config.draws_load {
        return Ok(config);
    }
    check(&config, worlds)?;
    let rng = &mut stream(config.seed, Stream::Load);
    let drawn = rng.random_range(CROWD) * worlds.len();
    let participants = config.participants.map_or(drawn, |participants| participants as usize);
    let load = draw(participants / worlds.len(), rng);
    (config.participants, config.load) = (Some(participants as u32), Some(load));
    Ok(config)
}

fn check(config: &TopologyConfig, worlds: &[usize]) -> Result<(), String> {
    let least = LEAST_CROWD * worlds.len();
    let asked = config.participants.map_or(least, |participants| participants as usize);
    let needs = |what: String| Err(format!("{}: a load needs {what}", config.file));
    match () {
        () if worlds.first().is_none_or(|nodes| *nodes < 2) => needs("a link".to_owned()),
        () if asked < least => needs(format!("{least} participants or more")),
        () if config.seconds < LEAST_SECONDS => needs(format!("{LEAST_SECONDS} seconds or more")),
        () if config.degree > 0 => needs("links that are given, and none are proposed".to_owned()),
        () if config.improve == Some(true) || config.operator == Some(true) => {
            needs("trees that stay, and no better ones or operator".to_owned())
        }
        () => Ok(()),
    }
}

/// What so many in a world send over a link that bears some of them.
fn draw(crowd: usize, rng: &mut ChaCha8Rng) -> Load {
    let (least, most) = (*PAYLOADS.start() as f64, *PAYLOADS.end() as f64);
    let payload = least * (most / least).powf(rng.random());
    let share = rng.random_range(0.8..0.9);
    let datagram = 8.0 * (payload + BESIDE);
    let link = (rng.random_range(UPDATES) * datagram / share).max(SLOWEST);
    let receivers = rng.random_range(0..3);
    let senders = rng.random_range(2..=4);
    let borne = (crowd as f64 * rng.random_range(BORNE)).max(2.0);
    let to = match receivers {
        0 => Receivers::Groups,
        1 => Receivers::OneGroup,
        _ => Receivers::Farthest(senders),
    };
    // A token has whole numbers.
    let send = (share * link / (borne + 0.3)).floor();
    // Whoever has all groups gets what all send, who are no more than all that want to be in; others get what few send.
    let times = if matches!(to, Receivers::Farthest(_)) { senders + 1 } else { crowd + 1 } as f64;
    let receives = |sent: f64| (RECEIVES * sent * times).ceil();
    // Limits of bits bind.
    let packets = (2.0 * send / datagram).ceil() + 10.0;
    Load {
        link: Rate { bits: link, packets: 4.0 * link / datagram + 100.0 * crowd as f64 },
        share,
        member: Limits {
            send: Rate { bits: send, packets },
            receive: Rate { bits: receives(send), packets: receives(packets) },
        },
        payload: payload as usize,
        every: Duration::from_millis(rng.random_range(EVERY)),
        meets: rng.random_bool(0.5),
        to,
    }
}
