//! `canopy world`: the worlds of a running controller.

use super::client::{ApiArgs, ApiClient, run, segment};
use crate::output::print_line;
use anyhow::Context;
use axum::http::Method;
use canopy_api::{
    Budget, ChannelView, ComtreeView, CoreRule, MemberView, Members, Mode, NewWorld, Protection,
    WorldView, Worlds,
};
use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::process::ExitCode;

/// Worlds: shared spaces, which the controller places on relays.
#[derive(Args)]
#[command(after_help = "For example:\n  \
    canopy world create lobby --channel chat=0-4095\n                                  \
    a world with a channel of 4096 groups\n  \
    canopy world show lobby --why   its trees, and why they are so\n  \
    canopy world kick lobby 1.64    sends a member away\n\n\
    The controller is found by its folder (--controller-dir), or by --api and CANOPY_API_SECRET.")]
pub(crate) struct WorldCommand {
    #[command(subcommand)]
    deed: Deed,
}

#[derive(Subcommand)]
enum Deed {
    /// Create a world
    Create(Box<CreateCommand>),
    /// List the worlds
    List(ListCommand),
    /// Show a world, its trees and its members
    Show(ShowCommand),
    /// Send a member away
    Kick(KickCommand),
    /// Delete a world: nobody enters it any more, and its members are sent away
    Delete(DeleteCommand),
}

/// A world with its comtrees.
#[derive(Args)]
struct CreateCommand {
    /// The world's name: 1 to 64 of a-z, 0-9, '-', '_', '.' and '/'
    #[arg(value_name = "NAME")]
    name: String,
    /// How many comtrees it has, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1)]
    comtrees: u8,
    /// A channel, a named family of groups, such as chat=0-4095; can be given several times
    #[arg(long = "channel", value_name = "NAME=FIRST-LAST", value_parser = channel)]
    channels: Vec<ChannelView>,
    /// The highest level
    #[arg(long, value_name = "LEVEL", default_value_t = 0)]
    levels: u8,
    /// When updates leave: 'immediate', as they come, or 'periodic', together every tick
    #[arg(long, value_name = "MODE", default_value = "immediate", value_parser = word::<Mode>)]
    mode: Mode,
    /// Milliseconds between ticks in periodic mode, 1 to 1000
    #[arg(long, value_name = "MS")]
    tick_ms: Option<u16>,
    /// How updates to participants are protected: 'member', 'group' or 'none'
    #[arg(long, value_name = "HOW", default_value = "member", value_parser = word::<Protection>)]
    downlink: Protection,
    /// Which relays are its core: 'center', 'center-and-neighbours' or 'all'
    #[arg(long, value_name = "RULE", default_value = "center", value_parser = word::<CoreRule>)]
    core: CoreRule,
    /// Bits a second that a member may send that asks for nothing itself
    #[arg(long, value_name = "N", default_value_t = Budget::default().up_bits)]
    up_bits: u64,
    /// Packets a second that it may send
    #[arg(long, value_name = "N", default_value_t = Budget::default().up_packets)]
    up_packets: u64,
    /// Bits a second that it may receive
    #[arg(long, value_name = "N", default_value_t = Budget::default().down_bits)]
    down_bits: u64,
    /// Packets a second that it may receive
    #[arg(long, value_name = "N", default_value_t = Budget::default().down_packets)]
    down_packets: u64,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
struct ListCommand {
    #[command(flatten)]
    api: ApiArgs,
}

/// A world, its trees and its members.
#[derive(Args)]
struct ShowCommand {
    /// The world's name
    #[arg(value_name = "NAME")]
    name: String,
    /// Say of each comtree why it has its tree
    #[arg(long)]
    why: bool,
    /// List its members, at most a thousand
    #[arg(long)]
    members: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
struct KickCommand {
    /// The world's name
    #[arg(value_name = "NAME")]
    name: String,
    /// The member's address, such as 1.64
    #[arg(value_name = "ADDRESS")]
    address: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
struct DeleteCommand {
    /// The world's name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    api: ApiArgs,
}

impl WorldCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        run(async {
            match self.deed {
                Deed::Create(command) => command.run().await,
                Deed::List(command) => command.run().await,
                Deed::Show(command) => command.run().await,
                Deed::Kick(command) => {
                    let KickCommand { name, address, api } = command;
                    let (name, address) = (segment(&name), segment(&address));
                    let path = format!("/v1/worlds/{name}/members/{address}");
                    delete(&api, &path, "its relay is being told").await
                }
                Deed::Delete(command) => {
                    let path = path(&command.name);
                    delete(&command.api, &path, "it is gone when its members are").await
                }
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

impl CreateCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let new = NewWorld {
            name: self.name,
            comtrees: self.comtrees,
            channels: self.channels,
            levels: self.levels,
            mode: self.mode,
            tick_ms: self.tick_ms,
            downlink: self.downlink,
            budget: Budget {
                up_bits: self.up_bits,
                up_packets: self.up_packets,
                down_bits: self.down_bits,
                down_packets: self.down_packets,
            },
            core: self.core,
        };
        let body = serde_json::to_string(&new)?;
        let text = client.ask(Method::POST, "/v1/worlds", body).await?;
        print_world(&client, &text, self.api.json)
    }
}

impl ListCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let text = client.ask(Method::GET, "/v1/worlds", String::new()).await?;
        if self.api.json {
            return Ok(print_line(text)?);
        }
        let Worlds { worlds } = client.read(&text)?;
        Ok(print_line(table(&worlds).trim_end())?)
    }
}

impl ShowCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let text = client.ask(Method::GET, &path(&self.name), String::new()).await?;
        let members_path = format!("{}/members", path(&self.name));
        if self.api.json && !self.members {
            return Ok(print_line(text)?);
        }
        if self.api.json {
            let mut world: serde_json::Value = client.read(&text)?;
            world["listed"] = client.get(&members_path).await?;
            return Ok(print_line(world)?);
        }
        let world: WorldView = client.read(&text)?;
        let mut text = table(std::slice::from_ref(&world));
        channels(&mut text, &world.channels);
        world.comtrees.iter().for_each(|comtree| tree(&mut text, comtree, self.why));
        if self.members {
            let Members { members, more } = client.get(&members_path).await?;
            list(&mut text, &members, more);
        }
        Ok(print_line(text.trim_end())?)
    }
}

async fn delete(api: &ApiArgs, path: &str, done: &str) -> anyhow::Result<()> {
    api.client()?.ask(Method::DELETE, path, String::new()).await?;
    if api.json {
        return Ok(print_line(serde_json::json!({ "accepted": true }))?);
    }
    Ok(print_line(done)?)
}

fn print_world(client: &ApiClient, text: &str, json: bool) -> anyhow::Result<()> {
    if json {
        return Ok(print_line(text)?);
    }
    Ok(print_line(table(&[client.read(text)?]).trim_end())?)
}

fn path(world: &str) -> String {
    format!("/v1/worlds/{}", segment(world))
}

/// A word of the API, such as a mode.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let read = serde_json::from_value(serde_json::Value::from(text));
    read.map_err(|error| error.to_string())
}

/// A channel: `NAME=FIRST-LAST`.
fn channel(text: &str) -> Result<ChannelView, String> {
    let parsed = text.split_once('=').and_then(|(name, groups)| {
        let (first, last) = groups.split_once('-').unwrap_or((groups, groups));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        let groups = last.checked_sub(first)?.checked_add(1)?;
        Some(ChannelView { name: name.to_owned(), first, groups })
    });
    parsed
        .context("no channel")
        .map_err(|_| "write NAME=FIRST-LAST, such as chat=0-4095".to_owned())
}

/// The worlds, one a line. Writing to a String cannot fail.
fn table(worlds: &[WorldView]) -> String {
    if worlds.is_empty() {
        return "no worlds; create one with `canopy world create NAME`".to_owned();
    }
    let mut text = format!(
        "{:<24} {:<8} {:>8} {:>8} {:>7} {:<12} {:<9} {:>10} {:>12} {:<12}\n",
        "world",
        "is",
        "members",
        "comtrees",
        "relays",
        "mode",
        "downlink",
        "Mbit/s up",
        "Mbit/s down",
        "broken"
    );
    for world in worlds {
        let is = if world.closing { "closing" } else { "open" };
        let mode = world.tick_ms.map_or("immediate".to_owned(), |tick| format!("every {tick} ms"));
        let downlink = format!("{:?}", world.downlink).to_lowercase();
        let relays = world.comtrees.iter().map(|comtree| comtree.tree.len()).max().unwrap_or(0);
        let broken = world.comtrees.iter().filter(|comtree| comtree.broken.is_some()).count();
        let _ = writeln!(
            text,
            "{:<24} {is:<8} {:>8} {:>8} {relays:>7} {mode:<12} {downlink:<9} {:>10.3} {:>12.3} {:<12}",
            world.name,
            world.members,
            world.comtrees.len(),
            world.budget.up_bits as f64 / 1e6,
            world.budget.down_bits as f64 / 1e6,
            if broken == 0 { "-".to_owned() } else { format!("{broken} comtrees") }
        );
    }
    text
}

fn channels(text: &mut String, channels: &[ChannelView]) {
    for ChannelView { name, first, groups } in channels {
        let last = u64::from(*first) + u64::from(*groups) - 1;
        let _ = writeln!(text, "channel {name}: groups {first} to {last}");
    }
}

fn tree(text: &mut String, comtree: &ComtreeView, why: bool) {
    let _ = writeln!(text, "\n{:>10}  {:<16} {:<16} {:>6}", "comtree", "relay", "above", "link");
    let mut head = comtree.id.to_string();
    if comtree.tree.is_empty() {
        let _ = writeln!(text, "{head:>10}  - it has no members");
    }
    for hop in &comtree.tree {
        let above = hop.above.as_deref().unwrap_or("-");
        let link = hop.link.map_or("-".to_owned(), |link| link.to_string());
        let _ = writeln!(text, "{head:>10}  {:<16} {above:<16} {link:>6}", hop.relay);
        head.clear();
    }
    if why && !comtree.why.is_empty() {
        let _ = writeln!(text, "{:>10}  why: {}", "", comtree.why);
    }
    if let Some(broken) = &comtree.broken {
        let _ = writeln!(text, "{:>10}  broken: {broken}", "");
    }
}

fn list(text: &mut String, members: &[MemberView], more: bool) {
    let _ = writeln!(
        text,
        "\n{:<12} {:<16} {:<8} {:>10} {:>12}  {:<20}",
        "member", "relay", "is", "Mbit/s up", "Mbit/s down", "until"
    );
    for member in members {
        let [up, down] = [member.budget.up_bits, member.budget.down_bits].map(|b| b as f64 / 1e6);
        let MemberView { address, relay, state, until, .. } = member;
        let _ = writeln!(
            text,
            "{address:<12} {relay:<16} {state:<8} {up:>10.3} {down:>12.3}  {until:<20}"
        );
    }
    if more {
        text.push_str("there are more members; a thousand are listed at most\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> WorldView {
        let hop = |relay: &str, above: Option<&str>| canopy_api::HopView {
            relay: relay.to_owned(),
            above: above.map(str::to_owned),
            link: above.map(|_| 4),
        };
        WorldView {
            name: "lobby".to_owned(),
            id: 1,
            channels: vec![channel("chat=0-15").unwrap()],
            levels: 0,
            mode: Mode::Periodic,
            tick_ms: Some(50),
            downlink: Protection::Group,
            budget: Budget::default(),
            core: CoreRule::Center,
            closing: false,
            members: 3,
            comtrees: vec![ComtreeView {
                id: 16,
                tree: vec![hop("a", None), hop("b", Some("a"))],
                why: "it costs the least".to_owned(),
                broken: Some("no link leads to c".to_owned()),
            }],
        }
    }

    fn words(text: &str) -> Vec<Vec<&str>> {
        text.lines().map(|line| line.split_whitespace().collect()).collect()
    }

    #[test]
    fn a_world_has_a_line_and_each_relay_of_its_trees_has_one() {
        let world = world();
        let mut text = table(std::slice::from_ref(&world));
        channels(&mut text, &world.channels);
        tree(&mut text, &world.comtrees[0], true);
        for wanted in [
            "lobby open 3 1 2 every 50 ms group 0.256 4.000 1 comtrees",
            "channel chat: groups 0 to 15",
            "16 a - -",
            "b a 4",
            "why: it costs the least",
            "broken: no link leads to c",
        ] {
            let wanted: Vec<&str> = wanted.split(' ').collect();
            assert!(words(&text).contains(&wanted), "no {wanted:?} in\n{text}");
        }
        let mut text = String::new();
        tree(&mut text, &world.comtrees[0], false);
        assert!(!text.contains("why") && text.contains("broken"), "{text}");
        assert!(table(&[]).contains("canopy world create"));
    }

    #[test]
    fn what_is_no_channel_and_no_mode_says_what_to_write() {
        assert_eq!(channel("chat=7").unwrap().groups, 1);
        for wrong in ["chat", "chat=", "chat=9-8", "chat=0-4294967295", "chat=x"] {
            assert!(channel(wrong).unwrap_err().contains("chat=0-4095"), "{wrong}");
        }
        assert_eq!(word::<Mode>("periodic"), Ok(Mode::Periodic));
        assert!(word::<Mode>("sometimes").unwrap_err().contains("`immediate`"));
    }
}
