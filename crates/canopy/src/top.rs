//! `canopy top`: who sends a running relay the most.

use crate::output::print_line;
use crate::page::ask;
use anyhow::Context;
use canopy_node::TalkerReport;
use clap::Args;
use serde::Deserialize;
use std::fmt::Write;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

/// A relay looks once a second.
const EVERY: Duration = Duration::from_secs(1);
/// More than ten talkers can be long.
const MAX_ANSWER: usize = 64 << 10;
/// To the upper left corner of the terminal, and everything gone.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The participants that send a relay the most, the heaviest first: bits and updates a second that
/// arrived from them, and what of it was dropped because they were over a limit. It is drawn anew every
/// second, until Ctrl-C.
#[derive(Args)]
pub(crate) struct TopCommand {
    /// Where the relay serves its metrics or its console (its settings 'metrics' and 'console')
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    address: String,
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

impl TopCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.watch())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn watch(&self) -> anyhow::Result<()> {
        let is_screen = stdout().is_terminal() && !self.once && !self.json;
        loop {
            let text = ask(&self.address, "talkers", MAX_ANSWER).await?;
            if self.json {
                print_line(text.trim())?;
            } else {
                let Talkers { talkers } = serde_json::from_str(&text)
                    .with_context(|| format!("what {} answers is no relay's", self.address))?;
                let clear = if is_screen { CLEAR } else { "" };
                print_line(format_args!("{clear}{}", table(&talkers).trim_end()))?;
            }
            if self.once {
                return Ok(());
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// The talkers, one a line.
fn table(talkers: &[TalkerReport]) -> String {
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
        let text = table(&[talker(54_000), talker(0)]);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1], ["7", "1.66", "203.0.113.7:4000", "12.346", "104000", "54000"]);
        assert!(table(&[]).contains("nobody"));
    }
}
