//! What a relay says of its own links, and when.

use super::{KnownLinks, KnownState, Part};
use canopy_session::PublicKey;
use canopy_wire::{LinkDetail, MAX_LINK_STATES, Time};
use core::time::Duration;
use std::collections::BTreeMap;

/// A relay says how its links stand at least this often.
const REFRESH: Duration = Duration::from_secs(30);
/// What is measured and reserved is said again only after this, and only after this for each state that is known: in a
/// large network others have much to say, too.
const MEASURES: Duration = Duration::from_secs(5);
const EACH: Duration = Duration::from_millis(100);
/// After a relay has said that a link has come or gone, it says the next such thing after this, and then after twice as
/// long each time, until nothing like that has been for [`QUIET`] (RFC 8405).
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_secs(10);

/// A relay's links, and what it has said of them.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) key: PublicKey,
    name: String,
    life: u64,
    number: u32,
    /// The links as they are, and as it has said last.
    pub(super) links: BTreeMap<PublicKey, LinkDetail>,
    said: BTreeMap<u32, LinkDetail>,
    said_at: Option<Time>,
    /// When it has said last that one has come, gone or failed.
    stood_at: Option<Time>,
    pause: Duration,
    /// How many parts it has said anything of.
    parts: usize,
    /// Others hold something of it that it has not said in this life.
    is_doubted: bool,
}

/// How much of what a relay has said is not so any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// A link has come or gone, or is up or down.
    Standing,
    /// What was measured of one, or is reserved of it.
    Measures,
}

impl Own {
    pub(super) fn new(key: PublicKey, name: &str, life: u64) -> Own {
        Own {
            key,
            name: name.to_owned(),
            life,
            number: 0,
            links: BTreeMap::new(),
            said: BTreeMap::new(),
            said_at: None,
            stood_at: None,
            pause: Duration::ZERO,
            parts: 0,
            is_doubted: false,
        }
    }

    /// Whether it has said something of this part, and stands by it.
    pub(super) fn has_part(&self, (relay, part): Part) -> bool {
        relay == self.key && usize::from(part) < self.parts
    }

    /// Others have heard this of it.
    pub(super) fn hear(&mut self, part: u8, heard: (u64, u32)) {
        if heard > (self.life, self.number) {
            (self.life, self.number) = heard;
            self.is_doubted = true;
        }
        if usize::from(part) >= self.parts && self.said_at.is_some() {
            // It has no such part, and says that it is empty.
            (self.parts, self.is_doubted) = (usize::from(part) + 1, true);
        }
    }

    /// When it says something, where so many states are known.
    pub(super) fn due(&self, known: usize) -> Option<Time> {
        let Some(said_at) = self.said_at else {
            return (!self.links.is_empty()).then_some(Time::ZERO);
        };
        let refresh = said_at + REFRESH;
        let wanted = match self.change() {
            Some(Change::Standing) => self.stood_at.map_or(Time::ZERO, |at| at + self.pause),
            Some(Change::Measures) => said_at + MEASURES.max(EACH * known as u32),
            None => refresh,
        };
        Some(wanted.min(refresh))
    }

    /// What is other than it has said.
    fn change(&self) -> Option<Change> {
        let said = |link: &LinkDetail| self.said.get(&link.link);
        let stands = |link: &LinkDetail| said(link).is_some_and(|said| said.is_up == link.is_up);
        if self.is_doubted
            || self.links.len() != self.said.len()
            || !self.links.values().all(stands)
        {
            return Some(Change::Standing);
        }
        let differs = |link: &LinkDetail| said(link).is_some_and(|said| is_other(said, link));
        self.links.values().any(differs).then_some(Change::Measures)
    }

    /// Says how the links stand, in parts.
    pub(super) fn say(&mut self, now: Time) -> Vec<(Part, KnownState)> {
        if self.change() == Some(Change::Standing) {
            let is_restless = self.stood_at.is_some_and(|at| now.since(at) < QUIET);
            self.pause = match is_restless {
                true => (self.pause * 2).min(MOST_PAUSE),
                false => FIRST_PAUSE,
            };
            self.stood_at = Some(now);
        }
        (self.said_at, self.is_doubted) = (Some(now), false);
        self.said = self.links.values().map(|link| (link.link, *link)).collect();
        (self.life, self.number) = match self.number.checked_add(1) {
            Some(number) => (self.life, number),
            None => (self.life.saturating_add(1), 0),
        };
        let up = self.said.values().filter(|link| link.is_up);
        let free_kbit = up.map(|link| link.free_kbit).max().unwrap_or(0);
        let links: Vec<LinkDetail> = self.said.values().copied().collect();
        // A part of which nothing is left is said to be empty.
        let parts = links.len().div_ceil(MAX_LINK_STATES).max(1);
        let all = parts.max(self.parts);
        self.parts = parts;
        let state = |part: usize| KnownState {
            life: self.life,
            number: self.number,
            came: now,
            age: Duration::ZERO,
            distance: 0,
            free_kbit,
            name: self.name.clone(),
            links: KnownLinks::Detailed(
                links.chunks(MAX_LINK_STATES).nth(part).unwrap_or_default().to_vec(),
            ),
        };
        (0..all).map(|part| ((self.key, part as u8), state(part))).collect()
    }
}

/// Whether a link is so different that others are told.
fn is_other(said: &LinkDetail, now: &LinkDetail) -> bool {
    let is_apart =
        |one: u32, other: u32, least: u32| one.abs_diff(other) > least.max(one.max(other) / 4);
    is_apart(said.delay_us, now.delay_us, 1_000)
        || is_apart(said.free_kbit, now.free_kbit, 100)
        || said.loss.abs_diff(now.loss) > 12
}
