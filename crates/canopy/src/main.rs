//! Canopy: the network layer for shared worlds, in one binary.
//!
//! `canopy relay` serves, `canopy pub`, `sub` and `ping` try it, `canopy bots` walks a recorded crowd through it under an oracle,
//! `canopy demo` does both with a console, `canopy lab` starts several relays on this machine, `canopy sim` replays a seeded world without a network,
//! `canopy plan` sizes a deployment, `canopy engine` installs the kernel's side of the fast send
//! engines, `canopy bench` measures.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // They panic when nobody reads.

mod agent;
mod bots;
mod console;
mod controller;
mod controller_folder;
mod demo;
mod doctor;
mod engine;
mod lab;
mod logs;
mod metrics;
mod net;
mod operate;
mod page;
mod plan;
mod rate;
mod serve;
mod settings;
mod shell;
mod signals;
mod simulate;
mod token;
mod top;
mod trust;
mod web;

use canopy_output as output;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The network layer for shared virtual worlds: thousands of participants in one space, and it
/// degrades by distance, never by accident.
#[derive(Parser)]
#[command(name = "canopy", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Start here:\n  \
    canopy demo                     a live crowd in the browser, on this machine alone\n  \
    canopy relay                    serve on 127.0.0.1:4040\n  \
    canopy sub 7                    print what is published to group 7\n  \
    canopy pub 7 hello              publish to group 7\n  \
    canopy ping                     measure round trips through the relay\n  \
    canopy top 127.0.0.1:9090       who sends the relay with --metrics 127.0.0.1:9090 the most\n  \
    canopy net show 127.0.0.1:9090  its links to other relays, its comtrees, routes and groups\n  \
    canopy bots --trace FILE --relay 127.0.0.1:4040\n                                  \
    walk a recorded crowd through it; every delivery is judged\n  \
    canopy lab net --relays 5 --shape star\n                                  \
    five relays on this machine with one world over them\n  \
    canopy plan tree --points 25 --send 1 --receive 8\n                                  \
    the cheapest tree for a comtree, and the capacity of its links\n  \
    canopy engine install --device eth0\n                                  \
    (as root) let relays here have the kernel copy packets\n  \
    canopy bench relay --quick      what a delivery costs here\n\n\
    Every setting of the relay can come from a flag, from the environment (CANOPY_…) or from a \
    TOML file (--settings); flags win.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve participants: the data plane of one relay; or see, drain and remove a controller's relays
    Relay(Box<serve::RelayCommand>),
    /// Place worlds and participants on relays: the control plane of many relays
    Controller(controller::ControllerCommand),
    /// Create, show and delete worlds, and send members away, at a running controller
    World(operate::WorldCommand),
    /// Add, list and remove links between relays, at a running controller
    Link(operate::LinkCommand),
    /// Publish updates to a group, from the command line or stdin
    Pub(shell::PubCommand),
    /// Subscribe to groups and print what comes
    Sub(shell::SubCommand),
    /// Measure round trips through a relay
    Ping(shell::PingCommand),
    /// Walk a recorded crowd through a relay; an oracle judges every delivery
    Bots(bots::BotsCommand),
    /// A live crowd in the browser: relay, walkers and console on this machine
    Demo(Box<demo::DemoCommand>),
    /// Start several relays on this machine, joined to one network
    Lab(lab::LabCommand),
    /// Run a seeded world in virtual time, without a network
    Sim(simulate::SimCommand),
    /// Choose trees, provision capacity, estimate costs before anything is built
    Plan(Box<plan::PlanCommand>),
    /// Install, list and remove the kernel programs of the engines tc-bpf and xdp
    Engine(engine::EngineCommand),
    /// See whether a relay with these settings would do well on this host
    Doctor(Box<doctor::DoctorCommand>),
    /// See who sends a running relay the most
    Top(top::TopCommand),
    /// See a running relay's links, comtrees, routes and groups
    Net(net::NetCommand),
    /// Make signing keys, issue access tokens, look into them
    Token(token::TokenCommand),
    /// Measure what a delivery costs on this machine
    Bench(canopy_bench::BenchCommand),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Relay(command) => command.run(),
        Command::Controller(command) => command.run(),
        Command::World(command) => command.run(),
        Command::Link(command) => command.run(),
        Command::Pub(command) => command.run(),
        Command::Sub(command) => command.run(),
        Command::Ping(command) => command.run(),
        Command::Bots(command) => command.run(),
        Command::Demo(command) => command.run(),
        Command::Lab(command) => command.run(),
        Command::Sim(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Engine(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Net(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Token(command) => command.run(),
        Command::Bench(command) => command.run(),
    };
    match done {
        Ok(code) => code,
        Err(error) if output::nobody_reads(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_note(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn no_command_has_two_options_of_one_name() {
        Cli::command().debug_assert();
    }
}
