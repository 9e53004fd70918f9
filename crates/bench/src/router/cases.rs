//! The cases of the bench and the filters that choose among them.

use crate::flag_value;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::fmt;

/// UDP payload of a datagram that comes in.
const BYTES: [usize; 2] = [150, 290];
const FANOUTS: [usize; 2] = [1, 4];

/// How the load comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Offer {
    /// At a moderate rate, evenly: each receive call brings one datagram.
    Single,
    /// As much as is taken: receive calls bring batches.
    Backlog,
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Case {
    /// UDP payload of a datagram that comes in, with one update.
    pub(super) bytes: usize,
    /// To how many neighbours an update goes: one by a learned route, several as subscribers.
    pub(super) fanout: usize,
    pub(super) load: Offer,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { bytes, fanout, load } = self;
        write!(f, "bytes={bytes} fanout={fanout} load={}", flag_value(*load))
    }
}

/// Which cases to run: those that pass every filter given.
#[derive(Args)]
pub(super) struct Filters {
    /// Only datagrams of these bytes of UDP payload
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<usize>,
    /// Only to this many neighbours
    #[arg(long, value_delimiter = ',')]
    fanout: Vec<usize>,
    /// Only this load
    #[arg(long)]
    load: Option<Offer>,
}

impl Filters {
    /// The cases that pass.
    pub(super) fn cases(&self) -> Vec<Case> {
        fn allows<T: PartialEq>(list: &[T], value: &T) -> bool {
            list.is_empty() || list.contains(value)
        }
        let mut cases = Vec::new();
        for load in [Offer::Single, Offer::Backlog] {
            for (bytes, fanout) in BYTES.into_iter().flat_map(|b| FANOUTS.map(|f| (b, f))) {
                cases.push(Case { bytes, fanout, load });
            }
        }
        cases.retain(|case| {
            self.load.is_none_or(|load| load == case.load)
                && allows(&self.bytes, &case.bytes)
                && allows(&self.fanout, &case.fanout)
        });
        cases
    }
}
