//! How much of the relay's processor time is the receivers' softirq: on loopback a datagram's
//! receive path runs in the sender's context and is billed to it.
//!
//! Sampled with `perf` under a steady crowd: a sample counts as the receivers' if a softirq is on
//! its kernel stack. Nothing is sampled while the rows are measured.

use super::cases::{Case, ModeName, Scenario};
use super::load::{Load, Side};
use super::plan::{Keys, Plan};
use super::rounds::{Server, ServerSide};
use anyhow::{Context, bail};
use std::process::{Command, Stdio};
use std::time::Duration;

const SAMPLED: Duration = Duration::from_secs(3);

/// Samples a crowd of ninety in both modes, if this machine has `perf` and lets us, and says what
/// share of the relay's processor time is the receivers'.
pub(super) fn receivers_share(plan: &Plan) -> String {
    let modes = [(ModeName::Immediate, 0), (ModeName::Periodic, 50)];
    let shares = modes.into_iter().map(|(mode, tick_ms)| {
        let scenario = Scenario::Crowd;
        let case = Case { scenario, n: 90, bytes: 100, mode, tick_ms, receivers_gro: false };
        Ok(format!("{:.0} % ({case})", sample(&case, plan)? * 100.0))
    });
    let shares = shares
        .collect::<anyhow::Result<Vec<_>>>()
        .map_or_else(|error| format!("not measured ({error:#})"), |shares| shares.join(", "));
    format!("receivers' softirq, as a share of the relay's processor time: {shares}")
}

fn sample(case: &Case, plan: &Plan) -> anyhow::Result<f64> {
    let server = Server::start(ServerSide::Relay(Keys::Member), case, plan)?;
    let mut load = Load::join(Side::Relay, case, plan.hosts.load_ip, &[server.address])?;
    let data = std::env::temp_dir().join(format!("canopy-softirq-{}.data", server.process()));
    let seconds = SAMPLED.as_secs().to_string();
    let recording = Command::new("perf")
        .args(["record", "-e", "cpu-clock", "-F", "4000", "-g", "-o"])
        .arg(&data)
        .args(["-p", &server.process().to_string(), "--", "sleep", &seconds])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("it needs perf (Debian's linux-perf)")?;
    let ran = load.run(&[server.process()], SAMPLED);
    let recorded = recording.wait_with_output()?;
    let script = Command::new("perf").args(["script", "-F", "ip,sym", "-i"]).arg(&data).output();
    // The samples are of no further use, whether or not they could be read.
    let _ = std::fs::remove_file(&data);
    ran?;
    let script = script?;
    if !recorded.status.success() || !script.status.success() {
        bail!("perf may not sample here; it needs root or kernel.perf_event_paranoid ≤ 1");
    }
    share_of_samples(&String::from_utf8_lossy(&script.stdout))
        .context("perf took no samples with kernel stacks")
}

/// The share of samples, separated by blank lines, with a softirq on the stack.
fn share_of_samples(script: &str) -> Option<f64> {
    let samples: Vec<&str> =
        script.split("\n\n").filter(|sample| !sample.trim().is_empty()).collect();
    let receivers = samples.iter().filter(|sample| sample.contains("softirq")).count();
    (receivers > 0).then(|| receivers as f64 / samples.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_told_apart_by_their_stacks() {
        let script = "ffff udp_sendmsg\nffff sys\n\nffff handle_softirqs\nffff sys\n\n1 main\n\n";
        assert_eq!(share_of_samples(script), Some(1.0 / 3.0));
        assert_eq!(share_of_samples("1 main\n\n"), None);
    }
}
