//! The links to neighbour relays, as Prometheus collects them.

use crate::net::SharedNet;
use canopy_relay::LinkStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;

/// The most links with a label: every label costs whoever collects metrics memory.
const LABELLED_LINKS: usize = 256;

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

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;
    use std::net::SocketAddr;
    use std::time::Duration;

    fn exposition(links: &[LinkStatus]) -> String {
        let mut registry = Registry::default();
        let metrics = LinkMetrics::new(links, &SharedNet::default());
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
}
