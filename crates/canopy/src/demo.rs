//! `canopy demo`: relay, crowd and console in one process, on loopback.

use crate::bots::WalkArgs;
use crate::console::Console;
use crate::output::print_line;
use crate::relay::{Command, RelayArgs, RelaySettings, RunningRelay};
use crate::serve::{LogFormat, until_told_to_stop};
use anyhow::Context;
use canopy_bots::{CrowdConfig, Generated, Trace, View};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;

/// Starts a relay, a crowd and a console on this machine; prints the console's address. Needs no
/// root. Ports are chosen free when taken. Ends with Ctrl-C.
#[derive(Args)]
pub(crate) struct DemoCommand {
    /// Walk this trace, again and again, instead of generated walkers
    #[arg(long, value_name = "FILE[.csv|.csv.gz]")]
    trace: Option<PathBuf>,
    /// How many walkers to generate
    #[arg(long, value_name = "N", default_value_t = 120,
          value_parser = clap::value_parser!(u32).range(2..=2000))]
    walkers: u32,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    relay: RelayArgs,
    /// Print the addresses as one JSON object
    #[arg(long)]
    json: bool,
}

/// Where the relay and the console are looked for first.
const RELAY: &str = "127.0.0.1:4040";
const CONSOLE: &str = "127.0.0.1:8080";
/// Area for each generated walker, square metres: some ten neighbours within the default radius.
const AREA_PER_WALKER: f64 = 8.0;
const GENERATED_SECONDS: f64 = 600.0;

impl DemoCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        LogFormat::Text.start_at("warn");
        let trace = match &self.trace {
            Some(path) => Trace::read(path)?,
            None => Trace::generate(&Generated {
                seed: 1,
                walkers: self.walkers,
                side: (AREA_PER_WALKER * f64::from(self.walkers)).sqrt(),
                seconds: GENERATED_SECONDS,
                rate: 10.0,
            }),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.show(trace))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn show(self, trace: Trace) -> anyhow::Result<()> {
        let settings = RelaySettings::resolve(self.relay.clone().or_listen_on(RELAY))?;
        let relay = start_on_a_free_port(settings.clone())?;
        let wanted = settings.console.unwrap_or(CONSOLE.parse()?);
        let listener = listen_on_a_free_port(wanted).await?;
        let url = format!("http://{}/", listener.local_addr()?);
        let (trace, config) = self.walk.prepare(trace, relay.address())?;
        let view = View::new();
        let console = Console::of_relay(&settings, relay.address(), relay.watch())
            .with_crowd(Arc::clone(&view), self.walk.map(&trace));
        tokio::spawn(axum::serve(listener, console.router()).into_future());
        if self.json {
            print_line(serde_json::json!({ "console": url, "relay": relay.address() }))?;
        } else {
            let (name, relay) = (trace.name(), relay.address());
            print_line(format_args!("{name} in one world, through the relay at {relay}"))?;
            print_line(format_args!("Open {url}   (Ctrl-C ends it)"))?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stop_walking = Arc::clone(&stop);
        let mut walking =
            tokio::task::spawn_blocking(move || walk(&config, &trace, view, &stop_walking));
        let walked = tokio::select! {
            walked = &mut walking => walked,
            told = until_told_to_stop() => {
                told?;
                stop.store(true, Ordering::Relaxed);
                walking.await
            }
        };
        relay.watch().command(Command::Stop);
        relay.join()?;
        walked.context("the crowd was lost")?
    }
}

/// Walks the trace again and again.
fn walk(
    config: &CrowdConfig,
    trace: &Trace,
    view: Arc<View>,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        canopy_bots::run(config, trace, Some(Arc::clone(&view)), stop, |_| ())?;
    }
    Ok(())
}

fn start_on_a_free_port(mut settings: RelaySettings) -> anyhow::Result<RunningRelay> {
    RunningRelay::start(&settings).or_else(|_| {
        settings.listen.set_port(0);
        RunningRelay::start(&settings)
    })
}

async fn listen_on_a_free_port(wanted: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(wanted).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((wanted.ip(), 0))
            .await
            .with_context(|| format!("cannot serve the console on {wanted}")),
    }
}
