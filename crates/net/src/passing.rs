//! Sends of a batch that pass those that wait for a full device.

use canopy_batch::{Backlog, SendBatch, Unsent};
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

/// Which sends of a batch are still to be offered to the engine, and which have to wait.
#[derive(Default)]
pub(crate) struct Passing {
    /// What was not tried yet, in order.
    untried: VecDeque<Unsent>,
    /// What is being offered.
    picked: Vec<Unsent>,
    /// What has to wait, in order for each address.
    late: Vec<Unsent>,
    /// The addresses whose device was full for one send alone.
    full_for: BTreeSet<IpAddr>,
}

impl Passing {
    /// Begins with what is left of a batch.
    pub(crate) fn begin(&mut self, left: impl IntoIterator<Item = Unsent>) {
        self.full_for.clear();
        self.untried.extend(left);
    }

    /// Puts up to `most` sends into `offered`. What is for an address for which something waits has to wait as well.
    /// Returns whether there is any.
    pub(crate) fn pick(
        &mut self,
        batch: &SendBatch,
        backlog: &Backlog,
        offered: &mut SendBatch,
        most: usize,
    ) -> bool {
        offered.clear();
        self.picked.clear();
        while self.picked.len() < most
            && let Some(unsent) = self.untried.pop_front()
        {
            let address = address_of(batch, unsent);
            if self.full_for.contains(&address) || backlog.waits_for(address) {
                self.late.push(unsent);
                continue;
            }
            match self.picked.last() {
                Some(before) if are_the_same(batch, *before, unsent) => {
                    offered.push_same(batch.transmits()[unsent.transmit as usize].to);
                }
                _ => offered.push_left(batch, unsent),
            }
            self.picked.push(unsent);
        }
        !self.picked.is_empty()
    }

    /// The engine did not take the `rest` of what was picked, as a device's queue or the socket's buffer is full. It is
    /// tried again before all others; or has to wait, if it is one send, whose device is the full one then.
    pub(crate) fn put_back(&mut self, batch: &SendBatch, rest: &[Unsent]) {
        let is_alone = self.picked.len() == 1;
        for left in rest.iter().rev() {
            let picked = self.picked[left.transmit as usize];
            let unsent = Unsent { datagrams: picked.datagrams + left.datagrams, ..picked };
            if is_alone {
                self.full_for.insert(address_of(batch, unsent));
                self.late.push(unsent);
            } else {
                self.untried.push_front(unsent);
            }
        }
    }

    /// All that has to wait, and what was not tried: what is for one address in order.
    pub(crate) fn end(&mut self) -> impl Iterator<Item = Unsent> {
        self.late.drain(..).chain(self.untried.drain(..))
    }
}

fn address_of(batch: &SendBatch, unsent: Unsent) -> IpAddr {
    batch.transmits()[unsent.transmit as usize].to.remote.ip()
}

fn are_the_same(batch: &SendBatch, one: Unsent, other: Unsent) -> bool {
    let [first, second] = [one, other].map(|of| &batch.transmits()[of.transmit as usize]);
    one.datagrams == 0 && other.datagrams == 0 && batch.carries_the_same(first, second)
}
