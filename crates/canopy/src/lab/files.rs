//! What a relay of a lab is told in its settings file.

use super::topology::{Branch, Topology};
use crate::net::role_name;
use std::fmt::Write;
use std::net::SocketAddr;

/// The comtree of a lab's world.
pub(crate) const COMTREE: u32 = 1;

/// Where a relay of the lab is, and by which key it is known.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) address: SocketAddr,
    /// As text.
    pub(super) key: String,
}

/// A relay's name, by its number from 0 on.
pub(super) fn name(relay: usize) -> String {
    format!("relay-{}", relay + 1)
}

/// A relay's site: its own, so that an address says whose participant it is.
pub(super) fn site(relay: usize) -> usize {
    relay + 1
}

/// The settings of a relay that is joined with nobody yet.
pub(super) fn alone(relay: usize) -> String {
    format!("[[comtree]]\nid = {COMTREE}\nsite = {}\n", site(relay))
}

/// The settings of a relay that is joined with its neighbours. Joins are dealt out to the relays' data
/// threads in turn.
pub(super) fn joined(topology: &Topology, relay: usize, known: &[Known], threads: u16) -> String {
    let mut text = String::new();
    let mut branches = Vec::new();
    for Branch { neighbour, role, join } in topology.branches(relay) {
        let Known { address, key } = &known[neighbour];
        let (name, role, site) = (name(neighbour), role_name(role), site(neighbour));
        let thread = join % usize::from(threads.max(1));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "[[link]]\nname = \"{name}\"\nkey = \"{key}\"\naddress = \"{address}\"\nthread = {thread}\n"
        );
        branches.push(format!("    {{ link = \"{name}\", role = \"{role}\", site = {site} }},\n"));
    }
    text.push_str(&alone(relay));
    if !branches.is_empty() {
        let _ = writeln!(text, "branches = [\n{}]", branches.concat());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::topology::{Core, Shape};

    #[test]
    fn a_relay_is_told_of_its_neighbours_and_of_nobody_else() {
        let topology = Topology::new(3, Shape::Line, Core::One).unwrap();
        let known: Vec<Known> = (0..3)
            .map(|relay| Known {
                address: ([127, 0, 0, 1], 4000 + relay).into(),
                key: format!("{relay:02x}").repeat(32),
            })
            .collect();
        let text = joined(&topology, 1, &known, 2);
        let file: toml::Table = text.parse().unwrap();
        let links = file["link"].as_array().unwrap();
        let of = |link: usize, key: &str| links[link][key].clone();
        assert_eq!(links.len(), 2);
        assert_eq!(of(0, "name").as_str(), Some("relay-1"));
        assert_eq!(of(1, "address").as_str(), Some("127.0.0.1:4002"));
        assert_eq!(of(1, "key").as_str(), Some(known[2].key.as_str()));
        assert_eq!(
            (of(0, "thread").as_integer(), of(1, "thread").as_integer()),
            (Some(0), Some(1))
        );
        let comtree = &file["comtree"][0];
        assert_eq!((comtree["id"].as_integer(), comtree["site"].as_integer()), (Some(1), Some(2)));
        let branches = comtree["branches"].as_array().unwrap();
        let roles = branches
            .iter()
            .map(|branch| (branch["link"].as_str().unwrap(), branch["role"].as_str().unwrap()));
        assert_eq!(roles.collect::<Vec<_>>(), [("relay-1", "parent"), ("relay-3", "child")]);
        assert_eq!(branches[1]["site"].as_integer(), Some(3));
        let alone = Topology::new(1, Shape::Star, Core::All).unwrap();
        assert_eq!(joined(&alone, 0, &known, 1), super::alone(0));
    }
}
