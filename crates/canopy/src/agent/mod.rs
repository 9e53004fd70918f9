//! A relay's side of its controller: it registers, does what it is told, and says how it is. While the
//! controller is not there, nothing changes.

mod measure;
mod run;
mod spread;

pub(crate) use run::{Agent, Told};

use crate::rate;
use crate::settings::{RelayArgs, RelaySettings};
use crate::trust::no_trust;
use anyhow::bail;
use canopy_channel::Budget;
use canopy_client::RelayKey;
use canopy_control::Name;
use canopy_session::Identity;
use clap::Args;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a relay may send and receive unless it says otherwise, bits a second.
const DEFAULT_UPLINK: u64 = 1_000_000_000;
/// Bits of a packet where a rate is given in bits alone.
const BITS_OF_PACKET: u64 = 1_000;

/// Flags of a relay that a controller tells what to do.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AgentArgs {
    /// Serve what the controller at this address says, and trust the tokens that it issues
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "CANOPY_CONTROLLER",
        hide_env_values = true,
        requires = "controller_key",
        requires = "name"
    )]
    controller: Option<String>,
    /// The controller's public key, which it logs when it starts
    #[arg(
        long,
        value_name = "KEY",
        env = "CANOPY_CONTROLLER_KEY",
        hide_env_values = true,
        requires = "controller"
    )]
    controller_key: Option<RelayKey>,
    /// The relay's name at its controller
    #[arg(
        long,
        value_name = "NAME",
        env = "CANOPY_NAME",
        hide_env_values = true,
        requires = "controller"
    )]
    name: Option<String>,
    /// Bits a second that this host can send, and receive, such as 100M, for the controller to share out
    #[arg(
        long,
        value_name = "RATE",
        value_parser = rate::bits,
        env = "CANOPY_UPLINK",
        hide_env_values = true,
        requires = "controller",
        default_value_t = DEFAULT_UPLINK
    )]
    uplink: u64,
    /// How many members the controller may send here [default: as many as max_sessions]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_PLACES",
        hide_env_values = true,
        requires = "controller"
    )]
    places: Option<u32>,
    /// Where participants and other relays reach this one [default: where it listens]
    #[arg(
        long,
        value_name = "ADDR:PORT",
        env = "CANOPY_NATIVE",
        hide_env_values = true,
        requires = "controller"
    )]
    native: Option<SocketAddr>,
}

/// What a relay says to its controller, and where that is.
#[derive(Clone, Debug)]
pub(crate) struct AgentConfig {
    pub(crate) controller: String,
    pub(crate) controller_key: RelayKey,
    pub(crate) name: Name,
    pub(crate) uplink: Budget,
    pub(crate) places: u32,
    pub(crate) native: Option<SocketAddr>,
    pub(crate) identity: Identity,
    pub(crate) life: u32,
}

impl AgentConfig {
    /// An uplink of so many bits a second each way.
    pub(crate) fn uplink(bits: u64) -> Budget {
        let packets = (bits / BITS_OF_PACKET).max(1);
        Budget { up_bits: bits, up_packets: packets, down_bits: bits, down_packets: packets }
    }
}

/// Takes from a relay's settings what a controller decides: it begins with no comtrees, and lets nobody
/// in before it knows whose tokens count.
///
/// # Errors
/// There are no random numbers.
pub(crate) fn leave_to_controller(settings: &mut RelaySettings) -> anyhow::Result<()> {
    settings.node.comtrees.clear();
    settings.branches.clear();
    settings.own_budgets.comtrees.clear();
    settings.node.trust = Some(Arc::new(no_trust()?));
    Ok(())
}

/// The number of a start where no file counts them: seconds of the clock. A start within the second of
/// the last has its number.
pub(crate) fn life_by_clock() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as u32
}

impl AgentArgs {
    /// Whether a controller tells the relay what to do.
    pub(crate) fn is_controlled(&self) -> bool {
        self.controller.is_some()
    }

    /// Makes a controlled relay's settings of those that were given, whose keys are open.
    ///
    /// # Errors
    /// Something was given that the controller decides.
    pub(crate) fn prepare(
        self,
        args: &RelayArgs,
        settings: &mut RelaySettings,
    ) -> anyhow::Result<Option<AgentConfig>> {
        let (Some(controller), Some(controller_key), Some(name)) =
            (self.controller, self.controller_key, self.name)
        else {
            return Ok(None);
        };
        if args.is_open() || settings.trust.is_some() || !settings.links.is_empty() {
            bail!(
                "--controller: the controller says whose tokens count and which links there are; \
                 leave out --trust, --open and [[link]]"
            );
        }
        leave_to_controller(settings)?;
        let node = &mut settings.node;
        let identity = match &node.identity {
            Some(identity) => identity.clone(),
            None => Identity::new(crate::token::random()?),
        };
        node.identity = Some(identity.clone());
        let life = node.life.unwrap_or_else(life_by_clock);
        Ok(Some(AgentConfig {
            controller,
            controller_key,
            name: Name::new(&name)?,
            uplink: AgentConfig::uplink(self.uplink),
            places: self.places.unwrap_or(node.max_sessions),
            native: self.native,
            identity,
            life,
        }))
    }
}
