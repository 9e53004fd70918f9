//! The links to neighbour relays, and the branches of comtrees over them.

use super::file::Table;
use super::given::Given;
use super::limits::{MAX_SITE, MOST_BITS, MOST_PACKETS};
use super::parse_address;
use super::sources::{Sources, within};
use anyhow::{anyhow, bail};
use canopy_client::RelayKey;
use canopy_relay::{
    BranchConfig, BranchId, BranchRole, ComtreeConfig, Down, LinkConfig, MAX_THREADS, Refusal,
};
use canopy_session::{MAX_LINKS, PublicKey};
use std::net::SocketAddr;

/// The longest name of a link, bytes.
const MAX_NAME: usize = 64;

/// A `[[link]]`: valid but for what depends on the relay's own key.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// The neighbour's name here.
    pub(crate) name: String,
    key: PublicKey,
    address: SocketAddr,
    /// Whether this relay calls, if that is said.
    calls: Option<bool>,
    thread: u16,
    /// What this relay may send over it.
    pub(crate) capacity: Down,
    /// Where it stands.
    pub(super) place: String,
}

impl Link {
    /// What the relay with the key `own` is given. Of two relays that do not say which of them calls,
    /// the one with the smaller key does.
    ///
    /// # Errors
    /// If the neighbour has that key too.
    pub(crate) fn config(&self, own: &PublicKey) -> anyhow::Result<LinkConfig> {
        if self.key == *own {
            bail!("{}: key: {}", self.place, Refusal::OwnKey);
        }
        let calls = self.calls.unwrap_or(*own < self.key);
        Ok(LinkConfig { key: self.key, path: self.address.into(), thread: self.thread, calls })
    }
}

/// The links of the file.
pub(super) fn check_links(sources: &Sources) -> anyhow::Result<Vec<Link>> {
    let mut links: Vec<Link> = Vec::new();
    for table in sources.link_tables() {
        if links.len() as u32 == MAX_LINKS {
            bail!("{}: a relay has at most {MAX_LINKS} links; leave this one out", table.place);
        }
        links.push(check_link(table, &links)?);
    }
    Ok(links)
}

fn check_link(table: &Table, before: &[Link]) -> anyhow::Result<Link> {
    let needed = |key: &str, example: &str| {
        let missing =
            || anyhow!("{}: this [[link]] has no {key}; give it one, like {example}", table.place);
        table.text(key).ok_or_else(missing)
    };
    let thread = match table.number("thread") {
        Some(given) => given.check(|thread| within(thread, &(0..=MAX_THREADS as u64 - 1)))?,
        None => 0,
    };
    let number = |key: &str, most: u64| match table.number(key) {
        Some(given) => given.check(|value| within(value, &(0..=most))),
        None => Ok(0),
    };
    let capacity = Down {
        bits: number("capacity_bits", MOST_BITS)?,
        updates: number("capacity_packets", MOST_PACKETS)?,
    };
    Ok(Link {
        name: needed("name", "name = \"b\"")?.check(|name| parse_name(name, before))?,
        key: needed("key", "key = \"…\", which the neighbour logs at its start")?
            .check(|text| parse_key(&text, before))?,
        address: needed("address", "address = \"10.0.0.2:4040\"")?
            .check(|text| parse_neighbour(&text))?,
        calls: table.switch("calls"),
        thread: thread as u16,
        capacity,
        place: table.place.clone(),
    })
}

fn parse_name(name: String, before: &[Link]) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_plain) {
        return Err(format!(
            "{name:?} is no name of a link; give one of 1 to {MAX_NAME} letters without accents, digits, \
             hyphens, underscores and dots"
        ));
    }
    match before.iter().find(|link| link.name == name) {
        Some(Link { place, .. }) => {
            Err(format!("the link at {place} is named {name:?} too; give each a name of its own"))
        }
        None => Ok(name),
    }
}

fn parse_key(text: &str, before: &[Link]) -> Result<PublicKey, String> {
    let key = text.parse::<RelayKey>().map_err(|error| format!("{text:?} is {error}"))?.to_bytes();
    match before.iter().find(|link| link.key == key) {
        Some(Link { place, .. }) => Err(format!(
            "the link at {place} leads to the relay with this key already; a relay has one link to \
             each neighbour"
        )),
        None => Ok(key),
    }
}

fn parse_neighbour(text: &str) -> Result<SocketAddr, String> {
    let address = parse_address(text)?;
    if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err(format!(
            "nobody can be reached at {address}; give the address and port that the neighbour listens on"
        ));
    }
    Ok(address)
}

/// The branches of one comtree.
pub(super) fn check_branches(
    tables: &[Table],
    comtree: &ComtreeConfig,
    links: &[Link],
) -> anyhow::Result<Vec<BranchConfig>> {
    let mut branches = Vec::new();
    for table in tables {
        branches.push(check_branch(table, comtree, links, &branches)?);
    }
    Ok(branches)
}

fn check_branch(
    table: &Table,
    comtree: &ComtreeConfig,
    links: &[Link],
    before: &[BranchConfig],
) -> anyhow::Result<BranchConfig> {
    let missing = |key: &str, example: &str| {
        anyhow!("{}: this branch has no {key}; give it one, like {example}", table.place)
    };
    let link: Given<String> = table.text("link").ok_or_else(|| missing("link", "link = \"b\""))?;
    let role = table.text("role").ok_or_else(|| missing("role", "role = \"parent\""))?;
    let site = table.number("site").ok_or_else(|| missing("site", "site = 2"))?;
    let id = comtree.comtree.0;
    let link = link.check(|name| {
        let link = links.iter().find(|link| link.name == name).ok_or_else(|| {
            format!("there is no [[link]] named {name:?}; describe it, or name one that is there")
        })?;
        if before.iter().any(|branch| branch.id.link == link.key) {
            return Err(format!(
                "comtree {id} has a branch over link {name:?} already; name each link once"
            ));
        }
        Ok(link)
    })?;
    let role = role.check(|name| {
        let role = parse_role(&name)?;
        fits(role, before)
            .then_some(role)
            .ok_or_else(|| Refusal::RoleConflict(comtree.comtree).to_string())
    })?;
    let site = site.check(|site| {
        let site = within(site, &(0..=MAX_SITE))? as u16;
        // The relays of a site that are core peers are joined with each other.
        let leads = |branch: &BranchConfig| branch.site == site && in_tree(branch.role);
        let is_divided = site != comtree.site && in_tree(role) && before.iter().any(leads);
        if is_divided {
            return Err(Refusal::SiteDivided(comtree.comtree, site).to_string());
        }
        Ok(site)
    })?;
    let id = BranchId { comtree: comtree.comtree, link: link.key, thread: link.thread };
    Ok(BranchConfig { id, role, site })
}

/// Whether a branch is a part of a tree: the way over it leads to whole sites.
fn in_tree(role: BranchRole) -> bool {
    !role.is_peer()
}

/// Whether a relay with these branches may have another of that role: it has one parent, or is in the
/// core.
fn fits(role: BranchRole, before: &[BranchConfig]) -> bool {
    let others = before.iter().map(|branch| branch.role).filter(|role| *role != BranchRole::Child);
    match role {
        BranchRole::Child | BranchRole::Standby => true,
        BranchRole::Parent => others.count() == 0,
        BranchRole::NextParent => others.eq([BranchRole::Parent]),
        BranchRole::Core | BranchRole::CorePeer | BranchRole::NextPeer | BranchRole::LastPeer => {
            others.filter(|role| *role == BranchRole::Parent).count() == 0
        }
    }
}

fn parse_role(name: &str) -> Result<BranchRole, String> {
    match name {
        "parent" => Ok(BranchRole::Parent),
        "next-parent" => Ok(BranchRole::NextParent),
        "core" => Ok(BranchRole::Core),
        "core-peer" => Ok(BranchRole::CorePeer),
        "next-peer" => Ok(BranchRole::NextPeer),
        "last-peer" => Ok(BranchRole::LastPeer),
        "child" => Ok(BranchRole::Child),
        _ => Err(format!(
            "{name:?} is nothing that a neighbour can be; choose parent, next-parent, core, core-peer, \
             next-peer, last-peer or child"
        )),
    }
}
