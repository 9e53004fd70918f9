//! `canopy engine`: the kernel's side of the clone engines.

use crate::output::{print_line, print_note};
use anyhow::{Context, bail, ensure};
use canopy_engines::{
    ENGINE_FOLDER, InstallRequest, Installation, current_user, install, installations, user_named,
};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// The engines tc-bpf and xdp let the kernel copy one packet for all its receivers. Their programs
/// are installed once, as root, on the device that packets leave by; relays then use them without
/// any privilege. See docs/engines.md.
#[derive(Args)]
#[command(after_help = "For example:\n  \
    sudo canopy engine install --device eth0 --user canopy\n                                  \
    until it is removed or the machine restarts\n  \
    canopy engine status            what is installed, for whom, who uses it\n  \
    canopy relay --listen 192.0.2.7:4040 --engine tc-bpf --downlink group --open --insecure\n                                  \
    as the user canopy; without --engine it finds out itself\n  \
    sudo canopy engine remove --device eth0\n                                  \
    relays that use it go on with plain sends")]
pub(crate) struct EngineCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Install the programs on a device (as root)
    Install(InstallCommand),
    /// List what is installed, for whom, and how many packets the kernel copied
    Status(StatusCommand),
    /// Remove what was installed, leaving nothing behind (as root)
    Remove(RemoveCommand),
}

#[derive(Args)]
struct Folder {
    /// Where what is installed is kept: a BPF file system, mounted with the first installation
    #[arg(long, value_name = "DIR", env = "CANOPY_ENGINE_FOLDER", default_value = ENGINE_FOLDER)]
    folder: PathBuf,
}

#[derive(Args)]
struct InstallCommand {
    /// The Ethernet device that packets to participants leave by; `ip route` names it
    #[arg(long, value_name = "NAME")]
    device: String,
    /// The one user whose relays may use it [default: who calls, also through sudo]
    #[arg(long, value_name = "NAME|UID")]
    user: Option<String>,
    /// Which engines; xdp comes with a tap, and never without tc-bpf
    #[arg(long, value_enum, default_value_t = Engines::All)]
    engine: Engines,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engines {
    TcBpf,
    Xdp,
    All,
}

#[derive(Args)]
struct StatusCommand {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Args)]
struct RemoveCommand {
    /// The device's name now; or --all
    #[arg(long, value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    device: Option<String>,
    /// Remove all, also of devices that are gone and of other network namespaces
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    folder: Folder,
}

/// An installation as it is now.
#[derive(Serialize)]
struct Status {
    /// None if it is gone or in another network namespace.
    device: Option<String>,
    index: u32,
    up: bool,
    namespace: u64,
    here: bool,
    user: u32,
    engines: Vec<&'static str>,
    /// False if installing was ended before its end.
    complete: bool,
    /// None for whoever may not use it.
    slots_in_use: Option<usize>,
    slots: usize,
    /// Packets that the kernel has made for those who use it. None for whoever may not.
    copies: Option<u64>,
}

impl EngineCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Install(command) => command.run()?,
            What::Status(command) => command.run()?,
            What::Remove(command) => command.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl InstallCommand {
    fn run(&self) -> anyhow::Result<()> {
        let owner = owner(self.user.as_deref())?;
        let installation = install(&InstallRequest {
            device: &self.device,
            folder: &self.folder.folder,
            owner,
            xdp: self.engine != Engines::TcBpf,
        })?;
        let engines = engines_of(&installation).join(" and ");
        print_line(format_args!("installed {engines} on {} for user {owner}", self.device))?;
        Ok(())
    }
}

impl StatusCommand {
    fn run(&self) -> anyhow::Result<()> {
        let found: Vec<Status> = find(&self.folder)?.iter().map(Status::of).collect();
        if self.json {
            print_line(serde_json::to_string(&found)?)?;
        } else if found.is_empty() {
            let folder = self.folder.folder.display();
            print_line(format_args!("nothing is installed in {folder}"))?;
        } else {
            print_line(table(&found))?;
        }
        Ok(())
    }
}

impl RemoveCommand {
    fn run(&self) -> anyhow::Result<()> {
        let named = |installation: &Installation| {
            self.all || installation.device_now().map(|(name, _)| name) == self.device
        };
        let found: Vec<Installation> = find(&self.folder)?.into_iter().filter(named).collect();
        if let (Some(device), true) = (&self.device, found.is_empty()) {
            bail!(
                "nothing is installed on a device {device} here in {folder}; `canopy engine status \
                 --folder {folder}` lists what is, and `canopy engine remove --all` removes it",
                folder = self.folder.folder.display()
            );
        }
        for installation in &found {
            let what = describe(installation);
            if installation.slots_in_use().is_some_and(|slots| slots > 0) {
                print_note(format_args!("{what} is in use; its relays go on with plain sends"));
            }
            installation.remove().with_context(|| format!("cannot remove {what}"))?;
            print_line(format_args!("removed {what}"))?;
        }
        Ok(())
    }
}

fn find(folder: &Folder) -> anyhow::Result<Vec<Installation>> {
    let folder = &folder.folder;
    installations(folder)
        .with_context(|| format!("cannot read {}; check --folder", folder.display()))
}

/// Who may send: who is named, or whoever called sudo, or us.
fn owner(user: Option<&str>) -> anyhow::Result<u32> {
    let Some(name) = user else {
        return match std::env::var("SUDO_UID") {
            Ok(number) => number
                .parse()
                .with_context(|| format!("SUDO_UID is {number:?}, no number; give --user")),
            Err(_) => Ok(current_user()),
        };
    };
    if let Ok(number) = name.parse() {
        ensure!(number != u32::MAX, "{number} stands for no user; give --user another");
        return Ok(number);
    }
    let found = user_named(name).context("cannot read the list of users; give a number")?;
    ensure!(found.is_some(), "there is no user {name}; give --user another name, or a number");
    Ok(found.unwrap_or_default())
}

fn engines_of(installation: &Installation) -> Vec<&'static str> {
    if !installation.complete {
        return Vec::new();
    }
    if installation.xdp { vec!["tc-bpf", "xdp"] } else { vec!["tc-bpf"] }
}

fn describe(installation: &Installation) -> String {
    let engines = match &engines_of(installation)[..] {
        [] => "what is incomplete".to_owned(),
        engines => engines.join(" and "),
    };
    match installation.device_now() {
        Some((name, _)) => format!("{engines} of {name}"),
        None => format!("{engines} of {}", Status::of(installation).device_in_words()),
    }
}

impl Status {
    fn of(installation: &Installation) -> Status {
        let (device, up) = installation.device_now().unzip();
        Status {
            device,
            index: installation.device,
            up: up.unwrap_or(false),
            namespace: installation.namespace,
            here: installation.is_here(),
            user: installation.owner,
            engines: engines_of(installation),
            complete: installation.complete,
            slots_in_use: installation.slots_in_use(),
            slots: installation.slots(),
            copies: installation.copies().ok(),
        }
    }

    fn device_in_words(&self) -> String {
        match &self.device {
            Some(name) => name.clone(),
            None if self.here => format!("device {} (gone)", self.index),
            None => format!("device {} elsewhere", self.index),
        }
    }

    fn namespace_in_words(&self) -> String {
        if self.here { "this".to_owned() } else { self.namespace.to_string() }
    }

    fn state(&self) -> &'static str {
        match (&self.device, self.up) {
            (None, _) => "-",
            (_, true) => "up",
            (_, false) => "down",
        }
    }
}

fn table(found: &[Status]) -> String {
    let unknown = || "-".to_owned();
    let mut text = format!(
        "{:<18} {:<5} {:<11} {:>6}  {:<12} {:>12}  {:>12}",
        "device", "state", "namespace", "user", "engines", "slots in use", "copies"
    );
    for status in found {
        text += &format!(
            "\n{:<18} {:<5} {:<11} {:>6}  {:<12} {:>12}  {:>12}",
            status.device_in_words(),
            status.state(),
            status.namespace_in_words(),
            status.user,
            if status.complete { status.engines.join(", ") } else { "incomplete".to_owned() },
            status.slots_in_use.map_or(unknown(), |slots| format!("{slots} of {}", status.slots)),
            status.copies.map_or(unknown(), |copies| copies.to_string()),
        );
    }
    text
}
