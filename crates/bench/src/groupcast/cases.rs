//! The cases of the bench and the flags that choose them.

use crate::flag_value;
use anyhow::bail;
use canopy_batch::{MAX_SEGMENTS, MAX_SEND_BYTES};
use canopy_engines::EngineName;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::fmt;

/// Where the copies end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sink {
    /// A UDP socket for each receiver at the far end of a virtual Ethernet pair.
    Sockets,
    /// The far end of the pair, whose kernel drops them at its door.
    Dropped,
    /// The far end's driver, where a program drops them before they are packets. What is sent to it
    /// is segmented in software.
    Driver,
    /// The sending device itself, which takes whole bursts and discards them.
    Discard,
    /// The same device, for which the kernel cuts bursts into datagrams first.
    Software,
}

impl Sink {
    /// What it is, for whoever reads the table.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Sink::Sockets => "a UDP socket a receiver over veth",
            Sink::Dropped => "dropped by the far kernel over veth",
            Sink::Driver => "dropped in the far driver over veth, segments cut in software",
            Sink::Discard => "a discarding device that segments",
            Sink::Software => "a discarding device, segments cut in software",
        }
    }

    /// Whether the copies cross a virtual Ethernet pair.
    pub(super) fn is_veth(self) -> bool {
        matches!(self, Sink::Sockets | Sink::Dropped | Sink::Driver)
    }
}

/// One case: what every engine does in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) sink: Sink,
    /// Receivers.
    pub(super) n: usize,
    /// Datagrams that each receiver gets at once.
    pub(super) segments: usize,
    /// Bytes of a datagram.
    pub(super) bytes: usize,
}

impl Case {
    /// The copies of one send.
    pub(super) fn copies(&self) -> u64 {
        (self.n * self.segments) as u64
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { sink, n, segments, bytes } = self;
        write!(f, "{} n={n} segments={segments} bytes={bytes}", flag_value(*sink))
    }
}

/// What is measured; what is not said is the whole.
#[derive(Args)]
pub(super) struct Filters {
    /// Only these engines; the baseline, sendto, is always among them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) engine: Vec<EngineName>,
    /// Numbers of receivers [default: 3,30,60,90,300,1000]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    n: Vec<u32>,
    /// Bytes of a datagram [default: 50,100,290,500,1000,1400]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1472))]
    bytes: Vec<u32>,
    /// Datagrams of a burst to each receiver [default: 1,4,16]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=MAX_SEGMENTS as i64))]
    segments: Vec<u32>,
    /// Where the copies end [default: all]
    #[arg(long, value_delimiter = ',')]
    sink: Vec<Sink>,
}

impl Filters {
    /// The engines, the baseline first.
    pub(super) fn engines(&self) -> Vec<EngineName> {
        let wanted = |engine: &EngineName| {
            *engine == EngineName::Sendto || self.engine.is_empty() || self.engine.contains(engine)
        };
        EngineName::ALL.into_iter().filter(wanted).collect()
    }

    /// The cases of one sink after the other, and of one group after the other.
    ///
    /// # Errors
    /// If there are none, or one that no burst can carry.
    pub(super) fn cases(&self, quick: bool) -> anyhow::Result<Vec<Case>> {
        let chosen = |given: &[u32], all: &[u32], few: &[u32]| {
            let list = if !given.is_empty() { given } else { if quick { few } else { all } };
            list.iter().map(|value| *value as usize).collect::<Vec<_>>()
        };
        let all_n = chosen(&self.n, &[3, 30, 60, 90, 300, 1000], &[3, 30]);
        let all_segments = chosen(&self.segments, &[1, 4, 16], &[1, 4]);
        let all_bytes = chosen(&self.bytes, &[50, 100, 290, 500, 1000, 1400], &[100]);
        let sinks = if self.sink.is_empty() { Sink::value_variants() } else { &self.sink };
        let mut cases = Vec::new();
        for &sink in sinks {
            for &n in &all_n {
                for &segments in &all_segments {
                    let sizes = all_bytes.iter().map(|&bytes| Case { sink, n, segments, bytes });
                    cases.extend(sizes);
                }
            }
        }
        // Single datagrams are not cut, so for them `software` would only repeat `discard`.
        cases.retain(|case| case.sink != Sink::Software || case.segments > 1);
        if cases.is_empty() {
            bail!("nothing to measure: the sink software needs --segments above 1");
        }
        if let Some(case) = cases.iter().find(|case| case.segments * case.bytes > MAX_SEND_BYTES) {
            bail!("a burst carries at most {MAX_SEND_BYTES} bytes, and {case} has more");
        }
        Ok(cases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters() -> Filters {
        let (n, bytes, segments) = (Vec::new(), Vec::new(), Vec::new());
        Filters { engine: Vec::new(), n, bytes, segments, sink: Vec::new() }
    }

    #[test]
    fn the_whole_is_the_papers_matrix_and_more() {
        let cases = filters().cases(false).unwrap();
        assert_eq!(cases.len(), 4 * 6 * 6 * 3 + 6 * 6 * 2);
        assert_eq!(filters().cases(true).unwrap().len(), 4 * 4 + 2);
    }

    #[test]
    fn filters_choose_and_refuse() {
        let few = Filters { n: vec![10], bytes: vec![80], sink: vec![Sink::Discard], ..filters() };
        assert_eq!(few.cases(false).unwrap().len(), 3);
        let none = Filters { segments: vec![1], sink: vec![Sink::Software], ..filters() };
        assert!(none.cases(false).is_err());
        let heavy = Filters { segments: vec![64], bytes: vec![1400], ..filters() };
        assert!(heavy.cases(false).is_err());
        let engines = Filters { engine: vec![EngineName::Gso], ..filters() }.engines();
        assert_eq!(engines, [EngineName::Sendto, EngineName::Gso]);
    }
}
