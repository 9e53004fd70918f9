//! `canopy relay`: one relay until it is told to stop.

use crate::metrics;
use crate::relay::{Command, RelayArgs, RelayReport, RelaySettings, RunningRelay};
use anyhow::Context;
use clap::Args;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Serves until SIGTERM or SIGINT, then drains: takes no one new, tells the participants to go,
/// and stops when they have gone or after drain_ms (default 5000).
#[derive(Args)]
pub(crate) struct RelayCommand {
    #[command(flatten)]
    relay: RelayArgs,
    /// Print one JSON object when serving begins, and one with all totals at the end
    #[arg(long)]
    json: bool,
    /// Log format on stderr: 'text' or 'json'
    #[arg(long, value_name = "FORMAT", env = "CANOPY_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// How logs look.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl LogFormat {
    /// Starts logging to stderr; `CANOPY_LOG` filters it, like `info` or `canopy=debug`.
    pub(crate) fn start(self) {
        let filter = tracing_subscriber::EnvFilter::try_from_env("CANOPY_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self {
            LogFormat::Text => logs.init(),
            LogFormat::Json => logs.json().init(),
        }
    }
}

impl RelayCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let settings = RelaySettings::resolve(self.relay)?;
        self.log_format.start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(serve(&settings, self.json))?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn serve(settings: &RelaySettings, json: bool) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let metrics = bind("metrics", settings.metrics).await?;
    let relay = RunningRelay::start(settings)?;
    let watch = relay.watch();
    let address = |listener: &Option<TcpListener>| {
        listener.as_ref().and_then(|listener| listener.local_addr().ok())
    };
    tracing::info!(address = %relay.address(), "serving: {settings}");
    if json {
        let listening = serde_json::json!({
            "event": "listening",
            "relay": relay.address(),
            "metrics": address(&metrics),
        });
        println!("{listening}");
    }
    if let Some(listener) = metrics {
        tokio::spawn(axum::serve(listener, metrics::router(watch.clone())).into_future());
    }
    let ended = tokio::task::spawn_blocking(move || relay.join());
    tokio::pin!(ended);
    let done = tokio::select! {
        done = &mut ended => done,
        () = stopped(&mut terminate, &mut interrupt) => {
            tracing::info!(sessions = watch.status().sessions, "draining");
            watch.command(Command::Drain);
            tokio::select! {
                done = &mut ended => done,
                () = stopped(&mut terminate, &mut interrupt) => {
                    watch.command(Command::Stop);
                    ended.await
                }
            }
        }
    };
    done.context("a data thread was lost")??;
    let report = RelayReport::new(&watch.status());
    tracing::info!(sessions = watch.status().sessions, "stopped");
    if json {
        println!("{}", serde_json::json!({ "event": "stopped", "totals": report }));
    }
    Ok(())
}

async fn stopped(
    terminate: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Binds an HTTP listener, if there is to be one.
pub(crate) async fn bind(
    what: &str,
    address: Option<SocketAddr>,
) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot serve {what} on {address}; choose another address with --{what}")
    })?;
    Ok(Some(listener))
}
