//! `canopy controller`: the daemon of the control plane.

mod api;
mod credentials;
mod driver;
mod feeds;
mod joins;
mod participants;
mod relays;
mod store;
mod waiting;

use crate::controller_folder::{DEFAULT_ADDRESS, issuer_key};
use crate::logs::LogFormat;
use crate::output::print_line;
use crate::settings::key;
use crate::signals::Signals;
use crate::trust::TrustFile;
use anyhow::{Context, bail};
use api::Api;
use canopy_client::RelayKey;
use canopy_control::{Controller, Retry, Settings, Storage};
use canopy_session::Identity;
use canopy_token::SigningKey;
use clap::Args;
pub(crate) use credentials::Admits;
pub(crate) use driver::Handle;
use feeds::Feeds;
pub(crate) use joins::Joins;
pub(crate) use relays::Welcome;
use relays::{Answering, Relays};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use store::RedbStorage;
use tokio::net::TcpListener;

/// Where relays and participants reach it unless it is told otherwise.
const DEFAULT_LISTEN: &str = "127.0.0.1:4041";
/// The file of the key by which relays and participants know it.
const IDENTITY: &str = "controller.key";
/// The file of the records in the controller's folder.
const STORE: &str = "store.redb";

/// Decides who is let into which world, where, and over which tree. Relays go on without it; what it
/// has decided is in its folder, and the next controller there goes on with it.
#[derive(Args)]
pub(crate) struct ControllerCommand {
    /// The folder for its records and keys, which is made if there is none
    #[arg(long, value_name = "FOLDER", env = "CANOPY_CONTROLLER_DIR", hide_env_values = true)]
    dir: PathBuf,
    /// Where relays and participants reach it; port 0 takes a free one
    #[arg(
        long,
        value_name = "ADDR:PORT",
        env = "CANOPY_CONTROLLER_LISTEN",
        hide_env_values = true,
        default_value = DEFAULT_LISTEN
    )]
    listen: SocketAddr,
    /// The file of the relays that may register: on each line a key, and a name if only that one is
    /// meant. It is read at each registration
    #[arg(long, value_name = "FILE", env = "CANOPY_CONTROLLER_RELAYS", hide_env_values = true)]
    relays: Option<PathBuf>,
    /// Let every relay register. On this machine's own addresses that is so unless --relays is given
    #[arg(long, conflicts_with = "relays")]
    open_relays: bool,
    /// Join each relay by links with so many others at most: those with the fewest links at first, and
    /// those that suit what relays measure from then on. 0 leaves links to the API
    #[arg(long, value_name = "N", default_value_t = 3)]
    degree: usize,
    /// Where the API is served; port 0 takes a free one. Addresses that other machines can reach
    /// need --insecure
    #[arg(
        long,
        value_name = "ADDR:PORT",
        env = "CANOPY_API",
        hide_env_values = true,
        default_value = DEFAULT_ADDRESS
    )]
    api: SocketAddr,
    /// Serve the API without encryption where other machines can reach it
    #[arg(long)]
    insecure: bool,
    /// The file of the keys whose tokens are good for joining a world; docs/tokens.md describes it
    #[arg(long, value_name = "FILE", env = "CANOPY_CONTROLLER_TRUST", hide_env_values = true)]
    trust: Option<PathBuf>,
    /// Let everybody join every world. On this machine's own addresses that is so unless --trust is
    /// given
    #[arg(long, conflicts_with = "trust")]
    open: bool,
    /// How long a member's place lasts unless it is renewed, which participants do three times meanwhile;
    /// 10 to 3600 seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(10..=3600))]
    lease: u64,
    /// Look for a better tree once a comtree has kept its own for so long, and then as often; it is moved
    /// without loss, if that costs 15 % less. 0 never does
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(0..=86_400))]
    improve_s: u64,
    /// Reserve at most so much of each link's and each relay's rate; the rest is for what relays say to each other
    #[arg(long, value_name = "PERCENT", default_value_t = 90,
          value_parser = clap::value_parser!(u8).range(1..=100))]
    share: u8,
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
        let welcome = self.welcome()?;
        if self.trust.is_none() && !self.open && !self.listen.ip().is_loopback() {
            bail!(
                "--listen {}: other machines can reach it, and everybody could join every world; name \
                 the keys whose credentials are good with --trust, or give --open",
                self.listen
            );
        }
        self.log_format.start()?;
        make_folder(&self.dir)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(welcome))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Which relays may register.
    fn welcome(&self) -> anyhow::Result<Welcome> {
        match &self.relays {
            Some(path) => Ok(Welcome::Listed(path.clone())),
            None if self.open_relays || self.listen.ip().is_loopback() => Ok(Welcome::All),
            None => bail!(
                "--listen {}: other machines can reach it, and any relay could register; list those \
                 that may with --relays, or give --open-relays",
                self.listen
            ),
        }
    }

    async fn serve(self, welcome: Welcome) -> anyhow::Result<()> {
        let mut signals = Signals::listen()?;
        let storage = RedbStorage::open(&self.dir.join(STORE))?;
        let issuer = issuer_key(&self.dir)?;
        let identity = key::load_or_make(&self.dir.join(IDENTITY))?;
        let admits = match &self.trust {
            Some(path) => Admits::Trusted(TrustFile::open(path.clone())?),
            None => Admits::Everybody,
        };
        let channels = bind("listen", self.listen).await?;
        let api = bind("api", self.api).await?;
        let settings = Settings {
            lease: Duration::from_secs(self.lease),
            degree: self.degree,
            improve: Duration::from_secs(self.improve_s),
            share: f64::from(self.share) / 100.0,
            ..Settings::default()
        };
        let parts = Parts { identity, issuer, admits, welcome, settings };
        let running = Running::start(storage, channels, parts)?;
        let Running { handle, joins, listen, key, issuers } = running;
        let (address, life) = (api.local_addr()?, *handle.lives().borrow());
        api::serve(api, &self.dir, Api::new(handle.clone(), joins))?;
        tracing::info!(%listen, %key, api = %address, life, "serving from {}", self.dir.display());
        if self.json {
            print_line(serde_json::json!({
                "event": "listening", "listen": listen, "key": key.to_string(), "api": address,
                "life": life, "issuer": issuers,
            }))?;
        }
        tokio::select! {
            () = signals.next() => {}
            error = handle.ended() => return Err(error),
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// What a controller is made of, beside its records.
pub(crate) struct Parts {
    /// The key by which relays and participants know it.
    pub(crate) identity: Identity,
    /// The key that signs the tokens of members.
    pub(crate) issuer: SigningKey,
    /// Whose credentials are good for joining.
    pub(crate) admits: Admits,
    /// Which relays may register.
    pub(crate) welcome: Welcome,
    /// How it does its work.
    pub(crate) settings: Settings,
}

/// A controller at work.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    pub(crate) joins: Joins,
    /// Where relays and participants reach it.
    pub(crate) listen: SocketAddr,
    /// By which key they know it.
    pub(crate) key: RelayKey,
    /// The public key of its issuer.
    pub(crate) issuers: String,
}

impl Running {
    /// Starts a controller on records, in a tokio runtime. It takes channels from then on.
    ///
    /// # Errors
    /// The records cannot be read, or another controller has them.
    pub(crate) fn start(
        mut storage: impl Storage + Send + 'static,
        channels: TcpListener,
        parts: Parts,
    ) -> anyhow::Result<Running> {
        let Parts { identity, issuer, admits, welcome, settings } = parts;
        let retry = Retry::default();
        let controller = Controller::start(settings, retry, driver::now(), &mut storage)?;
        let (key, issuers) = (RelayKey::new(*identity.public()), issuer.public().to_string());
        let relays = Relays::default();
        let outgoing = relays.clone();
        let send = move |relay, message| outgoing.send(relay, message);
        let handle = Handle::start(controller, storage, send);
        let joins = Joins::start(handle.clone(), issuer, admits);
        let listen = channels.local_addr()?;
        canopy_channel::prepare_listener(&channels)?;
        let answering = Answering {
            identity,
            handle: handle.clone(),
            joins: joins.clone(),
            relays,
            feeds: Feeds::start(&handle),
            welcome,
            issuers: issuers.clone(),
        };
        tokio::spawn(relays::answer(channels, answering));
        Ok(Running { handle, joins, listen, key, issuers })
    }
}

/// Binds a TCP listener that a flag names.
async fn bind(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}; choose another address with --{flag}")
    })
}

/// Makes the folder, which others may not look into.
fn make_folder(folder: &Path) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("cannot make the folder {}", folder.display()))
}
