//! `canopy relay list`, `links`, `drain`, `remove` and `allow`: the relays of a running controller.

use super::client::{ApiArgs, ApiClient, run, segment};
use super::link;
use super::removal::{RemovalArgs, Standing, Target};
use crate::output::print_line;
use anyhow::bail;
use axum::http::Method;
use canopy_api::{RelayView, Relays};
use clap::{Args, Subcommand};
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How often a relay that drains is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What is done with a controller's relays.
#[derive(Subcommand)]
pub(crate) enum RelayDeed {
    /// List the relays of a running controller
    List(ListCommand),
    /// List the links between them: whose choice each is, and why
    Links(link::ListCommand),
    /// Let a controller's relay take nobody new, or again
    Drain(DrainCommand),
    /// Take a controller's relay away for good, without loss
    Remove(RemoveCommand),
    /// Let a relay register again that was removed
    Allow(AllowCommand),
}

/// The relays with their states, their places and their members.
#[derive(Args)]
pub(crate) struct ListCommand {
    #[command(flatten)]
    api: ApiArgs,
}

/// A relay that drains takes nobody new, and asks its members to move to others, which takes clients of the
/// SDK half a minute at most. It carries who stays. Comtrees on which it has no members move off it.
#[derive(Args)]
pub(crate) struct DrainCommand {
    /// The relay's name
    #[arg(value_name = "NAME")]
    relay: String,
    /// Let it take members again
    #[arg(long)]
    undo: bool,
    /// Return once no member is at the relay and no comtree leads over it, so that it can be stopped;
    /// fail after so many seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "undo",
          value_parser = clap::value_parser!(u64).range(1..))]
    wait: Option<u64>,
    #[command(flatten)]
    api: ApiArgs,
}

/// A relay that is removed drains, and goes once no member is at it and no comtree leads over it. Its links go with it,
/// and its number is not given again. Stop its process then; if it starts again it is refused, until `canopy relay
/// allow` lets it register.
#[derive(Args)]
pub(crate) struct RemoveCommand {
    /// The relay's name
    #[arg(value_name = "NAME")]
    relay: String,
    #[command(flatten)]
    how: RemovalArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// A process that is refused registers as a new relay within seconds; one that has run since before it was removed is to be
/// started again. All that were removed under this name may register.
#[derive(Args)]
pub(crate) struct AllowCommand {
    /// The name that it had
    #[arg(value_name = "NAME")]
    relay: String,
    #[command(flatten)]
    api: ApiArgs,
}

impl RelayDeed {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            RelayDeed::List(command) => run(command.api.json, command.run()),
            RelayDeed::Links(command) => command.list(),
            RelayDeed::Drain(command) => run(command.api.json, command.run()),
            RelayDeed::Remove(command) => run(command.api.json, command.run()),
            RelayDeed::Allow(command) => run(command.api.json, command.run()),
        }
    }
}

impl ListCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let text = client.ask(Method::GET, "/v1/relays", String::new()).await?;
        if self.api.json {
            return Ok(print_line(text)?);
        }
        let relays: Relays = client.read(&text)?;
        Ok(print_line(listed(&relays).trim_end())?)
    }
}

impl DrainCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let deed = if self.undo { "undrain" } else { "drain" };
        let path = format!("/v1/relays/{}/{deed}", segment(&self.relay));
        let mut text = client.ask(Method::POST, &path, String::new()).await?;
        if let Some(seconds) = self.wait {
            text = self.until_empty(&client, Duration::from_secs(seconds)).await?;
        }
        if self.api.json {
            return Ok(print_line(text)?);
        }
        Ok(print_line(table(&[client.read(&text)?]).trim_end())?)
    }

    /// Waits until nothing is at the relay, and returns what the API says of it then.
    async fn until_empty(&self, client: &ApiClient, patience: Duration) -> anyhow::Result<String> {
        let path = format!("/v1/relays/{}", segment(&self.relay));
        let deadline = Instant::now() + patience;
        loop {
            let text = client.ask(Method::GET, &path, String::new()).await?;
            let relay: RelayView = client.read(&text)?;
            let RelayView { name, state, members, comtrees, .. } = &relay;
            match state.as_str() {
                "draining" if *members == 0 && *comtrees == 0 => return Ok(text),
                // The controller has given it up, with all that it had.
                "gone" => return Ok(text),
                "draining" => {}
                state => bail!("relay {name} is {state}: it drains no more; drain it again"),
            }
            if Instant::now() >= deadline {
                bail!(
                    "relay {name} is not empty after {} s: it has {members} members, and {comtrees} \
                     comtrees lead over it; it drains on, so wait longer; members that do not move \
                     by themselves can be sent away with `canopy world kick`; see also \
                     `canopy world show --why`",
                    patience.as_secs()
                );
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

impl RemoveCommand {
    async fn run(self) -> anyhow::Result<()> {
        let path = format!("/v1/relays/{}", segment(&self.relay));
        let (what, keep) = (format!("relay {}", self.relay), format!("{path}/undrain"));
        // Another may register under the name once this one is gone.
        let RelayView { id, .. } = self.api.client()?.get(&path).await?;
        let look = async |client: &ApiClient| {
            let Relays { relays, .. } = client.get("/v1/relays").await?;
            Ok(relays.iter().find(|relay| relay.id == id).map(standing))
        };
        Target { what, path, keep }.remove(&self.api, &self.how, look).await
    }
}

impl AllowCommand {
    async fn run(self) -> anyhow::Result<()> {
        let path = format!("/v1/relays/{}/allow", segment(&self.relay));
        self.api.client()?.ask(Method::POST, &path, String::new()).await?;
        if self.api.json {
            return Ok(print_line(json!({}))?);
        }
        Ok(print_line(format!("relay {} may register again", self.relay))?)
    }
}

fn standing(relay: &RelayView) -> Standing {
    let RelayView { removing, members, comtrees, .. } = relay;
    let left = match relay.state.as_str() {
        "gone" => {
            "it does not answer, and goes once it is back, or has been away for a member's lease; \
                   --force removes it at once"
                .to_owned()
        }
        _ => format!("it has {members} members, and {comtrees} comtrees lead over it"),
    };
    Standing { removing: *removing, left }
}

/// The relays, and those that were removed.
fn listed(Relays { relays, removed }: &Relays) -> String {
    let mut text = table(relays);
    if !removed.is_empty() {
        let names: BTreeSet<&str> = removed.iter().map(|of| of.name.as_str()).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        text = format!(
            "{}\nremoved: {names}; `canopy relay allow NAME` lets one register again",
            text.trim_end()
        );
    }
    text
}

fn table(relays: &[RelayView]) -> String {
    if relays.is_empty() {
        return "no relays; start one with `canopy relay --controller ADDR`".to_owned();
    }
    let mut text = format!(
        "{:<16} {:>5} {:<9} {:<22} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10}\n",
        "relay",
        "site",
        "is",
        "address",
        "members",
        "comtrees",
        "taken",
        "places",
        "Mbit/s in",
        "Mbit/s out"
    );
    for relay in relays {
        let RelayView {
            name, id, state, address, members, comtrees, taken, places, uplink, ..
        } = relay;
        let state = if relay.removing { "removing" } else { state };
        let [into, out] = [uplink.up_bits, uplink.down_bits].map(|bits| bits as f64 / 1e6);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{name:<16} {id:>5} {state:<9} {address:<22} {members:>8} {comtrees:>8} {taken:>8} \
             {places:>8} {into:>10.3} {out:>10.3}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_api::RemovedView;

    #[test]
    fn every_relay_has_a_line() {
        let relay = RelayView {
            name: "eu-1".to_owned(),
            id: 3,
            key: String::new(),
            address: "203.0.113.7:4040".to_owned(),
            state: "draining".to_owned(),
            removing: false,
            uplink: canopy_api::Budget {
                up_bits: 1_500_000,
                up_packets: 1,
                down_bits: 9_000_000,
                down_packets: 1,
            },
            places: 100,
            taken: 7,
            members: 6,
            comtrees: 2,
        };
        let lost = RelayView { state: "gone".to_owned(), removing: true, ..relay.clone() };
        let [left, of_lost] = [&relay, &lost].map(|relay| standing(relay).left);
        assert!(left.starts_with("it has 6 members") && of_lost.contains("--force"), "{of_lost}");
        let going = table(&[RelayView { removing: true, ..relay.clone() }]);
        assert_eq!(going.lines().nth(1).unwrap().split_whitespace().nth(2), Some("removing"));
        let text = table(&[relay]);
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        let expected =
            ["eu-1", "3", "draining", "203.0.113.7:4040", "6", "2", "7", "100", "1.500", "9.000"];
        assert_eq!(line, expected);
        assert!(table(&[]).contains("canopy relay --controller"));
        let removed = [("us-1", 4), ("eu-2", 5), ("us-1", 6)].map(|(name, id)| RemovedView {
            name: name.to_owned(),
            id,
            key: String::new(),
        });
        let text = listed(&Relays { relays: Vec::new(), removed: removed.to_vec() });
        assert!(
            text.ends_with(
                "\nremoved: eu-2, us-1; `canopy relay allow NAME` lets one register again"
            )
        );
    }
}
