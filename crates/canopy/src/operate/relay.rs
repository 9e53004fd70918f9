//! `canopy relay list`, `canopy relay links` and `canopy relay drain`: the relays of a running controller.

use super::client::{ApiArgs, ApiClient, run, segment};
use crate::output::print_line;
use anyhow::bail;
use axum::http::Method;
use canopy_api::{LinkView, Links, RelayView, Relays};
use clap::{Args, Subcommand};
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
    Links(LinksCommand),
    /// Let a controller's relay take nobody new, or again
    Drain(DrainCommand),
}

/// The relays with their states, their places and their members.
#[derive(Args)]
pub(crate) struct ListCommand {
    #[command(flatten)]
    api: ApiArgs,
}

/// The links with what they bear and how long they take, whether they were given or proposed, and why.
#[derive(Args)]
pub(crate) struct LinksCommand {
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

impl RelayDeed {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            RelayDeed::List(command) => run(command.run())?,
            RelayDeed::Links(command) => run(command.run())?,
            RelayDeed::Drain(command) => run(command.run())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ListCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let text = client.ask(Method::GET, "/v1/relays", String::new()).await?;
        if self.api.json {
            return Ok(print_line(text)?);
        }
        let Relays { relays } = client.read(&text)?;
        Ok(print_line(table(&relays).trim_end())?)
    }
}

impl LinksCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let text = client.ask(Method::GET, "/v1/links", String::new()).await?;
        if self.api.json {
            return Ok(print_line(text)?);
        }
        let Links { links } = client.read(&text)?;
        Ok(print_line(link_table(&links).trim_end())?)
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

fn link_table(links: &[LinkView]) -> String {
    if links.is_empty() {
        return "no links; relays that register are joined unless `canopy controller --degree 0` is given"
            .to_owned();
    }
    let mut text = format!(
        "{:>5} {:<16} {:<16} {:<5} {:>8} {:>10} {:<8} {}\n",
        "link", "from", "to", "is", "ms", "Mbit/s", "by", "why"
    );
    for link in links {
        let LinkView { id, ends: [from, to], bits, delay_us, proposed, why, .. } = link;
        let is = match link {
            LinkView { removing: true, .. } => "going",
            LinkView { usable: true, .. } => "up",
            _ => "down",
        };
        let by = if *proposed { "proposed" } else { "given" };
        let (ms, megabits) = (f64::from(*delay_us) / 1e3, *bits as f64 / 1e6);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{id:>5} {from:<16} {to:<16} {is:<5} {ms:>8.1} {megabits:>10.3} {by:<8} {why}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_has_a_line_that_says_why() {
        let link = LinkView {
            id: 7,
            ends: ["eu-1".to_owned(), "eu-2".to_owned()],
            bits: 1_500_000,
            packets: 1,
            delay_us: 4_150,
            usable: true,
            removing: false,
            proposed: true,
            why: "the way round is long".to_owned(),
        };
        let going = link_table(&[LinkView { removing: true, ..link.clone() }]);
        assert_eq!(going.lines().nth(1).unwrap().split_whitespace().nth(3), Some("going"));
        let text = link_table(&[link]);
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line[..7], ["7", "eu-1", "eu-2", "up", "4.2", "1.500", "proposed"]);
        assert!(text.ends_with("the way round is long\n"));
        assert!(link_table(&[]).contains("--degree"));
    }

    #[test]
    fn every_relay_has_a_line() {
        let relay = RelayView {
            name: "eu-1".to_owned(),
            id: 3,
            key: String::new(),
            address: "203.0.113.7:4040".to_owned(),
            state: "draining".to_owned(),
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
        let text = table(&[relay]);
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        let expected =
            ["eu-1", "3", "draining", "203.0.113.7:4040", "6", "2", "7", "100", "1.500", "9.000"];
        assert_eq!(line, expected);
        assert!(table(&[]).contains("canopy relay --controller"));
    }
}
