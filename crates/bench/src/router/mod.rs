//! `canopy bench router`: what passes through a relay from link to links, against bare reflectors.

mod arrivals;
mod cases;
mod load;
mod neighbour;
mod reflector;
mod report;
mod rounds;
mod server;
mod traffic;

use crate::Processors;
use crate::left_out::LeftOut;
use crate::relay::Hosts;
use anyhow::bail;
use canopy_output::{print_line, print_note};
use cases::Filters;
use clap::Args;
use report::Row;
use rounds::Plan;
pub(crate) use server::RouterSide;
use std::process::ExitCode;
use std::time::Duration;
use traffic::MOST_ROUTES;

/// Measures the processor time for a copy of what passes through a relay from link to links, in
/// alternated rounds with two reflectors: one receives and sends batches and does nothing else, the
/// other also opens and seals each datagram. To one neighbour updates go by learned routes, to four as
/// subscribers. The relay runs on one processor, its neighbours on another; between two network
/// namespaces where it may make them, which needs root, and else over loopback. Every copy is counted
/// where it arrives. Rounds with more than 5 % steal, and those in which the load had no time to keep its
/// links alive, are discarded.
#[derive(Args)]
pub(crate) struct RouterBench {
    #[command(flatten)]
    filters: Filters,
    /// Rounds of router and reflectors in turn
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Seconds measured of each in each round
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Routes that the router has learned
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(20..=i64::from(MOST_ROUTES)))]
    routes: u32,
    /// Datagrams a second where they come singly
    #[arg(long, value_name = "N", default_value_t = 5_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Over loopback, although network namespaces could be made
    #[arg(long)]
    loopback: bool,
    /// Two short rounds with 1,000 routes: shows that the bench works, not what things cost
    #[arg(long)]
    quick: bool,
    /// Print the rows as JSON, one a line
    #[arg(long)]
    json: bool,
}

impl RouterBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (rounds, seconds) = if self.quick { (2, 0.1) } else { (self.rounds, self.seconds) };
        if !(0.05..=600.0).contains(&seconds) {
            bail!("--seconds {seconds} is out of range; choose 0.05 to 600");
        }
        let cases = self.filters.cases();
        if cases.is_empty() {
            bail!(
                "no case passes these filters; there are 150 and 290 bytes, to 1 and 4 neighbours"
            );
        }
        let Processors { load_on, relay_on } = Processors::take()?;
        let hosts = self.hosts(load_on)?;
        let measured = Duration::from_secs_f64(seconds);
        let routes = if self.quick { self.routes.min(1_000) } else { self.routes };
        let (rate, serve_on) = (self.rate, relay_on[0]);
        let plan = Plan { rounds, measured, routes, rate, serve_on, hosts };
        let mut rows = Vec::new();
        for (number, case) in (1..).zip(&cases) {
            print_note(format_args!("[{number}/{}] {case}", cases.len()));
            let row = plan.hosts.run(|| rounds::measure(case, &plan))??;
            if self.json {
                print_line(serde_json::to_string(&row)?)?;
            } else {
                print_note(format_args!("        {}", row.short()));
            }
            rows.push(row);
        }
        if !self.json {
            print_line(Row::table(&rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Two hosts, if they can be had.
    fn hosts(&self, load_on: usize) -> anyhow::Result<Hosts> {
        if self.loopback {
            return Ok(Hosts::loopback());
        }
        Hosts::virtual_ethernet(load_on).or_else(|error| {
            let why = format!("{error:#}; it is measured over loopback");
            LeftOut { left_out: "netns", case: "all".to_owned(), why }.tell(self.json)?;
            Ok(Hosts::loopback())
        })
    }
}
