//! `canopy bench groupcast`: one payload to many receivers, with every send engine in turn.

mod bed;
mod cases;
mod count;
mod plots;
mod report;
mod rounds;

use crate::left_out::LeftOut;
use crate::{Switch, flag_value};
use anyhow::{Context, bail, ensure};
use bed::Bed;
use canopy_engines::Namespace;
use canopy_output::{print_line, print_note};
use cases::{Case, Filters};
use clap::Args;
use report::{FitLine, Row, Summary};
use rounds::Plan;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Sends one payload, or K at once, to N receivers with each send engine and with a sendto each, in
/// alternated rounds, between network namespaces made for it. Every copy is counted where it ends.
/// Charged is the sender's processor time: its thread, with what the kernel does in its context,
/// and its processor's ksoftirqd. Needs root. Rounds with more than 5 % steal are discarded.
#[derive(Args)]
pub(crate) struct GroupcastBench {
    #[command(flatten)]
    filters: Filters,
    /// Rounds of all engines in turn
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Milliseconds of processor time that an engine takes in a round, at least
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    round_ms: u64,
    /// Let another processor do the far kernel's receive work over veth, or the sender's
    #[arg(long, default_value = "off")]
    steer: Switch,
    /// Few cases and two short rounds: shows that the bench works, not what things cost
    #[arg(long)]
    quick: bool,
    /// Print rows, fits and what was left out as JSON, one a line
    #[arg(long)]
    json: bool,
    /// Also write the figures as SVG, and rows and fits as CSV, into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl GroupcastBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let cases = self.filters.cases(self.quick)?;
        let processors = canopy_net::available_processors();
        let [read_on, .., send_on] = processors[..] else {
            bail!("the bench needs two processors, one for the sender and one for the receivers");
        };
        // Before anything is begun: whoever may not make a namespace learns it at once.
        Namespace::new().context("the bench sends between network namespaces")?;
        // What is installed here ends with the process.
        let folder = canopy_engines::private_engine_folder()
            .context("the clone engines need a place of their own")?;
        if let Some(out) = &self.out {
            canopy_output::chart::make_folder(out, "--out")?;
        }
        canopy_net::pin_thread(read_on)?;
        let plan = if self.quick {
            Plan { rounds: 2, measured: Duration::from_millis(5), send_on }
        } else {
            let measured = Duration::from_millis(self.round_ms);
            Plan { rounds: self.rounds, measured, send_on }
        };
        let steer = (self.steer == Switch::On).then_some(read_on);
        self.say_what_is_billed(&plan, &cases);
        let mut begun = 0;
        let mut rows = Vec::new();
        for of_sink in cases.chunk_by(|a, b| a.sink == b.sink) {
            let mut bed = Bed::build(of_sink, steer, folder)?;
            rows.extend(self.measure(&mut bed, plan, of_sink, folder, [begun, cases.len()])?);
            begun += of_sink.len();
        }
        self.report(&rows)?;
        for name in self.filters.engine.iter().map(|engine| engine.name()) {
            let missing = !rows.iter().any(|row| row.engine == name);
            ensure!(!missing, "{name} was asked for, and took part in no case; see why above");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn measure(
        &self,
        bed: &mut Bed,
        plan: Plan,
        cases: &[Case],
        folder: &Path,
        [begun, all]: [usize; 2],
    ) -> anyhow::Result<Vec<Row>> {
        let engines = self.filters.engines();
        rounds::with_sender(bed, plan, &engines, folder, |mut sender, left_out| {
            for (engine, why) in left_out {
                let case = flag_value(cases[0].sink);
                LeftOut { left_out: engine.name(), case, why }.tell(self.json)?;
            }
            let mut rows = Vec::new();
            for (case, number) in cases.iter().zip(begun + 1..) {
                print_note(format_args!("[{number}/{all}] {case}"));
                let of_case = sender.measure(case)?;
                if of_case.is_empty() {
                    let why = "all its rounds had more than 5 % steal".to_owned();
                    LeftOut { left_out: "all", case: case.to_string(), why }.tell(self.json)?;
                } else {
                    print_note(format_args!("        {}", Row::short(&of_case)));
                }
                for row in of_case.iter().filter(|_| self.json) {
                    print_line(serde_json::to_string(row)?)?;
                }
                rows.extend(of_case);
            }
            Ok(rows)
        })
    }

    fn say_what_is_billed(&self, plan: &Plan, cases: &[Case]) {
        let steered = match self.steer {
            Switch::On => "steered to another processor and not charged",
            Switch::Off => "done in the sender's context and charged to it, for every engine alike",
        };
        print_note(format_args!("the sender is on processor {}", plan.send_on));
        for sink in cases.chunk_by(|a, b| a.sink == b.sink).map(|of_sink| of_sink[0].sink) {
            let billed = if sink.is_veth() { steered } else { "none" };
            let (name, what) = (flag_value(sink), sink.describe());
            print_note(format_args!("{name}: {what}; the far kernel's receive work: {billed}"));
        }
    }

    fn report(&self, rows: &[Row]) -> anyhow::Result<()> {
        let fits = FitLine::all(rows);
        let summary = Summary::table(&Summary::all(rows));
        let heading = "median ratio to sendto over all payloads";
        if self.json {
            for fit in &fits {
                print_line(serde_json::to_string(fit)?)?;
            }
            print_note(format_args!("{heading}:\n{summary}"));
        } else {
            print_line(format_args!("{}\n", Row::table(rows)))?;
            if !fits.is_empty() {
                print_line(
                    "a message to N receivers, S = c + xN + yNb, and the papers' xN + yNb:",
                )?;
                print_line(format_args!("{}\n", FitLine::table(&fits)))?;
            }
            print_line(format_args!("{heading}:\n{summary}"))?;
        }
        if let Some(out) = &self.out {
            plots::write(out, rows, &fits)?;
        }
        Ok(())
    }
}
