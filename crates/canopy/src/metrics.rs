//! `/metrics` in the Prometheus text format, `/healthz`, `/talkers` and `/thinned`: who sends the most, and who is
//! thinned most; beside them `/net`.

mod links;

use crate::net::{self, SharedNet};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use canopy_net::KernelDrops;
use canopy_node::{Health, RelayWatch, TalkerReport, ThinnedReport, ThreadStatus};
use canopy_relay::{BranchStatus, ComtreeCounters, ComtreeStatus, Talker};
use canopy_wire::{Comtree, DropReason};
use links::{LinkMetrics, LoadMetrics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Serves `/metrics`, `/healthz`, `/talkers`, `/thinned` and `/net` of a relay.
pub(crate) fn router(watch: RelayWatch, net: SharedNet) -> Router {
    let started = SystemTime::now();
    let (health_of, talkers_of, thinned_of) = (watch.clone(), watch.clone(), watch.clone());
    let net_page = net::router(watch.clone(), net.clone());
    let metrics = move || async move {
        let headers =
            [(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
        let (resident_bytes, kernel_drops) = (resident_bytes(), KernelDrops::read());
        let process = ProcessMetrics { started, resident_bytes, kernel_drops };
        (headers, exposition(watch.status(), &net, process)).into_response()
    };
    let health = move || async move { health(health_of.health()) };
    let talkers = move || async move {
        let talkers = talkers_of.status().talkers;
        let talkers: Vec<_> = talkers.iter().map(TalkerReport::from).collect();
        Json(serde_json::json!({ "talkers": talkers }))
    };
    let thinned = move || async move {
        let thinned = thinned_of.status().thinned;
        let thinned: Vec<_> = thinned.iter().map(ThinnedReport::from).collect();
        Json(serde_json::json!({ "thinned": thinned }))
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/talkers", get(talkers))
        .route("/thinned", get(thinned))
        .merge(net_page)
}

/// What a load balancer or a supervisor is told.
fn health(health: Health) -> (StatusCode, String) {
    match health {
        Health::Serving => (StatusCode::OK, "serving\n".to_owned()),
        Health::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned()),
        Health::ThreadsEnded(threads) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{threads} data thread(s) ended; restart the relay, and look at its log\n"),
        ),
    }
}

/// The process's resident memory, if the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The metrics as text.
fn exposition(status: ThreadStatus, net: &SharedNet, process: ProcessMetrics) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(process));
    let relay = registry.sub_registry_with_prefix("canopy_relay");
    let comtrees = ComtreeMetrics::new(status.comtrees.clone(), &status.branches);
    relay.register_collector(Box::new(LinkMetrics::new(&status.links, net)));
    relay.register_collector(Box::new(LoadMetrics::new(&status, net)));
    relay.register_collector(Box::new(TalkerMetrics(status.talkers.clone())));
    relay.register_collector(Box::new(RelayMetrics(status)));
    relay.register_collector(Box::new(comtrees));
    relay.register_collector(Box::new(DetourMetrics(net.detours())));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// What Prometheus expects of every process, which build it is, and what its host's kernel dropped before it.
#[derive(Debug)]
struct ProcessMetrics {
    started: SystemTime,
    resident_bytes: Option<u64>,
    kernel_drops: KernelDrops,
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let gauge = MetricType::Gauge;
        let help = "Always 1; the version is its label";
        let mut build = encoder.encode_descriptor("canopy_build_info", help, None, gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        ConstGauge::new(1i64).encode(build.encode_family(&labels)?)?;
        let since_epoch = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let help = "When serving began, seconds since 1970";
        let name = "process_start_time_seconds";
        let metric = encoder.encode_descriptor(name, help, None, gauge)?;
        ConstGauge::new(since_epoch.as_secs_f64()).encode(metric)?;
        if let Some(bytes) = self.resident_bytes {
            let help = "Resident memory, bytes";
            let name = "process_resident_memory_bytes";
            let metric = encoder.encode_descriptor(name, help, None, gauge)?;
            ConstGauge::new(bytes as i64).encode(metric)?;
        }
        let KernelDrops { backlog, devices, receive_buffers } = self.kernel_drops;
        let help = "Packets that the host's kernel dropped since it started, by where; the places may overlap";
        let name = "canopy_kernel_drops";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (place, total) in
            [("backlog", backlog), ("devices", devices), ("receive_buffers", receive_buffers)]
        {
            ConstCounter::new(total).encode(family.encode_family(&[("where", place)])?)?;
        }
        Ok(())
    }
}

/// How often the relay has used a standby parent.
#[derive(Debug)]
struct DetourMetrics(u64);

impl Collector for DetourMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Detours begun: a standby parent took the place of a parent whose link was down";
        let metric = encoder.encode_descriptor("detours", help, None, MetricType::Counter)?;
        ConstCounter::new(self.0).encode(metric)
    }
}

#[derive(Debug)]
struct RelayMetrics(ThreadStatus);

impl Collector for RelayMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let RelayMetrics(status) = self;
        for (name, help, total) in status.counters.named() {
            let help = help.trim_end_matches('.');
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(total).encode(metric)?;
        }
        let help = "What was dropped, by reason";
        let mut drops = encoder.encode_descriptor("drops", help, None, MetricType::Counter)?;
        for reason in DropReason::ALL {
            let labels = [("reason", reason.name())];
            let metric = drops.encode_family(&labels)?;
            ConstCounter::new(status.counters.dropped(*reason)).encode(metric)?;
        }
        let help = "Processor time of the data threads, seconds";
        let metric = encoder.encode_descriptor("cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(status.cpu.as_secs_f64()).encode(metric)?;
        let help = "Time spent in the send engine, seconds";
        let metric = encoder.encode_descriptor("send_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(status.sending.as_secs_f64()).encode(metric)?;
        let sent = &status.sent;
        for (name, help, total) in [
            ("send_waits", "How often a full device queue was waited out", sent.waits),
            ("datagrams_cloned", "Datagrams that the kernel cloned", sent.cloned),
            (
                "send_fallbacks",
                "Datagrams sent one by one instead of in the send engine's own way",
                sent.fallbacks,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(total).encode(metric)?;
        }
        for (name, help, value) in [
            ("sessions", "Participants connected", status.sessions),
            ("subscriptions", "Subscriptions held", status.subscriptions),
            ("groups", "Groups with subscribers", status.groups),
            ("routes", "Routes learned, each on every data thread that uses it", status.routes),
            (
                "send_engines_stopped",
                "Data threads whose send engine sends in another way than its own",
                status.engines_stopped,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::from(value)).encode(metric)?;
        }
        let help = "Updates that wait for receivers that cannot be sent everything, for all of them together";
        let name = "waiting_updates";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(status.waiting_updates as i64).encode(metric)?;
        let help = "The longest turn of a data thread in the last fifth of a second";
        let name = "longest_turn_seconds";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(status.longest_turn.as_secs_f64()).encode(metric)?;
        Ok(())
    }
}

/// Those who send the most, by their rank: a label for each participant would never end. Who they are,
/// `/talkers` says.
#[derive(Debug)]
struct TalkerMetrics(Vec<Talker>);

impl Collector for TalkerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        type Value = fn(&Talker) -> u64;
        let values: [(&str, &str, Value); 3] = [
            ("talker_bits", "Bits a second of those who send the most", |one| one.bits),
            ("talker_updates", "Updates a second of those who send the most", |one| one.updates),
            (
                "talker_dropped",
                "What of theirs was dropped, a second, because it was over a limit",
                |one| one.dropped,
            ),
        ];
        for (name, help, value) in values {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (rank, talker) in (1..).zip(&self.0) {
                let rank: u32 = rank;
                let labels = [("rank", rank)];
                let metric = family.encode_family(&labels)?;
                ConstGauge::new(value(talker) as i64).encode(metric)?;
            }
        }
        Ok(())
    }
}

/// The most comtrees with a label of their own: every label costs whoever collects metrics memory.
const LABELLED_COMTREES: usize = 128;

/// The comtrees by label.
#[derive(Debug)]
struct ComtreeMetrics(Vec<LabelledComtree>);

/// One comtree, or the sum of several.
#[derive(Debug, Default)]
struct LabelledComtree {
    label: String,
    participants: u32,
    branches: u32,
    counters: ComtreeCounters,
}

impl ComtreeMetrics {
    /// Those with the most deliveries have a label of their own; the others are summed.
    fn new(mut comtrees: Vec<ComtreeStatus>, branches: &[BranchStatus]) -> ComtreeMetrics {
        comtrees.sort_by_key(|one| (Reverse(one.counters.deliveries_out), one.comtree));
        let others = comtrees.split_off(comtrees.len().min(LABELLED_COMTREES));
        let mut counts: BTreeMap<Comtree, u32> = BTreeMap::new();
        for branch in branches {
            *counts.entry(branch.id.comtree).or_default() += 1;
        }
        let of = |id: Comtree| counts.get(&id).copied().unwrap_or(0);
        let labelled = comtrees.iter().map(|one| LabelledComtree {
            label: one.comtree.0.to_string(),
            participants: one.participants,
            branches: of(one.comtree),
            counters: one.counters,
        });
        let mut labelled: Vec<_> = labelled.collect();
        if !others.is_empty() {
            let mut sum = LabelledComtree { label: "other".to_owned(), ..<_>::default() };
            for one in others {
                sum.participants += one.participants;
                sum.branches += of(one.comtree);
                sum.counters.add(&one.counters);
            }
            labelled.push(sum);
        }
        ComtreeMetrics(labelled)
    }
}

impl Collector for ComtreeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        type Count = fn(&LabelledComtree) -> u32;
        let counts: [(&str, &str, Count); 2] = [
            ("comtree_participants", "Participants on a comtree", |one| one.participants),
            ("comtree_branches", "Branches of a comtree to other relays", |one| one.branches),
        ];
        for (name, help, count) in counts {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for one in &self.0 {
                let labels = [("comtree", one.label.as_str())];
                let metric = family.encode_family(&labels)?;
                ConstGauge::new(i64::from(count(one))).encode(metric)?;
            }
        }
        type Total = fn(&ComtreeCounters) -> u64;
        let totals: [(&str, &str, Total); 5] = [
            ("comtree_updates_in", "Updates accepted on a comtree", |c| c.updates_in),
            ("comtree_payload_bytes_in", "Bytes of their payloads", |c| c.payload_bytes_in),
            ("comtree_deliveries_out", "Copies handed to receivers", |c| c.deliveries_out),
            ("comtree_bytes_out", "Bytes of UDP payload sent on a comtree", |c| c.bytes_out),
            ("comtree_drops", "What was dropped on a comtree, for whatever reason", |c| c.drops),
        ];
        for (name, help, total) in totals {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for one in &self.0 {
                let labels = [("comtree", one.label.as_str())];
                let metric = family.encode_family(&labels)?;
                ConstCounter::new(total(&one.counters)).encode(metric)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_relay::{BranchId, BranchRole};

    #[test]
    fn the_busiest_comtrees_have_labels_and_the_others_are_summed() {
        let comtree = |id: u32| {
            let counters = ComtreeCounters {
                updates_in: 1,
                payload_bytes_in: 10,
                deliveries_out: u64::from(id),
                bytes_out: 100,
                drops: 2,
            };
            ComtreeStatus { comtree: Comtree(id), participants: 3, counters }
        };
        let branch = |id: u32| BranchStatus {
            id: BranchId { comtree: Comtree(id), link: [1; 32], thread: 0 },
            role: BranchRole::Child,
            site: 2,
            is_up: true,
            subscribed: 0,
            subscribes: 0,
            unacknowledged: 0,
            bits_offered: 0,
            bits_out: 0,
            bits_allowed: 0,
        };
        let process = || ProcessMetrics {
            started: UNIX_EPOCH,
            resident_bytes: None,
            kernel_drops: KernelDrops::default(),
        };
        let text = |comtrees: u32| {
            let comtrees = (1..=comtrees).map(comtree).collect();
            let branches = [1, 2, 2, 130].map(branch).to_vec();
            let status = ThreadStatus { comtrees, branches, ..ThreadStatus::default() };
            exposition(status, &SharedNet::default(), process())
        };
        let few = text(128);
        assert!(few.contains("_comtree_deliveries_out_total{comtree=\"1\"} 1\n"), "{few}");
        assert!(!few.contains("other\""), "{few}");
        let many = text(130);
        for line in [
            "participants{comtree=\"130\"} 3",
            "participants{comtree=\"other\"} 6",
            "branches{comtree=\"130\"} 1",
            "branches{comtree=\"3\"} 0",
            "branches{comtree=\"other\"} 3",
            "updates_in_total{comtree=\"other\"} 2",
            "payload_bytes_in_total{comtree=\"other\"} 20",
            "deliveries_out_total{comtree=\"3\"} 3",
            "deliveries_out_total{comtree=\"other\"} 3",
            "bytes_out_total{comtree=\"other\"} 200",
            "drops_total{comtree=\"130\"} 2",
            "drops_total{comtree=\"other\"} 4",
        ] {
            let line = format!("canopy_relay_comtree_{line}");
            assert!(many.lines().any(|one| one == line), "no {line} in\n{many}");
        }
        assert!(!many.contains("{comtree=\"2\""), "{many}");
        let labels = many.lines().filter(|line| line.contains("comtree_drops_total{")).count();
        assert_eq!(labels, LABELLED_COMTREES + 1);
    }

    #[test]
    fn only_a_relay_that_serves_is_healthy() {
        assert_eq!(health(Health::Serving).0, StatusCode::OK);
        for poor in [Health::Draining, Health::ThreadsEnded(2)] {
            assert_eq!(health(poor).0, StatusCode::SERVICE_UNAVAILABLE);
        }
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_bytes() > Some(100_000));
    }

    #[test]
    fn every_counter_and_every_reason_is_there() {
        let mut status =
            ThreadStatus { sessions: 3, waiting_updates: 41, ..ThreadStatus::default() };
        status.counters.deliveries_out = 12;
        status.counters.drop(DropReason::SpoofedSource);
        status.talkers = vec![Talker {
            comtree: Comtree(1),
            address: canopy_wire::Address::unicast(1, 70),
            path: std::net::SocketAddr::from(([203, 0, 113, 7], 9)).into(),
            bits: 5_000,
            updates: 60,
            dropped: 7,
        }];
        let started = UNIX_EPOCH + std::time::Duration::from_millis(1_500);
        let kernel_drops = KernelDrops { backlog: 11, devices: 0, receive_buffers: 5 };
        let process = ProcessMetrics { started, resident_bytes: Some(4096), kernel_drops };
        let text = exposition(status, &SharedNet::default(), process);
        let version = env!("CARGO_PKG_VERSION");
        for line in [
            format!("canopy_build_info{{version=\"{version}\"}} 1"),
            "process_start_time_seconds 1.5".to_owned(),
            "process_resident_memory_bytes 4096".to_owned(),
            "canopy_kernel_drops_total{where=\"backlog\"} 11".to_owned(),
            "canopy_kernel_drops_total{where=\"receive_buffers\"} 5".to_owned(),
        ] {
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
        assert!(text.contains("canopy_relay_deliveries_out_total 12"), "{text}");
        assert!(text.contains("canopy_relay_drops_total{reason=\"spoofed_source\"} 1"), "{text}");
        assert!(text.contains("canopy_relay_sessions 3"), "{text}");
        assert!(text.contains("canopy_relay_waiting_updates 41"), "{text}");
        for (name, value) in [("bits", 5_000), ("updates", 60), ("dropped", 7)] {
            let line = format!("canopy_relay_talker_{name}{{rank=\"1\"}} {value}");
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("203.0.113.7"), "no label says who");
        for reason in DropReason::ALL {
            assert!(text.contains(&format!("reason=\"{}\"", reason.name())));
        }
    }
}
