//! `cargo xtask`: the developer tasks of Canopy.
//!
//! Everything here starts other programs and reads what they say; nothing here is part of what ships.

mod bpf;
mod fuzz;
mod job;
mod mutants;
mod packages;
mod process;
mod report;
mod sim;
mod soak;
mod steps;
mod suite;
mod tally;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use crate::tally::Tally;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The developer tasks of Canopy")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check and every test, installing the Debian packages they need where it may
    Test(TestArgs),
    /// Look for new failures: fresh simulation seeds, then every fuzz target
    Soak(SoakArgs),
    /// Build the kernel's programs from their C source (needs clang, llvm and libbpf-dev)
    Bpf(BpfArgs),
    /// Fuzz one target (needs cargo-fuzz and a nightly toolchain)
    Fuzz(FuzzArgs),
    /// Make small faults in the core, one by one, which its tests must find (needs cargo-mutants)
    Mutants(MutantsArgs),
}

#[derive(Args)]
struct TestArgs {
    /// Run only these steps
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', value_parser = step_name())]
    only: Vec<String>,
    /// Run every step but these
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', value_parser = step_name())]
    skip: Vec<String>,
    /// List the steps and what they do, and stop
    #[arg(long)]
    list: bool,
    /// Go on after a failing step
    #[arg(long)]
    keep_going: bool,
    /// Install nothing; steps whose programs are missing are left out
    #[arg(long)]
    no_install: bool,
    /// End a step that takes longer than this
    #[arg(long, value_name = "MINUTES", default_value_t = 20)]
    step_minutes: u64,
}

#[derive(Args)]
struct SoakArgs {
    /// How long to go on
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// The first simulation seed; by default a new one each time
    #[arg(long)]
    from_seed: Option<u64>,
}

#[derive(Args)]
struct BpfArgs {
    /// Write nothing: only look whether what is committed is what its source gives
    #[arg(long)]
    check: bool,
}

#[derive(Args)]
struct FuzzArgs {
    /// A target of fuzz/Cargo.toml
    target: String,
    /// How long to fuzz
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

#[derive(Args)]
struct MutantsArgs {
    /// Only in these files, like crates/relay/src/log.rs; by default in the whole core
    files: Vec<PathBuf>,
    /// End it after so long; the whole core takes hours
    #[arg(long, default_value_t = 600)]
    minutes: u64,
}

fn step_name() -> PossibleValuesParser {
    PossibleValuesParser::new(steps::ALL.iter().map(|step| step.name))
}

fn main() -> ExitCode {
    let counted = match Cli::parse().task {
        Task::Test(args) if args.list => {
            print!("{}", steps::list());
            return ExitCode::SUCCESS;
        }
        Task::Test(args) => suite::run(&suite::Options {
            only: args.only,
            skip: args.skip,
            keep_going: args.keep_going,
            may_install: !args.no_install,
            step_minutes: args.step_minutes,
        }),
        Task::Soak(args) => soak::run(args.minutes, args.from_seed),
        Task::Bpf(args) => bpf::run(args.check),
        Task::Fuzz(args) => fuzz::run(&args.target, args.seconds),
        Task::Mutants(args) => mutants::run(&args.files, args.minutes),
    };
    let tally = counted.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        Tally::one_failed()
    });
    // Machines read the closing line, so it comes last whatever happened before.
    println!("{tally}");
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
