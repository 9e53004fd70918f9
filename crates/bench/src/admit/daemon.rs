//! The daemon, as a process on one processor.

use super::api::Api;
use super::crowd::{Asked, Crowd};
use super::relays::Relays;
use super::{
    AdmitBench, AdmitRow, At, BITS_OF_PACKET, DOWN_BITS, LEASE, LINK_BITS, LINKS_TO,
    MEMORY_ALLOWED, UP_BITS, relay_name, relays, world,
};
use crate::Processors;
use crate::footprint::peak_bytes;
use crate::relay::server_command;
use anyhow::{Context, bail, ensure};
use canopy_client::RelayKey;
use canopy_net::{end_with_parent, process_cpu_time};
use canopy_output::print_note;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// What a controller is asked is true within this time, or the bench ends with an error.
const PATIENCE: Duration = Duration::from_secs(60);
/// It is asked again after this.
const AGAIN: Duration = Duration::from_millis(20);
/// Connections over which worlds are created.
const CREATING: u32 = 64;

/// What everybody's question cost.
struct Round {
    wall: Duration,
    /// The daemon's processor time.
    cpu: Duration,
    took: Histogram<u64>,
}

pub(super) fn measure(bench: &AdmitBench, processors: &Processors) -> anyhow::Result<AdmitRow> {
    let folder = match &bench.dir {
        Some(within) => tempfile::tempdir_in(within),
        None => tempfile::tempdir(),
    };
    let folder = folder.context("there is no room for the controller's folder")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure_in(bench, folder.path(), processors))
}

async fn measure_in(
    bench: &AdmitBench,
    folder: &Path,
    processors: &Processors,
) -> anyhow::Result<AdmitRow> {
    let AdmitBench { endpoints, worlds, together, .. } = *bench;
    let mut daemon = Daemon::start((Ipv4Addr::LOCALHOST, 0).into(), folder, processors)?;
    let (listen, key) = (daemon.listen, daemon.key.to_bytes());
    let _relays = Relays::start(relays(worlds), listen, key);
    daemon.set_up(folder, worlds).await?;
    let asked_again = Arc::<AtomicU32>::default();
    let controller = listen;
    let crowd = Crowd { controller, key, endpoints, worlds, together, asked_again };

    print_note(format_args!("daemon: {endpoints} participants join {worlds} worlds"));
    let joins = daemon.round(&crowd, Asked::Join).await?;
    print_note("daemon: they renew their leases");
    let renewals = daemon.round(&crowd, Asked::Renew).await?;
    let first_peak = peak_bytes(daemon.process.id())?;

    print_note("daemon: it is killed and started again, and they leave");
    daemon.kill()?;
    let begun = Instant::now();
    daemon = Daemon::start(listen, folder, processors)?;
    let started_again_ms = begun.elapsed().as_secs_f64() * 1e3;
    let api = Api::of(daemon.api, folder)?;
    let members = api.get("/v1/health").await?["members"].as_u64().unwrap_or_default();
    let leaves = daemon.round(&crowd, Asked::Leave).await?;
    until("nobody is in", async || {
        Ok(api.get("/v1/health").await?["members"] == 0 && is_all_free(&api).await?)
    })
    .await?;
    let memory_bytes = first_peak.max(peak_bytes(daemon.process.id())?);
    Ok(AdmitRow {
        at: At::Daemon,
        endpoints,
        worlds,
        relays: relays(worlds),
        joins_per_second: f64::from(endpoints) / joins.wall.as_secs_f64(),
        joins_per_core_second: joins.per_core_second(),
        join_p50_ms: Some(joins.took.value_at_quantile(0.5) as f64 / 1e3),
        join_p99_ms: Some(joins.took.value_at_quantile(0.99) as f64 / 1e3),
        renewals_per_core_second: Some(renewals.per_core_second()),
        leaves_per_core_second: Some(leaves.per_core_second()),
        asked_again: crowd.asked_again.load(Ordering::Relaxed),
        memory_bytes,
        memory_allowed_bytes: MEMORY_ALLOWED,
        started_again_ms,
        lost: endpoints.saturating_sub(members as u32),
    })
}

impl Round {
    fn per_core_second(&self) -> f64 {
        self.took.len() as f64 / self.cpu.as_secs_f64()
    }
}

/// A controller's process, which ends when this is dropped.
struct Daemon {
    process: Child,
    listen: SocketAddr,
    api: SocketAddr,
    key: RelayKey,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

impl Daemon {
    /// Starts one on a processor of its own, and returns once it is ready.
    fn start(listen: SocketAddr, folder: &Path, on: &Processors) -> anyhow::Result<Daemon> {
        let mut command = server_command()?;
        let (listen, lease) = (listen.to_string(), LEASE.as_secs().to_string());
        command.args(["controller", "--json", "--degree", "0", "--api", "127.0.0.1:0"]);
        command.args(["--listen", &listen, "--lease", &lease, "--dir"]).arg(folder);
        // A process begins on the processors of the thread that starts it.
        canopy_net::pin_thread(on.relay_on[0])?;
        let process = end_with_parent(&mut command).spawn();
        canopy_net::pin_thread(on.load_on)?;
        let mut process = process.context("cannot start the controller")?;
        let stdout = process.stdout.take().context("the controller has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let ready: Value = serde_json::from_str(&line).unwrap_or_default();
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        let addresses = (text("listen").parse(), text("api").parse(), text("key").parse());
        let (Ok(listen), Ok(api), Ok(key)) = addresses else {
            let _ = process.kill();
            let _ = process.wait();
            bail!("the controller did not say where it is: {line:?}");
        };
        Ok(Daemon { process, listen, api, key })
    }

    /// Ends it at once, whatever it does.
    fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Waits for the relays, and makes links and worlds.
    async fn set_up(&self, folder: &Path, worlds: u32) -> anyhow::Result<()> {
        let (api, all) = (Api::of(self.api, folder)?, relays(worlds));
        until("all relays are up", async || {
            let told = api.get("/v1/relays").await?;
            let relays = told["relays"].as_array().into_iter().flatten();
            Ok(relays.filter(|relay| relay["state"] == "up").count() == usize::from(all))
        })
        .await?;
        for relay in 0..all {
            for step in LINKS_TO {
                let ends = [relay_name(relay), relay_name((relay + step) % all)];
                let link = json!({
                    "ends": ends, "bits": LINK_BITS, "packets": LINK_BITS / BITS_OF_PACKET,
                    "delay_us": 3000,
                });
                api.post("/v1/links", &link).await?;
            }
        }
        let mut creating = JoinSet::new();
        for seat in 0..CREATING.min(worlds) {
            let api = api.clone();
            creating.spawn(async move {
                for number in (seat..worlds).step_by(CREATING as usize) {
                    api.post("/v1/worlds", &new_world(number)).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(created) = creating.join_next().await {
            created??;
        }
        Ok(())
    }

    async fn round(&self, crowd: &Crowd, asked: Asked) -> anyhow::Result<Round> {
        let process = self.process.id();
        let (begun, cpu) = (Instant::now(), process_cpu_time(process)?);
        let took = crowd.ask(asked).await?;
        let (wall, cpu) = (begun.elapsed(), process_cpu_time(process)?.saturating_sub(cpu));
        ensure!(!cpu.is_zero(), "the controller took no time; have more participants ask");
        Ok(Round { wall, cpu, took })
    }
}

fn new_world(number: u32) -> Value {
    let budget = json!({
        "up_bits": UP_BITS, "up_packets": UP_BITS / BITS_OF_PACKET,
        "down_bits": DOWN_BITS, "down_packets": DOWN_BITS / BITS_OF_PACKET,
    });
    json!({ "name": world(number), "levels": 2, "budget": budget })
}

/// Whether nothing is reserved anywhere.
async fn is_all_free(api: &Api) -> anyhow::Result<bool> {
    let told = api.get("/v1/accounts").await?;
    let accounts = told["accounts"].as_array().context("there are no accounts")?;
    Ok(accounts.iter().all(|account| account["free"] == account["most"]))
}

async fn until(
    what: &str,
    mut holds: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !holds().await? {
        ensure!(begun.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}
