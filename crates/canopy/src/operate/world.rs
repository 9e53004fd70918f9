//! `canopy world`: the worlds of a running controller.

use super::areas::AreasCommand;
use super::client::{ApiArgs, ApiClient, run, segment};
use super::tables::{channels, list, plans, sharing, table, tree};
use crate::output::print_line;
use crate::rate;
use anyhow::Context;
use axum::http::Method;
use canopy_api::{
    Budget, ChannelView, ComtreeBudget, CoreRule, Kicked, Members, Mode, MoveAsk, MovePlans,
    NewWorld, Protection, TreeMethod, WorldChange, WorldView, Worlds,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Worlds: shared spaces, which the controller places on relays.
#[derive(Args)]
#[command(after_help = "For example:\n  \
    canopy world create lobby --channel chat=0-4095\n                                     \
    a world with a channel of 4096 groups\n  \
    canopy world show lobby --why      its trees, and why they are so\n  \
    canopy world kick lobby 28672.64   sends a member away\n\n\
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
    /// Change a world; what is not given stays
    Set(Box<SetCommand>),
    /// Divide a world into areas of interest, and see them
    Areas(Box<AreasCommand>),
    /// Move a world to better trees, without loss
    Move(MoveCommand),
    /// Send a member away, and keep it out for a while
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
    /// The highest level that members publish at and subscribe to
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
    /// Which relays are its core: 'center', 'center-and-neighbours', 'all' or 'mesh'
    #[arg(long, value_name = "RULE", default_value = "center", value_parser = word::<CoreRule>)]
    core: CoreRule,
    /// Bits a second that a member may send that asks for nothing itself
    #[arg(long, value_name = "RATE", value_parser = rate::bits, default_value_t = Budget::default().up_bits)]
    up_bits: u64,
    /// Packets a second that it may send
    #[arg(long, value_name = "N", default_value_t = Budget::default().up_packets)]
    up_packets: u64,
    /// Bits a second that it may receive
    #[arg(long, value_name = "RATE", value_parser = rate::bits, default_value_t = Budget::default().down_bits)]
    down_bits: u64,
    /// Packets a second that it may receive
    #[arg(long, value_name = "N", default_value_t = Budget::default().down_packets)]
    down_packets: u64,
    #[command(flatten)]
    sharing: SharingArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// What of a world is to change.
#[derive(Args)]
struct SetCommand {
    /// The world's name
    #[arg(value_name = "NAME")]
    name: String,
    /// A channel, such as chat=0-4095; those that are given replace all that it has
    #[arg(long = "channel", value_name = "NAME=FIRST-LAST", value_parser = channel)]
    channels: Vec<ChannelView>,
    /// The highest level that members publish at and subscribe to
    #[arg(long, value_name = "LEVEL")]
    levels: Option<u8>,
    /// When updates leave: 'immediate' or 'periodic'; only while it has no members
    #[arg(long, value_name = "MODE", value_parser = word::<Mode>)]
    mode: Option<Mode>,
    /// Milliseconds between ticks in periodic mode, 1 to 1000
    #[arg(long, value_name = "MS")]
    tick_ms: Option<u16>,
    /// How updates are protected: 'member', 'group' or 'none'; only while it has no members
    #[arg(long, value_name = "HOW", value_parser = word::<Protection>)]
    downlink: Option<Protection>,
    /// Which relays are its core: 'center', 'center-and-neighbours', 'all' or 'mesh'
    #[arg(long, value_name = "RULE", value_parser = word::<CoreRule>)]
    core: Option<CoreRule>,
    /// Bits a second that a member may send that asks for nothing itself
    #[arg(long, value_name = "RATE", value_parser = rate::bits)]
    up_bits: Option<u64>,
    /// Packets a second that it may send
    #[arg(long, value_name = "N")]
    up_packets: Option<u64>,
    /// Bits a second that it may receive
    #[arg(long, value_name = "RATE", value_parser = rate::bits)]
    down_bits: Option<u64>,
    /// Packets a second that it may receive
    #[arg(long, value_name = "N")]
    down_packets: Option<u64>,
    #[command(flatten)]
    sharing: SharingArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// What members get who cannot be sent everything. It holds at once, also while members are in.
#[derive(Args)]
struct SharingArgs {
    /// Whoever is over its budget still gets an update so often of each publisher in its groups, 100 to
    /// 60000 milliseconds [default: 2000]
    #[arg(long, value_name = "MS")]
    floor_ms: Option<u32>,
    /// Whether, over a budget, updates of higher levels go beyond the floor only where none of a lower level waits
    /// [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    levels_first: Option<bool>,
    /// Bits a second that the members of a comtree may send together at a relay
    /// [default: 0, what the relay's settings say]
    #[arg(long, value_name = "RATE", value_parser = rate::bits)]
    comtree_up_bits: Option<u64>,
    /// Updates a second that they may send together
    #[arg(long, value_name = "N")]
    comtree_up_packets: Option<u64>,
    /// Bits a second that they may receive together
    #[arg(long, value_name = "RATE", value_parser = rate::bits)]
    comtree_down_bits: Option<u64>,
    /// Updates a second that they may receive together
    #[arg(long, value_name = "N")]
    comtree_down_packets: Option<u64>,
}

impl SharingArgs {
    /// The budget that is meant, if one of its numbers is given: the others stay.
    fn budget(&self, before: ComtreeBudget) -> Option<ComtreeBudget> {
        let SharingArgs { comtree_up_bits: up_bits, comtree_up_packets: up_packets, .. } = self;
        let SharingArgs { comtree_down_bits: down_bits, comtree_down_packets, .. } = self;
        let given = [up_bits, up_packets, down_bits, comtree_down_packets];
        given.iter().any(|number| number.is_some()).then(|| ComtreeBudget {
            up_bits: up_bits.unwrap_or(before.up_bits),
            up_packets: up_packets.unwrap_or(before.up_packets),
            down_bits: down_bits.unwrap_or(before.down_bits),
            down_packets: comtree_down_packets.unwrap_or(before.down_packets),
        })
    }
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

/// A world whose trees are to be better. `show --why` says what becomes of it.
#[derive(Args)]
struct MoveCommand {
    /// The world's name
    #[arg(value_name = "NAME")]
    name: String,
    /// The relay that is to be the root of its trees; without it, the best is found
    #[arg(long, value_name = "RELAY")]
    root: Option<String>,
    /// How its trees are chosen: 'spt', shortest paths; 'mst', a minimum spanning tree; 'stretch', one
    /// whose ways are not too long; 'hybrid', between both; 'best', the least costly [default: best]
    #[arg(long, value_name = "METHOD", value_parser = word::<TreeMethod>)]
    method: Option<TreeMethod>,
    /// For the method stretch: how far a relay may be from the root, in lengths of the direct way,
    /// 1 to 100 [default: 1.2]
    #[arg(long, value_name = "TIMES")]
    stretch: Option<f64>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
struct KickCommand {
    /// The world's name
    #[arg(value_name = "NAME")]
    name: String,
    /// The member's address, such as 28672.64, or what its credential or its backend calls it: then all that are
    /// called so
    #[arg(value_name = "MEMBER")]
    member: String,
    /// For so many seconds it may not come back
    #[arg(long, value_name = "N", default_value_t = 60)]
    bar_s: u64,
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
        run(self.deed.api().json, async {
            match self.deed {
                Deed::Create(command) => command.run().await,
                Deed::List(command) => command.run().await,
                Deed::Show(command) => command.run().await,
                Deed::Set(command) => command.run().await,
                Deed::Areas(command) => command.run().await,
                Deed::Move(command) => command.run().await,
                Deed::Kick(command) => command.run().await,
                Deed::Delete(command) => {
                    let path = path(&command.name);
                    delete(&command.api, &path, "it is gone when its members are").await
                }
            }
        })
    }
}

impl Deed {
    fn api(&self) -> &ApiArgs {
        match self {
            Deed::Create(command) => &command.api,
            Deed::List(command) => &command.api,
            Deed::Show(command) => &command.api,
            Deed::Set(command) => &command.api,
            Deed::Areas(command) => command.api(),
            Deed::Move(command) => &command.api,
            Deed::Kick(command) => &command.api,
            Deed::Delete(command) => &command.api,
        }
    }
}

impl KickCommand {
    async fn run(self) -> anyhow::Result<()> {
        let (members, member) = (format!("{}/members", path(&self.name)), segment(&self.member));
        let bar_s = self.bar_s;
        if canopy_api::address("member", &self.member).is_ok() {
            let path = format!("{members}/{member}?bar_s={bar_s}");
            return delete(&self.api, &path, "its relay is being told").await;
        }
        let client = self.api.client()?;
        let path = format!("{members}?subject={member}&bar_s={bar_s}");
        let text = client.ask(Method::DELETE, &path, String::new()).await?;
        if self.api.json {
            return Ok(print_line(text)?);
        }
        let Kicked { kicked } = client.read(&text)?;
        Ok(print_line(format!("{kicked} sent away; their relays are being told"))?)
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
            floor_ms: self.sharing.floor_ms,
            levels_first: self.sharing.levels_first.unwrap_or(false),
            comtree_budget: self.sharing.budget(ComtreeBudget::default()).unwrap_or_default(),
        };
        let body = serde_json::to_string(&new)?;
        let text = client.ask(Method::POST, "/v1/worlds", body).await?;
        print_world(&client, &text, self.api.json)
    }
}

impl SetCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let path = path(&self.name);
        // Those of the four numbers of a budget that are not given stay.
        let before = client.get::<WorldView>(&path).await?;
        let given = [self.up_bits, self.up_packets, self.down_bits, self.down_packets];
        let budget = given.iter().any(Option::is_some).then(|| Budget {
            up_bits: self.up_bits.unwrap_or(before.budget.up_bits),
            up_packets: self.up_packets.unwrap_or(before.budget.up_packets),
            down_bits: self.down_bits.unwrap_or(before.budget.down_bits),
            down_packets: self.down_packets.unwrap_or(before.budget.down_packets),
        });
        let change = WorldChange {
            channels: Some(self.channels).filter(|channels| !channels.is_empty()),
            levels: self.levels,
            mode: self.mode,
            tick_ms: self.tick_ms,
            downlink: self.downlink,
            budget,
            core: self.core,
            floor_ms: self.sharing.floor_ms,
            levels_first: self.sharing.levels_first,
            comtree_budget: self.sharing.budget(before.comtree_budget),
        };
        let body = serde_json::to_string(&change)?;
        let text = client.ask(Method::PATCH, &path, body).await?;
        print_world(&client, &text, self.api.json)
    }
}

impl MoveCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let ask = MoveAsk { root: self.root, method: self.method, stretch: self.stretch };
        let path = format!("{}/move{}", path(&self.name), query(&ask)?);
        if !self.dry_run {
            let text = client.ask(Method::POST, &path, String::new()).await?;
            return print_world(&client, &text, self.api.json);
        }
        let text = client.ask(Method::GET, &path, String::new()).await?;
        if self.api.json {
            return Ok(print_line(text)?);
        }
        let MovePlans { comtrees } = client.read(&text)?;
        Ok(print_line(plans(&comtrees).trim_end())?)
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
        sharing(&mut text, &world);
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

/// What is asked, as the query of a URL.
fn query(ask: &impl Serialize) -> anyhow::Result<String> {
    let fields: BTreeMap<String, serde_json::Value> =
        serde_json::from_value(serde_json::to_value(ask)?)?;
    let pair = |(key, value): (&String, &serde_json::Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{key}={}", segment(&value))
    };
    let pairs: Vec<String> = fields.iter().map(pair).collect();
    Ok(if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) })
}

/// A word of the API, such as a mode.
pub(crate) fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        world: WorldCommand,
    }

    #[test]
    fn a_name_behind_levels_first_is_the_worlds() {
        for (given, expected) in [("--levels-first", true), ("--levels-first=false", false)] {
            let line = <Line as clap::Parser>::try_parse_from(["world", "create", given, "lobby"]);
            let Ok(Line { world: WorldCommand { deed: Deed::Create(create) } }) = line else {
                panic!("{given} does not take the name")
            };
            assert_eq!((&*create.name, create.sharing.levels_first), ("lobby", Some(expected)));
        }
    }

    #[test]
    fn what_is_asked_becomes_a_query() {
        let ask = |root: Option<&str>, method, stretch| {
            let root = root.map(str::to_owned);
            query(&MoveAsk { root, method, stretch }).unwrap()
        };
        assert_eq!(ask(None, None, None), "");
        let all = ask(Some("eu/1"), Some(TreeMethod::Stretch), Some(1.5));
        assert_eq!(all, "?method=stretch&root=eu%2F1&stretch=1.5");
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
