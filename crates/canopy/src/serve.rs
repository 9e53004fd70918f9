//! `canopy relay`: one relay until it is told to stop.

use crate::console::Console;
use crate::metrics;
use crate::output::print_line;
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
        self.start_at("info");
    }

    /// The same with another filter where `CANOPY_LOG` is not set.
    pub(crate) fn start_at(self, default: &str) {
        let filter = tracing_subscriber::EnvFilter::try_from_env("CANOPY_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
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
    let metrics = bind("metrics", settings.metrics).await?;
    let console = bind("console", settings.console).await?;
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
            "console": address(&console),
            "metrics": address(&metrics),
        });
        print_line(listening)?;
    }
    if let Some(listener) = metrics {
        tokio::spawn(axum::serve(listener, metrics::router(watch.clone())).into_future());
    }
    if let Some(listener) = console {
        let console = Console::of_relay(settings, relay.address(), watch.clone());
        tokio::spawn(axum::serve(listener, console.router()).into_future());
    }
    run_until_told(relay).await?;
    let status = watch.status();
    tracing::info!(sessions = status.sessions, "stopped");
    if json {
        let totals = RelayReport::new(&status);
        print_line(serde_json::json!({ "event": "stopped", "totals": totals }))?;
    }
    Ok(())
}

/// Waits for a signal, then drains; a second signal stops at once.
async fn run_until_told(relay: RunningRelay) -> anyhow::Result<()> {
    let watch = relay.watch();
    let ended = tokio::task::spawn_blocking(move || relay.join());
    tokio::pin!(ended);
    for command in [Command::Drain, Command::Stop] {
        tokio::select! {
            done = &mut ended => return done.context("a data thread was lost")?,
            told = until_told_to_stop() => {
                told?;
                let sessions = watch.status().sessions;
                tracing::info!(sessions, at_once = command == Command::Stop, "stopping");
                watch.command(command);
            }
        }
    }
    ended.await.context("a data thread was lost")?
}

/// Returns on SIGTERM or SIGINT.
pub(crate) async fn until_told_to_stop() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
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
