//! `canopy net`: what a running relay says of the overlay.

use super::report::{BranchReport, ComtreeReport, GroupReport, LinkReport, NetReport, RouteReport};
use super::states::RelayReport;
use crate::output::print_line;
use crate::page::ask;
use anyhow::Context;
use canopy_node::MAX_LISTED;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::process::ExitCode;

/// The longest answer in bytes: of a thousand comtrees with a branch over each of 256 links.
const MAX_ANSWER: usize = 64 << 20;

/// A relay's links to its neighbours, and what it knows of the overlay.
#[derive(Args)]
pub(crate) struct NetCommand {
    #[command(subcommand)]
    command: NetSubcommand,
}

#[derive(Subcommand)]
enum NetSubcommand {
    /// Print a running relay's links, comtrees, routes and groups, and all relays that it knows of
    Show(ShowCommand),
}

/// A running relay's links with their measures, its comtrees with their branches, and the routes and
/// groups that it knows; and the relays that say of their links how they stand, with or without a controller. Of each at
/// most a thousand.
#[derive(Args)]
struct ShowCommand {
    /// Where the relay serves its metrics or its console (its settings 'metrics' and 'console')
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    address: String,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

impl NetCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let NetSubcommand::Show(command) = self.command;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(command.show())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl ShowCommand {
    async fn show(&self) -> anyhow::Result<()> {
        if self.json {
            let text = ask(&self.address, "net", MAX_ANSWER).await?;
            return Ok(print_line(text.trim())?);
        }
        let report = report_of(&self.address).await?;
        Ok(print_line(tables(&report).trim_end())?)
    }
}

/// How the overlay stands at the relay that serves its metrics or its console at `address`.
///
/// # Errors
/// If no relay answers there, or otherwise than with its overlay.
pub(crate) async fn report_of(address: &str) -> anyhow::Result<NetReport> {
    let text = ask(address, "net", MAX_ANSWER).await?;
    serde_json::from_str(&text).with_context(|| format!("what {address} answers is no relay's"))
}

/// All tables, one below the other. Writing to a String cannot fail.
fn tables(report: &NetReport) -> String {
    let mut text = String::new();
    links(&mut text, &report.links);
    comtrees(&mut text, &report.comtrees);
    routes(&mut text, &report.routes, report.routes_cut);
    groups(&mut text, &report.groups, report.groups_cut);
    relays(&mut text, &report.relays, report.relays_cut);
    text
}

fn links(text: &mut String, links: &[LinkReport]) {
    if links.is_empty() {
        text.push_str("no links to other relays\n");
        return;
    }
    let _ = writeln!(
        text,
        "{:<16} {:<5} {:<22} {:>13} {:>8} {:>8} {:>9} {:>10} {:>6}",
        "link",
        "is",
        "remote",
        "round trip ms",
        "lost in",
        "lost out",
        "Mbit/s in",
        "Mbit/s out",
        "ups"
    );
    for link in links {
        let is = if link.up { "up" } else { "down" };
        let trip = link.round_trip_ms.map_or("-".to_owned(), |trip| format!("{trip:.2}"));
        let percent = |share: f32| format!("{:.1}%", share * 100.0);
        let _ = writeln!(
            text,
            "{:<16} {is:<5} {:<22} {trip:>13} {:>8} {:>8} {:>9.3} {:>10.3} {:>6}",
            link.name,
            link.remote.to_string(),
            percent(link.loss_in),
            percent(link.loss_out),
            link.bits_in as f64 / 1e6,
            link.bits_out as f64 / 1e6,
            link.ups
        );
    }
}

fn comtrees(text: &mut String, comtrees: &[ComtreeReport]) {
    let _ = writeln!(
        text,
        "\n{:>10} {:>6} {:<5} {:>13}  {:<16} {:<10} {:>6} {:<5} {:>10} {:>10} {:>7} {:>10} {:>8}",
        "comtree",
        "site",
        "core",
        "participants",
        "branch over",
        "neighbour",
        "site",
        "is",
        "subscribed",
        "subscribes",
        "unacked",
        "Mbit/s out",
        "allowed"
    );
    for comtree in comtrees {
        let ComtreeReport { id, site, core, participants, branches } = comtree;
        let site = site.map_or("-".to_owned(), |site| site.to_string());
        let core = if *core { "yes" } else { "no" };
        let mut head = format!("{id:>10} {site:>6} {core:<5} {participants:>13}");
        if branches.is_empty() {
            let _ = writeln!(text, "{head}  -");
        }
        for branch in branches {
            let BranchReport { link, role, site, subscribed, subscribes, unacknowledged, .. } =
                branch;
            let is = if branch.up { "up" } else { "down" };
            let out = branch.bits_out as f64 / 1e6;
            let allowed = match branch.bits_allowed {
                0 => "all".to_owned(),
                bits => format!("{:.3}", bits as f64 / 1e6),
            };
            let _ = writeln!(
                text,
                "{head:37}  {link:<16} {role:<10} {site:>6} {is:<5} {subscribed:>10} {subscribes:>10} \
                 {unacknowledged:>7} {out:>10.3} {allowed:>8}"
            );
            head.clear();
        }
    }
}

fn routes(text: &mut String, routes: &[RouteReport], are_cut: bool) {
    if routes.is_empty() {
        text.push_str("\nno routes learned\n");
        return;
    }
    let _ = writeln!(text, "\n{:>10} {:<12} {:<21} {:>11}", "comtree", "to", "by", "heard ms ago");
    for RouteReport { comtree, to, link, thread, heard_ms } in routes {
        let by = match (link, thread) {
            (Some(link), _) => link.clone(),
            (None, Some(thread)) => format!("data thread {thread}"),
            (None, None) => "-".to_owned(),
        };
        let heard = heard_ms.map_or("-".to_owned(), |heard| heard.to_string());
        let _ = writeln!(text, "{comtree:>10} {to:<12} {by:<21} {heard:>11}");
    }
    say_cut(text, "routes", are_cut);
}

fn groups(text: &mut String, groups: &[GroupReport], are_cut: bool) {
    if groups.is_empty() {
        text.push_str("\nno groups with subscribers\n");
        return;
    }
    let _ = writeln!(
        text,
        "\n{:>10} {:>10} {:>13} {:>8} {:>13}",
        "comtree", "group", "participants", "branches", "highest level"
    );
    for GroupReport { comtree, group, participants, branches, level } in groups {
        let _ = writeln!(
            text,
            "{comtree:>10} {group:>10} {participants:>13} {branches:>8} {level:>13}"
        );
    }
    say_cut(text, "groups", are_cut);
}

fn relays(text: &mut String, relays: &[RelayReport], are_cut: bool) {
    if relays.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<16} {:<11} {:>9} {:>11} {:>11}  links that are up lead to",
        "relay", "is", "links off", "free Mbit/s", "said s ago"
    );
    for relay in relays {
        let RelayReport { name, distance, reachable, age_s, free_bits, neighbours, .. } = relay;
        let is = if *reachable { "reachable" } else { "cut off" };
        let (free, neighbours) = (*free_bits as f64 / 1e6, neighbours.join(", "));
        let _ = writeln!(
            text,
            "{name:<16} {is:<11} {distance:>9} {free:>11.3} {age_s:>11}  {neighbours}"
        );
    }
    say_cut(text, "relays", are_cut);
}

fn say_cut(text: &mut String, what: &str, are_cut: bool) {
    if are_cut {
        let _ = writeln!(text, "there are more {what}; {MAX_LISTED} are listed at most");
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;

    #[test]
    fn every_part_has_its_lines_and_a_cut_list_says_so() {
        let relay = serde_json::json!({
            "name": "eu-2", "key": "", "distance": 1, "reachable": true, "age_s": 4,
            "free_bits": 900_000, "neighbours": ["eu-1", "eu-3"], "links": []
        });
        let relays = vec![serde_json::from_value(relay).unwrap()];
        let report = NetReport { relays, ..example() };
        let text = tables(&report);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        for wanted in [
            "b up 10.0.0.2:4040 1.23 25.0% 0.0% 2.000 0.002 2",
            "1 1 no 7 b parent 2 up 0 3 1 0.001 all",
            "4 9 yes 0 -",
            "1 1.70 data thread 1 -",
            "1 2.* b 40",
            "1 9 5 1 2",
            "there are more groups; 1000 are listed at most",
            "eu-2 reachable 1 0.900 4 eu-1, eu-3",
        ] {
            let wanted: Vec<&str> = wanted.split(' ').collect();
            assert!(lines.contains(&wanted), "no {wanted:?} in\n{text}");
        }
        assert!(!text.contains("more routes"), "{text}");
    }

    #[test]
    fn a_relay_alone_says_so() {
        let text = tables(&NetReport::default());
        for words in ["no links", "no routes", "no groups"] {
            assert!(text.contains(words), "{text}");
        }
    }
}
