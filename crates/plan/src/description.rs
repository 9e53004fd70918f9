//! Networks in TOML, for people who write their own.

use crate::network::{Described, Network, NetworkError, Node};
use crate::place::Place;
use crate::rate::Rate;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    #[serde(default)]
    node: Vec<NodeDescription>,
    #[serde(default)]
    link: Vec<LinkDescription>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeDescription {
    name: String,
    latitude: Option<f64>,
    longitude: Option<f64>,
    x: Option<f64>,
    y: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkDescription {
    from: String,
    to: String,
    length: Option<f64>,
    capacity: Option<f64>,
    capacity_back: Option<f64>,
    packets: Option<f64>,
    packets_back: Option<f64>,
}

impl Network {
    /// Reads a network in TOML:
    ///
    /// ```toml
    /// [[node]]
    /// name = "Rome"        # and latitude, longitude in degrees, or x, y in kilometres
    /// latitude = 41.9
    /// longitude = 12.5
    ///
    /// [[link]]
    /// from = "Rome"
    /// to = "Milan"
    /// length = 480.0       # kilometres; measured between the places where it is not given
    /// capacity = 10e9      # free to provision, in the unit of the limits; unlimited if not given
    /// capacity_back = 5e9  # the same as there if not given; packets and packets_back likewise
    /// ```
    ///
    /// # Errors
    /// What is wrong, with its line or the name of the node or link.
    pub fn from_toml(text: &str) -> Result<Network, NetworkError> {
        let description: Description = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or("", |span| &text[..span.start.min(text.len())]);
            NetworkError::line(before.matches('\n').count() + 1, error.message())
        })?;
        let nodes = description.node.iter().map(NodeDescription::read);
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let numbers: BTreeMap<&str, usize> =
            nodes.iter().enumerate().map(|(number, node)| (node.name.as_str(), number)).collect();
        let links = description.link.iter().map(|link| link.read(&numbers));
        let links = links.collect::<Result<Vec<_>, _>>()?;
        Network::described(nodes, &links, Vec::new())
    }
}

impl NodeDescription {
    fn read(&self) -> Result<Node, NetworkError> {
        let NodeDescription { name, latitude, longitude, x, y } = self;
        let place = match (latitude, longitude, x, y) {
            (Some(latitude), Some(longitude), None, None) => {
                Some(Place::Globe { latitude: *latitude, longitude: *longitude })
            }
            (None, None, Some(x), Some(y)) => Some(Place::Plane { x: *x, y: *y }),
            (None, None, None, None) => None,
            _ => {
                let problem = "give latitude and longitude, or x and y, or none of them";
                return Err(NetworkError::item(format!("node {name:?}"), problem));
            }
        };
        Ok(Node { name: name.clone(), place, located: place.is_some() })
    }
}

impl LinkDescription {
    fn read(&self, numbers: &BTreeMap<&str, usize>) -> Result<Described, NetworkError> {
        let what = || format!("link {}–{}", self.from, self.to);
        let end = |name: &str| {
            let problem = || format!("{name:?} is no node's name");
            numbers.get(name).copied().ok_or_else(|| NetworkError::item(what(), problem()))
        };
        let free = |bits: Option<f64>, packets: Option<f64>| Rate {
            bits: bits.unwrap_or(f64::INFINITY),
            packets: packets.unwrap_or(f64::INFINITY),
        };
        let there = free(self.capacity, self.packets);
        let back = free(self.capacity_back.or(self.capacity), self.packets_back.or(self.packets));
        let rates = [there.bits, there.packets, back.bits, back.packets];
        if let Some(rate) = rates.iter().find(|rate| rate.is_nan() || **rate < 0.0) {
            let problem = format!("the capacity {rate} is out of range; give 0 or more");
            return Err(NetworkError::item(what(), problem));
        }
        let ends = [end(&self.from)?, end(&self.to)?];
        Ok(Described { ends, length: self.length, free: [there, back] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_read() {
        let text = "
            [[node]]
            name = 'a'
            x = 0
            y = 0
            [[node]]
            name = 'b'
            x = 3
            y = 4
            [[link]]
            from = 'a'
            to = 'b'
            capacity = 10
            packets_back = 7
        ";
        let network = Network::from_toml(text).unwrap();
        let link = network.links()[0];
        assert_eq!(link.length, 5.0);
        let unlimited = f64::INFINITY;
        assert_eq!(link.free[0], Rate { bits: 10.0, packets: unlimited });
        assert_eq!(link.free_from(1)[0], Rate { bits: 10.0, packets: 7.0 });
    }

    #[test]
    fn errors_name_the_line_or_the_thing() {
        let cases = [
            ("[[node]]\nname = 'a'\nlat = 3", "line 3: unknown field `lat`"),
            ("[[node]]\nnam", "line 2: "),
            ("[[node]]\nname = 'a'\nx = 1", "node \"a\": give latitude and longitude, or x and y"),
            ("[[node]]\nname = 'a'\n[[link]]\nfrom = 'a'\nto = 'b'", "link a–b: \"b\" is no node"),
            (
                "[[node]]\nname = 'a'\n[[link]]\nfrom = 'a'\nto = 'a'\ncapacity = -1",
                "link a–a: the capacity -1 is out of range",
            ),
            ("", "there are no nodes"),
        ];
        for (text, expected) in cases {
            let error = Network::from_toml(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
