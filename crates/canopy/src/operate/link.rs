//! `canopy link`: the links between the relays of a running controller.

use super::client::{ApiArgs, ApiClient, run};
use super::removal::{RemovalArgs, Standing, Target};
use crate::output::print_line;
use crate::rate;
use axum::http::Method;
use canopy_api::{LinkView, Links, NewLink};
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

/// Links: what joins the relays of a controller.
#[derive(Args)]
#[command(after_help = "For example:\n  \
    canopy link list                                    which there are, and why\n  \
    canopy link add eu-1 us-1 --bits 1000000000         joins two relays\n  \
    canopy link remove 7 --wait 600                     worlds move off it, and it goes\n\n\
    The controller is found by its folder (--controller-dir), or by --api and CANOPY_API_SECRET.")]
pub(crate) struct LinkCommand {
    #[command(subcommand)]
    deed: Deed,
}

#[derive(Subcommand)]
enum Deed {
    /// List the links: whose choice each is, and why
    List(ListCommand),
    /// Join two relays by a link, which stays until it is removed
    Add(AddCommand),
    /// Take a link away for good, without loss
    Remove(RemoveCommand),
}

/// The links with what they bear and how long they take, whether they were given or proposed, and why.
#[derive(Args)]
pub(crate) struct ListCommand {
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
struct AddCommand {
    /// The relay that calls the other
    #[arg(value_name = "FROM")]
    from: String,
    /// The other relay
    #[arg(value_name = "TO")]
    to: String,
    /// Bits a second that can be sent over it, each way
    #[arg(long, value_name = "RATE", value_parser = rate::bits)]
    bits: u64,
    /// Packets a second that can be sent over it, each way [default: one for each thousand bits]
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    /// Microseconds that it takes one way, until its ends have measured it
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    delay_us: u32,
    #[command(flatten)]
    api: ApiArgs,
}

/// Worlds that run over the link move to other trees first, and it goes once none is left.
#[derive(Args)]
struct RemoveCommand {
    /// The link's number
    #[arg(value_name = "NUMBER")]
    link: u32,
    #[command(flatten)]
    how: RemovalArgs,
    #[command(flatten)]
    api: ApiArgs,
}

impl LinkCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.deed {
            Deed::List(command) => command.list(),
            Deed::Add(command) => run(command.api.json, command.run()),
            Deed::Remove(command) => run(command.api.json, command.run()),
        }
    }
}

impl ListCommand {
    pub(super) fn list(self) -> anyhow::Result<ExitCode> {
        run(self.api.json, self.run())
    }

    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let text = client.ask(Method::GET, "/v1/links", String::new()).await?;
        if self.api.json {
            return Ok(print_line(text)?);
        }
        let Links { links } = client.read(&text)?;
        Ok(print_line(table(&links).trim_end())?)
    }
}

impl AddCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let AddCommand { from, to, bits, packets, delay_us, .. } = self;
        let packets = packets.unwrap_or((bits / 1_000).max(1));
        let new = NewLink { ends: [from, to], bits, packets, delay_us };
        let body = serde_json::to_string(&new)?;
        let text = client.ask(Method::POST, "/v1/links", body).await?;
        if self.api.json {
            return Ok(print_line(text)?);
        }
        Ok(print_line(table(&[client.read(&text)?]).trim_end())?)
    }
}

impl RemoveCommand {
    async fn run(self) -> anyhow::Result<()> {
        let path = format!("/v1/links/{}", self.link);
        let (what, keep) = (format!("link {}", self.link), format!("{path}/keep"));
        let look = async |client: &ApiClient| {
            let Links { links } = client.get("/v1/links").await?;
            let link = links.into_iter().find(|link| link.id == self.link);
            Ok(link.map(|LinkView { removing, why, .. }| Standing { removing, left: why }))
        };
        Target { what, path, keep }.remove(&self.api, &self.how, look).await
    }
}

fn table(links: &[LinkView]) -> String {
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
        let going = table(&[LinkView { removing: true, ..link.clone() }]);
        assert_eq!(going.lines().nth(1).unwrap().split_whitespace().nth(3), Some("going"));
        let text = table(&[link]);
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line[..7], ["7", "eu-1", "eu-2", "up", "4.2", "1.500", "proposed"]);
        assert!(text.ends_with("the way round is long\n"));
        assert!(table(&[]).contains("--degree"));
    }
}
