//! The relays of a lab, each a process of its own.

use super::files::{self, Known};
use crate::output::print_note;
use anyhow::{Context, bail};
use canopy_net::{ask_to_end, ask_to_reload, end_with_parent};
use serde::Deserialize;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// How long a relay waits for its participants to go when the lab is stopped, milliseconds.
const DRAIN_MS: &str = "500";

/// A relay of a lab. Ended when dropped.
pub(super) struct RelayProcess {
    pub(super) name: String,
    child: Child,
    /// Kept, so that what the relay says at its end does not fail.
    stdout: BufReader<ChildStdout>,
    settings: PathBuf,
    has_ended: bool,
}

/// What a relay says when it serves.
#[derive(Deserialize)]
struct Listening {
    relay: SocketAddr,
    key: String,
    console: SocketAddr,
}

/// A relay that serves.
pub(super) struct Serving {
    pub(super) known: Known,
    /// The HTTP address of its console, metrics and `/net`.
    pub(super) api: SocketAddr,
}

/// The controller of a lab. Ended when dropped.
pub(super) struct ControllerProcess {
    child: Child,
    /// Kept, as a relay's.
    _stdout: BufReader<ChildStdout>,
    pub(super) ready: ControllerReady,
}

/// What a controller says when it serves.
#[derive(Deserialize)]
pub(super) struct ControllerReady {
    pub(super) listen: SocketAddr,
    pub(super) key: String,
    pub(super) api: SocketAddr,
}

impl ControllerProcess {
    /// Starts a controller with its records in a folder, and waits until it serves.
    pub(super) fn start(folder: &Path) -> anyhow::Result<ControllerProcess> {
        let mut command = own_command()?;
        command.args(["controller", "--json", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]);
        command.arg("--dir").arg(folder);
        let (child, mut stdout) = spawn(command, "controller")?;
        let mut line = String::new();
        let read = stdout.read_line(&mut line);
        let ready = read.ok().and_then(|_| serde_json::from_str(&line).ok());
        let mut process = child;
        let Some(ready) = ready else {
            // Ours, by its handle; it may have ended already.
            let _ = process.kill();
            let _ = process.wait();
            bail!("the controller did not start; what it says above tells why");
        };
        Ok(ControllerProcess { child: process, _stdout: stdout, ready })
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        // It asks for no order: what it has committed outlasts it, and the lab's folder goes anyway.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RelayProcess {
    /// Starts a relay that is joined with nobody yet, with its files in a folder and these flags. It
    /// may not be ready.
    pub(super) fn start(
        relay: usize,
        folder: &Path,
        flags: &[String],
    ) -> anyhow::Result<RelayProcess> {
        let name = files::name(relay);
        let file = |ending: &str| folder.join(format!("{name}.{ending}"));
        let (settings, key) = (file("toml"), file("key"));
        fs::write(&settings, files::alone(relay)).context("cannot write a relay's settings")?;
        let mut command = own_command()?;
        command
            .args(["relay", "--json", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"])
            .arg("--settings")
            .arg(&settings)
            .arg("--key")
            .arg(&key)
            .args(["--drain-ms", DRAIN_MS])
            .args(flags);
        let (child, stdout) = spawn(command, &name)?;
        Ok(RelayProcess { name, child, stdout, settings, has_ended: false })
    }

    /// Waits until it serves.
    pub(super) fn ready(&mut self) -> anyhow::Result<Serving> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let Ok(Listening { relay: address, key, console: api }) = serde_json::from_str(&line)
        else {
            bail!("{} did not start; what it says above tells why", self.name);
        };
        Ok(Serving { known: Known { address, key }, api })
    }

    /// Has it read other settings.
    pub(super) fn reload(&self, settings: &str) -> anyhow::Result<()> {
        fs::write(&self.settings, settings)
            .and_then(|()| ask_to_reload(&self.child))
            .with_context(|| format!("cannot give {} its links", self.name))
    }

    /// How it ended, if it has since this was last asked.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten().filter(|_| !self.has_ended)?;
        self.has_ended = true;
        Some(status)
    }

    /// Whether it runs, as far as [`RelayProcess::ended`] has noticed.
    pub(super) fn is_running(&self) -> bool {
        !self.has_ended
    }

    /// Asks it to end.
    pub(super) fn ask_to_end(&self) {
        // It may have ended already.
        let _ = ask_to_end(&self.child);
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        // Ours, by its handle; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a process ended, in words.
pub(super) fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// The command of this program, without what is set for the lab itself.
pub(super) fn own_command() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("CANOPY_") && variable != "CANOPY_LOG" {
            command.env_remove(variable);
        }
    }
    if std::env::var_os("CANOPY_LOG").is_none() {
        command.env("CANOPY_LOG", "warn");
    }
    Ok(command)
}

/// Starts a process of the lab, whose logs are notes of the lab's. It ends with the lab.
pub(super) fn spawn(
    mut command: Command,
    name: &str,
) -> anyhow::Result<(Child, BufReader<ChildStdout>)> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for the lab, which ends its processes in order.
        .process_group(0);
    let spawned = end_with_parent(&mut command).spawn();
    let mut child = spawned.with_context(|| format!("cannot start {name}"))?;
    let stdout = child.stdout.take().with_context(|| format!("{name} has no output"))?;
    if let Some(stderr) = child.stderr.take() {
        let name = name.to_owned();
        std::thread::spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.for_each(|line| print_note(format_args!("{name}: {line}")));
        });
    }
    Ok((child, BufReader::new(stdout)))
}
