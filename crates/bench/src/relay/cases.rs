//! The cases of the bench and the filters that choose among them.

use crate::{Switch, flag_value};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::fmt;

/// What the load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scenario {
    /// N participants in one group, each publishing 20 updates a second at its own phase.
    Crowd,
    /// One publisher with 64 updates in flight to N subscribers.
    Ceiling,
}

/// The relay's mode, as its flag says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModeName {
    Immediate,
    Periodic,
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    pub(crate) scenario: Scenario,
    pub(crate) n: usize,
    pub(crate) bytes: usize,
    pub(crate) mode: ModeName,
    /// 0 in immediate mode.
    pub(crate) tick_ms: u64,
    pub(crate) receivers_gro: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { scenario, n, bytes, mode, tick_ms, receivers_gro } = self;
        write!(f, "{} n={n} bytes={bytes} {}", flag_value(*scenario), flag_value(*mode))?;
        if *mode == ModeName::Periodic {
            write!(f, " tick={tick_ms}ms")?;
        }
        write!(f, " receivers_gro={}", if *receivers_gro { "on" } else { "off" })
    }
}

/// Which cases to run: those that pass every filter given.
#[derive(Args)]
pub(crate) struct Filters {
    /// Only this scenario
    #[arg(long)]
    scenario: Option<Scenario>,
    /// Only these numbers of receivers
    #[arg(long, value_delimiter = ',')]
    n: Vec<usize>,
    /// Only these payloads, bytes
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<usize>,
    /// Only this mode
    #[arg(long)]
    mode: Option<ModeName>,
    /// Only these ticks, milliseconds
    #[arg(long, value_delimiter = ',')]
    tick_ms: Vec<u64>,
    /// Only receivers with (on) or without (off) UDP_GRO
    #[arg(long)]
    gro: Option<Switch>,
}

impl Case {
    /// Every case of the bench.
    pub(crate) fn all() -> Vec<Case> {
        let (crowd, ceiling) = (Scenario::Crowd, Scenario::Ceiling);
        let (immediate, periodic) = (ModeName::Immediate, ModeName::Periodic);
        let kinds = [
            (crowd, immediate, 0, [30, 90, 150], [100, 290]),
            (crowd, periodic, 50, [30, 90, 150], [100, 290]),
            (crowd, periodic, 5, [30, 90, 150], [100, 290]),
            (ceiling, immediate, 0, [3, 30, 90], [100, 1000]),
        ];
        let mut cases = Vec::new();
        for receivers_gro in [false, true] {
            for (scenario, mode, tick_ms, numbers, sizes) in kinds {
                for (n, bytes) in numbers.into_iter().flat_map(|n| sizes.map(|bytes| (n, bytes))) {
                    cases.push(Case { scenario, n, bytes, mode, tick_ms, receivers_gro });
                }
            }
            // Small updates, where what stands beside them weighs most.
            let (n, bytes, mode, tick_ms) = (90, 20, periodic, 50);
            cases.push(Case { scenario: crowd, n, bytes, mode, tick_ms, receivers_gro });
        }
        cases
    }

    /// Whether the load looks at all its sockets again and again instead of being woken: with a
    /// backlog it has no time to wait, and waking it would be billed to the sender.
    pub(super) fn polls(&self) -> bool {
        self.scenario == Scenario::Ceiling
    }

    fn is_quick(&self) -> bool {
        // In the ceiling, load and relay send the most at once, so it is tried with the longest payload, too.
        let is_one = match self.scenario {
            Scenario::Crowd => self.bytes == 100 && self.tick_ms != 5,
            Scenario::Ceiling => true,
        };
        is_one && self.n == 30 && self.receivers_gro
    }
}

impl Filters {
    /// The cases that pass.
    pub(crate) fn cases(&self, quick: bool) -> Vec<Case> {
        fn allows<T: PartialEq>(list: &[T], value: &T) -> bool {
            list.is_empty() || list.contains(value)
        }
        let mut cases = Case::all();
        cases.retain(|case| {
            (!quick || case.is_quick())
                && self.scenario.is_none_or(|scenario| scenario == case.scenario)
                && self.mode.is_none_or(|mode| mode == case.mode)
                && self.gro.is_none_or(|gro| (gro == Switch::On) == case.receivers_gro)
                && allows(&self.n, &case.n)
                && allows(&self.bytes, &case.bytes)
                && allows(&self.tick_ms, &case.tick_ms)
        });
        cases
    }
}
