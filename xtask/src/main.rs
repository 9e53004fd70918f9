//! `cargo xtask`: the developer tasks of Canopy.
//!
//! Everything here starts other programs and reads what they say; nothing here is part of what ships.

mod binaries;
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
mod sweep;
mod tally;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

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
    Test(suite::Options),
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
struct SoakArgs {
    /// How long to go on
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// The first simulation seed; by default a new one each time
    #[arg(long)]
    from_seed: Option<u64>,
    /// Simulate nothing but the networks in the .gml files of this folder, each for about as long as every other
    #[arg(long, value_name = "FOLDER")]
    topologies: Option<PathBuf>,
    /// With --topologies: what else `canopy sim` is told, after `--`; like --degree 3 --seconds 70
    #[arg(last = true, requires = "topologies", value_name = "FLAG")]
    flags: Vec<String>,
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

fn main() -> ExitCode {
    let counted = match Cli::parse().task {
        Task::Test(options) if options.list => {
            print!("{}", steps::list());
            return ExitCode::SUCCESS;
        }
        Task::Test(options) => suite::run(&options),
        Task::Soak(SoakArgs { minutes, from_seed, topologies, flags }) => match topologies {
            Some(folder) => sweep::run(&folder, minutes, from_seed, &flags),
            None => soak::run(minutes, from_seed),
        },
        Task::Bpf(args) => bpf::run(args.check),
        Task::Fuzz(args) => fuzz::run(&args.target, args.seconds),
        Task::Mutants(args) => mutants::run(&args.files, args.minutes),
    };
    let tally = counted.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        Tally::FAILED
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
