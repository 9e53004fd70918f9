//! The links to neighbour relays, as Prometheus collects them.

use crate::net::{Busiest, ComtreeLoad, SharedNet};
use canopy_node::ThreadStatus;
use canopy_relay::LinkStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;

/// The most links with a label: every label costs whoever collects metrics memory.
const LABELLED_LINKS: usize = 256;

/// The most loads of a link by comtree with labels of their own, over all links; every link has one more, of its
/// other comtrees.
const LABELLED_LOADS: usize = 1024;

/// The links by name. A name is unique, and has at most 64 bytes.
#[derive(Debug)]
pub(super) struct LinkMetrics(BTreeMap<String, LinkStatus>);

impl LinkMetrics {
    pub(super) fn new(links: &[LinkStatus], net: &SharedNet) -> LinkMetrics {
        let mut links: BTreeMap<_, _> =
            links.iter().map(|link| (net.name(&link.key), *link)).collect();
        while links.len() > LABELLED_LINKS {
            links.pop_last();
        }
        LinkMetrics(links)
    }
}

impl Collector for LinkMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // A round trip has no value before it was measured.
        type Value = fn(&LinkStatus) -> Option<f64>;
        let values: [(&str, &str, Value); 6] = [
            ("link_up", "Whether a link to a neighbour relay is up", |link| {
                Some(f64::from(u8::from(link.is_up)))
            }),
            ("link_round_trip_seconds", "The way to the neighbour and back", |link| {
                link.round_trip.map(|time| time.as_secs_f64())
            }),
            ("link_loss_in", "The share of the neighbour's datagrams that is lost", |link| {
                Some(f64::from(link.loss_in))
            }),
            ("link_loss_out", "The share of the datagrams to the neighbour that is lost", |link| {
                Some(f64::from(link.loss_out))
            }),
            ("link_bits_in", "Bits a second from the neighbour, of UDP payload", |link| {
                Some(link.bits_in as f64)
            }),
            ("link_bits_out", "Bits a second to the neighbour, of UDP payload", |link| {
                Some(link.bits_out as f64)
            }),
        ];
        for (name, help, value) in values {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (link, status) in &self.0 {
                let Some(value) = value(status) else { continue };
                let labels = [("link", link.as_str())];
                let metric = family.encode_family(&labels)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        Ok(())
    }
}

/// What the links carry of each comtree, by the link's name.
#[derive(Debug)]
pub(super) struct LoadMetrics(BTreeMap<String, Vec<ComtreeLoad>>);

impl LoadMetrics {
    pub(super) fn new(status: &ThreadStatus, net: &SharedNet) -> LoadMetrics {
        let links = status.links.len().clamp(1, LABELLED_LINKS);
        let most = LABELLED_LOADS / links;
        let mut loads = Busiest::of(&status.comtrees).loads_of_links(status, net, most);
        while loads.len() > LABELLED_LINKS {
            loads.pop_last();
        }
        LoadMetrics(loads)
    }
}

impl Collector for LoadMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // What has no limit is not shown as 0.
        type Value = fn(&ComtreeLoad) -> Option<u64>;
        let values: [(&str, &str, Value); 3] = [
            (
                "link_comtree_bits_offered",
                "Bits a second of a comtree's updates that are there for the neighbour",
                |load| Some(load.bits_offered),
            ),
            (
                "link_comtree_bits_out",
                "Bits a second of a comtree's updates that the neighbour is sent",
                |load| Some(load.bits_out),
            ),
            (
                "link_comtree_bits_allowed",
                "Bits a second that it may be sent of the link's capacity",
                |load| Some(load.bits_allowed).filter(|bits| *bits > 0),
            ),
        ];
        for (name, help, value) in values {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (link, loads) in &self.0 {
                for load in loads {
                    let Some(value) = value(load) else { continue };
                    let comtree =
                        load.comtree.map_or_else(|| "other".to_owned(), |id| id.to_string());
                    let labels = [("link", link.as_str()), ("comtree", comtree.as_str())];
                    let metric = family.encode_family(&labels)?;
                    ConstGauge::new(value as i64).encode(metric)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_relay::{BranchId, BranchRole, BranchStatus};
    use canopy_wire::Comtree;
    use prometheus_client::registry::Registry;
    use std::net::SocketAddr;
    use std::time::Duration;

    fn exposition(links: &[LinkStatus]) -> String {
        encoded(LinkMetrics::new(links, &SharedNet::default()))
    }

    fn encoded(metrics: impl Collector) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    fn link(number: u16) -> LinkStatus {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&number.to_be_bytes());
        LinkStatus {
            key,
            thread: 0,
            remote: SocketAddr::from(([10, 0, 0, 2], 4040)),
            calls: true,
            is_up: number != 0,
            ups: 1,
            round_trip: (number != 0).then_some(Duration::from_micros(1_500)),
            loss_in: 0.5,
            loss_out: 0.0,
            bits_in: 1_000,
            bits_out: 2_000,
            max_datagram: 1232,
        }
    }

    #[test]
    fn every_link_has_its_measures() {
        let text = exposition(&[link(0), link(1)]);
        for line in [
            "up{link=\"0000000000000000\"} 0.0",
            "up{link=\"0001000000000000\"} 1.0",
            "round_trip_seconds{link=\"0001000000000000\"} 0.0015",
            "loss_in{link=\"0001000000000000\"} 0.5",
            "loss_out{link=\"0001000000000000\"} 0.0",
            "bits_in{link=\"0001000000000000\"} 1000.0",
            "bits_out{link=\"0001000000000000\"} 2000.0",
        ] {
            let line = format!("link_{line}");
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("round_trip_seconds{link=\"0000"), "{text}");
    }

    #[test]
    fn labels_are_bounded() {
        let links: Vec<_> = (0..300).map(link).collect();
        let text = exposition(&links);
        let labels = text.lines().filter(|line| line.starts_with("link_up{")).count();
        assert_eq!(labels, LABELLED_LINKS);
    }

    fn branch(link: &LinkStatus, comtree: u32) -> BranchStatus {
        BranchStatus {
            id: BranchId { comtree: Comtree(comtree), link: link.key, thread: 0 },
            role: BranchRole::Parent,
            site: 1,
            is_up: true,
            subscribed: 0,
            subscribes: 0,
            unacknowledged: 0,
            bits_offered: 500,
            bits_out: 400,
            bits_allowed: if comtree == 7 { 450 } else { 0 },
        }
    }

    #[test]
    fn every_link_says_what_it_carries_of_each_comtree() {
        let links = vec![link(0), link(1)];
        let branches = vec![branch(&links[1], 7), branch(&links[1], 8)];
        let status = ThreadStatus { links, branches, ..ThreadStatus::default() };
        let text = encoded(LoadMetrics::new(&status, &SharedNet::default()));
        for (name, comtree, value) in [
            ("offered", 7, 500),
            ("offered", 8, 500),
            ("out", 7, 400),
            ("out", 8, 400),
            ("allowed", 7, 450),
        ] {
            let labels = format!("{{link=\"0001000000000000\",comtree=\"{comtree}\"}}");
            let line = format!("link_comtree_bits_{name}{labels} {value}");
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("allowed{link=\"0001000000000000\",comtree=\"8\""), "{text}");
    }

    #[test]
    fn labels_of_loads_are_bounded() {
        let links: Vec<_> = (0..300).map(link).collect();
        let comtrees = 0..20;
        let branches =
            links.iter().flat_map(|link| comtrees.clone().map(|comtree| branch(link, comtree)));
        let branches = branches.collect();
        let status = ThreadStatus { links, branches, ..ThreadStatus::default() };
        let text = encoded(LoadMetrics::new(&status, &SharedNet::default()));
        let labels = |part: &str| {
            let of_loads = text.lines().filter(|line| line.starts_with("link_comtree_bits_out{"));
            of_loads.filter(|line| line.contains(part)).count()
        };
        assert_eq!(labels(""), LABELLED_LOADS + LABELLED_LINKS);
        assert_eq!(labels("other\""), LABELLED_LINKS);
    }
}
