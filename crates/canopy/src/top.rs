//! `canopy top`: who sends a running relay the most, and whom it thins most.

use crate::output::print_line;
use crate::page::ask;
use anyhow::Context;
use canopy_node::{TalkerReport, ThinnedDrops, ThinnedReport};
use clap::Args;
use serde::Deserialize;
use std::fmt::Write;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

/// A relay looks once a second.
const EVERY: Duration = Duration::from_secs(1);
/// More than ten talkers or twenty thinned receivers can be long.
const MAX_ANSWER: usize = 64 << 10;
/// To the upper left corner of the terminal, and everything gone.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The participants that send a relay the most, the heaviest first: bits and updates a second that
/// arrived from them, and what of it was dropped because they were over a limit. With --thinned, the
/// receivers that are thinned most: of whose updates the largest part is left out because of their budgets. It is
/// drawn anew every second, until Ctrl-C.
#[derive(Args)]
pub(crate) struct TopCommand {
    /// Where the relay serves its metrics or its console (its settings 'metrics' and 'console')
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    address: String,
    /// Show the receivers that are thinned most, and what each is sent and not sent
    #[arg(long)]
    thinned: bool,
    /// Print it once
    #[arg(long)]
    once: bool,
    /// Print a line of JSON each time
    #[arg(long)]
    json: bool,
}

/// What a relay serves as `/talkers`.
#[derive(Deserialize)]
struct Talkers {
    talkers: Vec<TalkerReport>,
}

/// What a relay serves as `/thinned`.
#[derive(Deserialize)]
struct Thinned {
    thinned: Vec<ThinnedReport>,
}

impl TopCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.watch())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn watch(&self) -> anyhow::Result<()> {
        let is_screen = stdout().is_terminal() && !self.once && !self.json;
        let page = if self.thinned { "thinned" } else { "talkers" };
        loop {
            let text = ask(&self.address, page, MAX_ANSWER).await?;
            if self.json {
                print_line(text.trim())?;
            } else {
                let table = self
                    .table(&text)
                    .with_context(|| format!("what {} answers is no relay's", self.address))?;
                let clear = if is_screen { CLEAR } else { "" };
                print_line(format_args!("{clear}{}", table.trim_end()))?;
            }
            if self.once {
                return Ok(());
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn table(&self, text: &str) -> serde_json::Result<String> {
        Ok(if self.thinned {
            table_of_thinned(&serde_json::from_str::<Thinned>(text)?.thinned)
        } else {
            table_of_talkers(&serde_json::from_str::<Talkers>(text)?.talkers)
        })
    }
}

/// The talkers, one a line.
fn table_of_talkers(talkers: &[TalkerReport]) -> String {
    let mut text = format!(
        "{:>10}  {:<12} {:<22} {:>10} {:>11} {:>11}\n",
        "comtree", "address", "from", "Mbit/s", "updates/s", "dropped/s"
    );
    for talker in talkers {
        let TalkerReport { comtree, address, from, bits, updates, dropped } = talker;
        let (from, megabits) = (from.to_string(), *bits as f64 / 1e6);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{comtree:>10}  {address:<12} {from:<22} {megabits:>10.3} {updates:>11} {dropped:>11}"
        );
    }
    if talkers.is_empty() {
        text.push_str("nobody sends anything\n");
    }
    text
}

/// The receivers that are thinned most, one a line.
fn table_of_thinned(thinned: &[ThinnedReport]) -> String {
    let mut text = format!(
        "{:>10}  {:<12} {:<22} {:>16} {:<8} {:>8} {:>9} {:>5}  {}\n",
        "comtree", "address", "at", "budget", "by", "demand/s", "sent/s", "sent", "dropped/s"
    );
    for receiver in thinned {
        let ThinnedReport { comtree, address, at, because, demand, delivered, .. } = receiver;
        let (at, budget) = (at.to_string(), budget(receiver));
        let percent = format!("{} %", 100 * delivered / demand.max(&1));
        let dropped = drops(&receiver.dropped);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{comtree:>10}  {address:<12} {at:<22} {budget:>16} {because:<8} {demand:>8} {delivered:>9} {percent:>5}  {dropped}"
        );
    }
    if thinned.is_empty() {
        text.push_str("nobody is thinned\n");
    }
    text
}

/// What a receiver may be sent, whichever of both numbers limits it.
fn budget(receiver: &ThinnedReport) -> String {
    let bits = (receiver.budget_bits > 0)
        .then(|| format!("{:.0} kbit/s", receiver.budget_bits as f64 / 1e3));
    let updates = (receiver.budget_updates > 0).then(|| format!("{}/s", receiver.budget_updates));
    let both: Vec<String> = bits.into_iter().chain(updates).collect();
    if both.is_empty() { "-".to_owned() } else { both.join(", ") }
}

/// Those classes and reasons of which there is any.
fn drops(dropped: &ThinnedDrops) -> String {
    let ThinnedDrops { thinned, urgent_thinned, waited_too_long, urgent_waited_too_long } =
        *dropped;
    let kinds = [
        (thinned, "thinned"),
        (urgent_thinned, "urgent thinned"),
        (waited_too_long, "waited too long"),
        (urgent_waited_too_long, "urgent waited too long"),
    ];
    let some = kinds.iter().filter(|(count, _)| *count > 0);
    some.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_talker_has_a_line() {
        let talker = |dropped| TalkerReport {
            comtree: 7,
            address: "1.66".to_owned(),
            from: "203.0.113.7:4000".parse().unwrap(),
            bits: 12_345_678,
            updates: 104_000,
            dropped,
        };
        let text = table_of_talkers(&[talker(54_000), talker(0)]);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1], ["7", "1.66", "203.0.113.7:4000", "12.346", "104000", "54000"]);
        assert!(table_of_talkers(&[]).contains("nobody"));
    }

    #[test]
    fn every_thinned_receiver_has_a_line_with_all_that_it_lacks() {
        let of = |budget_bits, budget_updates, urgent_thinned| ThinnedReport {
            comtree: 7,
            address: "1.66".to_owned(),
            at: "203.0.113.7:4000".parse().unwrap(),
            budget_bits,
            budget_updates,
            because: "path".to_owned(),
            demand: 400,
            delivered: 100,
            dropped: ThinnedDrops {
                thinned: 300 - urgent_thinned,
                urgent_thinned,
                waited_too_long: 0,
                urgent_waited_too_long: 0,
            },
        };
        let text = table_of_thinned(&[of(64_000, 0, 12), of(64_000, 100, 0), of(0, 0, 0)]);
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let line = |budget: &str, dropped: &str| {
            format!("7 1.66 203.0.113.7:4000 {budget} path 400 100 25 % {dropped}")
        };
        assert_eq!(lines[1], line("64 kbit/s", "288 thinned, 12 urgent thinned"));
        assert_eq!(lines[2], line("64 kbit/s, 100/s", "300 thinned"));
        assert_eq!(lines[3], line("-", "300 thinned"));
        assert!(table_of_thinned(&[]).contains("nobody"));
    }
}
