//! Where server and load are: on one host over loopback, or on two over a virtual Ethernet.

use anyhow::Context;
use canopy_engines::{
    ENGINE_FOLDER, Engine, EngineChoice, InstallRequest, Namespace, install, private_engine_folder,
};
use canopy_net::{Socket, SocketOptions};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

/// Server and load, and what is between them.
pub(crate) struct Hosts {
    pub(crate) server_ip: IpAddr,
    pub(crate) load_ip: IpAddr,
    namespaces: Option<Namespaces>,
}

/// Two network namespaces joined by a virtual Ethernet.
struct Namespaces {
    near: Namespace,
    far: Namespace,
    /// Where the clone engines are installed.
    folder: &'static Path,
    /// Why they are not, if they are not.
    not_installed: Option<String>,
}

impl Hosts {
    pub(crate) fn loopback() -> Hosts {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Hosts { server_ip: ip, load_ip: ip, namespaces: None }
    }

    /// Makes the hosts and installs the clone engines. The far host's receive work is done by
    /// `load_on`.
    pub(crate) fn virtual_ethernet(load_on: usize) -> anyhow::Result<Hosts> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        Namespace::join(&near, &far)?;
        far.steer("far", load_on).context("the receive work cannot be steered")?;
        // Without it, a virtual device takes no XDP frames from its other end.
        let ethtool =
            far.run(|| Command::new("ethtool").args(["-K", "far", "gro", "on"]).output())?;
        ethtool.context("ethtool cannot be started; install Debian's ethtool")?;
        // What is installed here ends with the process.
        let folder = private_engine_folder()?;
        let request = InstallRequest { device: "near", folder, owner: 0, xdp: true };
        let installed = near.run(|| install(&request))?;
        let not_installed =
            installed.err().map(|error| format!("it cannot be installed here: {error}"));
        Ok(Hosts {
            server_ip: Ipv4Addr::new(10, 77, 0, 1).into(),
            load_ip: Ipv4Addr::new(10, 77, 0, 2).into(),
            namespaces: Some(Namespaces { near, far, folder, not_installed }),
        })
    }

    /// Whether server and load are on two hosts.
    pub(crate) fn is_netns(&self) -> bool {
        self.namespaces.is_some()
    }

    /// Why the clone engines could not be installed, where they should have been.
    pub(crate) fn not_installed(&self) -> Option<&str> {
        self.namespaces.as_ref().and_then(|spaces| spaces.not_installed.as_deref())
    }

    /// Why a relay here cannot have this engine, if it cannot.
    pub(crate) fn why_not(&self, engine: EngineChoice) -> anyhow::Result<Option<String>> {
        if let (EngineChoice::Named(name), Some(why)) = (engine, self.not_installed())
            && name.clones()
        {
            return Ok(Some(why.to_owned()));
        }
        let folder =
            self.namespaces.as_ref().map_or(Path::new(ENGINE_FOLDER), |spaces| spaces.folder);
        let open = || -> std::io::Result<Option<String>> {
            let socket = Socket::bind((self.server_ip, 0).into(), &SocketOptions::default())?;
            let opened = Engine::open_in(folder, engine, &socket);
            Ok(opened.err().map(|error| error.reason))
        };
        Ok(match &self.namespaces {
            None => open()?,
            Some(spaces) => spaces.near.run(open)??,
        })
    }

    /// Runs the load's side where the load is.
    pub(crate) fn run<T: Send>(&self, load: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        match &self.namespaces {
            None => Ok(load()),
            Some(spaces) => Ok(spaces.far.run(load)?),
        }
    }

    /// Makes a command start where the server is.
    pub(crate) fn host_server<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match &self.namespaces {
            None => command,
            Some(spaces) => spaces.near.host(command),
        }
    }

    /// What the relay must be told to serve here.
    pub(crate) fn relay_flags(&self) -> Vec<String> {
        let listen = ["--listen".to_owned(), format!("{}:0", self.server_ip)];
        let engines = self.namespaces.iter().flat_map(|spaces| {
            let folder = spaces.folder.display().to_string();
            ["--open".to_owned(), "--insecure".to_owned(), "--engine-folder".to_owned(), folder]
        });
        listen.into_iter().chain(engines).collect()
    }
}
