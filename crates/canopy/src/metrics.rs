//! `/metrics` in the Prometheus text format.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use canopy_node::{RelayWatch, ThreadStatus};
use canopy_wire::DropReason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// Serves `/metrics` of a relay.
pub(crate) fn router(watch: RelayWatch) -> Router {
    let metrics = move || async move {
        let headers =
            [(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
        (headers, exposition(watch.status())).into_response()
    };
    Router::new().route("/metrics", get(metrics))
}

/// The metrics as text.
fn exposition(status: ThreadStatus) -> String {
    let mut registry = Registry::with_prefix("canopy_relay");
    registry.register_collector(Box::new(RelayMetrics(status)));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
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
        let gauges = [
            ("sessions", "Participants connected", f64::from(status.sessions)),
            ("subscriptions", "Subscriptions held", f64::from(status.subscriptions)),
            ("groups", "Groups with subscribers", f64::from(status.groups)),
            (
                "send_engines_stopped",
                "Data threads whose send engine sends in another way than its own",
                f64::from(status.engines_stopped),
            ),
            (
                "longest_turn_seconds",
                "The longest turn of a data thread in the last fifth of a second",
                status.longest_turn.as_secs_f64(),
            ),
        ];
        for (name, help, value) in gauges {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_and_every_reason_is_there() {
        let mut status = ThreadStatus { sessions: 3, ..ThreadStatus::default() };
        status.counters.deliveries_out = 12;
        status.counters.drop(DropReason::SpoofedSource);
        let text = exposition(status);
        assert!(text.contains("canopy_relay_deliveries_out_total 12"), "{text}");
        assert!(text.contains("canopy_relay_drops_total{reason=\"spoofed_source\"} 1"), "{text}");
        assert!(text.contains("canopy_relay_sessions 3"), "{text}");
        for reason in DropReason::ALL {
            assert!(text.contains(&format!("reason=\"{}\"", reason.name())));
        }
    }
}
