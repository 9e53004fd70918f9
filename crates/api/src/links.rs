//! Links between relays.

use crate::body::name;
use crate::problem::Problem;
use crate::relays::name_of;
use crate::removal::RemovalAsk;
use canopy_control::{Controller, Link, LinkId, Origin};
use canopy_plan::Rate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest delay that is believed, microseconds: once around the earth in fibre takes 200 ms.
const MOST_DELAY_US: u32 = 10_000_000;

/// A link to be added.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLink {
    /// The names of the relays at its ends. The first calls the other.
    pub ends: [String; 2],
    /// How many bits a second can be sent over it, each way.
    #[schema(example = 1000000000)]
    pub bits: u64,
    /// How many packets a second can be sent over it, each way.
    #[schema(example = 100000)]
    pub packets: u64,
    /// The time one way, microseconds.
    #[schema(example = 5000)]
    pub delay_us: u32,
}

/// All links.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Links {
    /// In order of their numbers.
    pub links: Vec<LinkView>,
}

/// A link.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct LinkView {
    /// Its number.
    pub id: u32,
    /// The names of the relays at its ends.
    pub ends: [String; 2],
    /// How many bits a second can be sent over it, each way.
    pub bits: u64,
    /// How many packets a second can be sent over it, each way.
    pub packets: u64,
    /// The time one way, microseconds: what was given, until its ends have measured another one.
    pub delay_us: u32,
    /// Whether it carries comtrees now: both relays are there and hear each other.
    pub usable: bool,
    /// Whether it is being removed: worlds move off it, nothing new comes over it, and it goes once nothing runs over it.
    #[serde(default)]
    pub removing: bool,
    /// Whether the controller has proposed it, and not an operator given it.
    #[serde(default)]
    pub proposed: bool,
    /// Why it is there.
    #[serde(default)]
    #[schema(example = "one of the shortest that join all relays: 4.1 ms were measured")]
    pub why: String,
}

/// All links.
pub fn links(controller: &Controller) -> Links {
    Links { links: controller.links().map(|(link, _)| view(controller, link)).collect() }
}

/// Joins two relays by a link.
///
/// # Errors
/// A value is not allowed, there is no such relay, or one has as many links as it can have.
pub fn add_link(controller: &mut Controller, ask: &NewLink) -> Result<LinkView, Problem> {
    let NewLink { ends: [first, second], bits, packets, delay_us } = ask;
    let number = |field: &str, number: u64| {
        let fits = number >= 1 && number as f64 <= Rate::MOST;
        let remedy = format!("give 1 to {}", Rate::MOST);
        let problem = || Problem::value(field, format!("{number} is not allowed"), &remedy);
        if fits { Ok(number as f64) } else { Err(problem()) }
    };
    let rate = Rate { bits: number("bits", *bits)?, packets: number("packets", *packets)? };
    if *delay_us > MOST_DELAY_US {
        let what = format!("{delay_us} µs are not believed");
        return Err(Problem::value("delay_us", what, &format!("give at most {MOST_DELAY_US}")));
    }
    let end = |place, text: &str| Ok::<_, Problem>(controller.relay_named(&name(place, text)?)?.id);
    let ends = [end("ends[0]", first)?, end("ends[1]", second)?];
    let id = controller.add_link(ends, rate, *delay_us)?;
    view_of(controller, id)
}

/// Takes a link away for good. Worlds that run over it move off it first, without loss. Returns whether it is gone
/// already.
///
/// # Errors
/// There is no such link, or worlds cannot do without it.
pub fn remove_link(
    controller: &mut Controller,
    of: &str,
    ask: &RemovalAsk,
) -> Result<bool, Problem> {
    let link = number(of)?;
    match ask.force {
        true => controller.remove_link_at_once(link)?,
        false => controller.remove_link(link)?,
    }
    Ok(controller.link(link).is_none())
}

/// Keeps a link that was to be removed.
///
/// # Errors
/// There is no such link, or no longer.
pub fn keep_link(controller: &mut Controller, of: &str) -> Result<LinkView, Problem> {
    let link = number(of)?;
    controller.keep_link(link)?;
    view_of(controller, link)
}

fn number(of: &str) -> Result<LinkId, Problem> {
    of.parse::<u32>().map(LinkId).map_err(|_| {
        let remedy = "give the number of a link, as they are listed";
        Problem::value("link", format!("{of:?} is no number"), remedy)
    })
}

fn view_of(controller: &Controller, id: LinkId) -> Result<LinkView, Problem> {
    let gone = || Problem::missing(&format!("link {}", id.0), "it is gone", "add it again");
    controller.link(id).map(|link| view(controller, link)).ok_or_else(gone)
}

fn view(controller: &Controller, link: &Link) -> LinkView {
    LinkView {
        id: link.id.0,
        ends: link.ends.map(|end| name_of(controller, end)),
        bits: link.rate.bits as u64,
        packets: link.rate.packets as u64,
        delay_us: link.delay_us,
        usable: controller.is_usable(link.id),
        removing: link.removing,
        proposed: link.origin.is_proposed(),
        why: why(controller, link),
    }
}

fn why(controller: &Controller, link: &Link) -> String {
    if link.removing {
        let trees = controller.trees_over(link.id);
        return format!("it is being removed: {trees} trees have yet to move off it");
    }
    let reason = match link.origin {
        Origin::Given => return "it was given".to_owned(),
        Origin::Unmeasured => {
            "made before anything was measured; the other relay had the fewest links"
        }
        Origin::Kept => "it carries a tree, and others would gain too little",
        Origin::Joins => "one of the shortest that join all relays",
        Origin::Spare => "without it, one relay's failure would part others",
        Origin::Shortens => "the way round is long",
    };
    match controller.measured(link.ends) {
        Some(delay_us) => {
            format!("{reason}: {:.1} ms were measured", f64::from(delay_us) / 1000.0)
        }
        None => reason.to_owned(),
    }
}
