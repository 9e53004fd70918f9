//! `canopy controller`: the daemon of the control plane.

pub(crate) mod api;
mod driver;
mod files;
mod joins;
mod participants;
mod store;
mod waiting;

use crate::output::print_line;
use crate::serve::{LogFormat, Signals};
use crate::trust::TrustFile;
use anyhow::{Context, bail};
use api::Api;
use canopy_control::{Controller, Retry, Settings};
use clap::Args;
use driver::Handle;
use joins::{Admits, Joins};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use store::RedbStorage;
use tokio::net::TcpListener;

/// The file of the records in the controller's folder.
const STORE: &str = "store.redb";

/// Decides who is let into which world, where, and over which tree. Relays go on without it; what it
/// has decided is in its folder, and the next controller there goes on with it.
#[derive(Args)]
pub(crate) struct ControllerCommand {
    /// The folder for its records and keys, which is made if there is none
    #[arg(long, value_name = "FOLDER", env = "CANOPY_CONTROLLER_DIR", hide_env_values = true)]
    dir: PathBuf,
    /// Where the API is served; port 0 takes a free one. Addresses that other machines can reach
    /// need --insecure
    #[arg(
        long,
        value_name = "ADDR:PORT",
        env = "CANOPY_API",
        hide_env_values = true,
        default_value = api::DEFAULT_ADDRESS
    )]
    api: SocketAddr,
    /// Serve the API without encryption where other machines can reach it
    #[arg(long)]
    insecure: bool,
    /// The file of the keys whose tokens are good for joining a world; docs/tokens.md describes it
    #[arg(long, value_name = "FILE", env = "CANOPY_CONTROLLER_TRUST", hide_env_values = true)]
    trust: Option<PathBuf>,
    /// Print one JSON object on stdout when serving begins
    #[arg(long)]
    json: bool,
    /// How logs look on stderr
    #[arg(
        long,
        value_name = "FORMAT",
        env = "CANOPY_LOG_FORMAT",
        hide_env_values = true,
        default_value = "text"
    )]
    log_format: LogFormat,
}

impl ControllerCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if !self.api.ip().is_loopback() && !self.insecure {
            bail!(
                "--api {}: other machines can reach it, and the API is not encrypted; serve it on \
                 127.0.0.1 and put a proxy with TLS in front, or give --insecure",
                self.api
            );
        }
        self.log_format.start()?;
        make_folder(&self.dir)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(self) -> anyhow::Result<()> {
        let mut signals = Signals::listen()?;
        let mut storage = RedbStorage::open(&self.dir.join(STORE))?;
        let issuer = files::issuer_key(&self.dir)?;
        let admits = match self.trust {
            Some(path) => Admits::Trusted(TrustFile::open(path)?),
            None => Admits::Everybody,
        };
        let now = driver::now();
        let controller =
            Controller::start(Settings::default(), Retry::default(), now, &mut storage)?;
        let life = controller.life();
        let key = issuer.public().to_string();
        // Nobody is connected, and what a relay missed is told again when it is.
        let handle = Handle::start(controller, storage, |_, _| {});
        let joins = Joins::start(handle.clone(), issuer, admits);
        let listener = TcpListener::bind(self.api).await.with_context(|| {
            format!("cannot serve the API on {}; choose another address with --api", self.api)
        })?;
        let address = listener.local_addr()?;
        api::serve(listener, &self.dir, Api::new(handle, joins))?;
        tracing::info!(api = %address, life, "serving from {}", self.dir.display());
        if self.json {
            print_line(serde_json::json!({
                "event": "listening", "api": address, "life": life, "issuer": key,
            }))?;
        }
        signals.next().await;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Makes the folder, which others may not look into.
fn make_folder(folder: &Path) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("cannot make the folder {}", folder.display()))
}
