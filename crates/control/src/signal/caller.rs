//! The controller's side of the calls to one relay.

use super::{Answer, Call, Message, WINDOW};
use canopy_wire::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// When a call is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// After this, the first time; each time after twice as long.
    pub first: Duration,
    /// Never later than this.
    pub most: Duration,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry { first: Duration::from_millis(100), most: Duration::from_secs(2) }
    }
}

/// A call that is not answered yet.
#[derive(Clone, Debug)]
struct Open {
    call: Call,
    due: Time,
    wait: Duration,
}

/// Calls to one life of a relay, from one life of the controller.
#[derive(Clone, Debug)]
pub struct Caller {
    controller: u32,
    relay: u32,
    retry: Retry,
    next: u64,
    open: BTreeMap<u64, Open>,
    /// When each of them is due.
    due: BTreeSet<(Time, u64)>,
    /// How often calls were sent again.
    repeats: u64,
}

impl Caller {
    /// Calls between these two lives; none was made yet.
    pub fn new(controller: u32, relay: u32, retry: Retry) -> Caller {
        let (open, due) = (BTreeMap::new(), BTreeSet::new());
        Caller { controller, relay, retry, next: 1, open, due, repeats: 0 }
    }

    /// The life of the relay that is called.
    pub fn relay(&self) -> u32 {
        self.relay
    }

    /// Whether another call can be made now.
    pub fn has_room(&self) -> bool {
        self.open.keys().next().is_none_or(|first| self.next - first < WINDOW)
    }

    /// How many calls are not answered.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// How often calls were sent again.
    pub fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Makes a call: it is due at once. Returns its number. There must be room.
    pub fn call(&mut self, now: Time, call: Call) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.insert(number, Open { call, due: now, wait: Duration::ZERO });
        self.due.insert((now, number));
        number
    }

    /// Takes an answer. Returns what was called, if that was not answered before.
    pub fn handle_answer(
        &mut self,
        controller: u32,
        relay: u32,
        number: u64,
        answer: Answer,
    ) -> Option<(Call, Answer)> {
        if controller != self.controller || relay != self.relay {
            return None;
        }
        let Open { call, due, .. } = self.open.remove(&number)?;
        self.due.remove(&(due, number));
        Some((call, answer))
    }

    /// A message that is due, in bytes.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        let (_, number) = self.due.first().copied().filter(|(due, _)| *due <= now)?;
        let settled = self.open.keys().next().copied().unwrap_or(self.next);
        let open = self.open.get_mut(&number)?;
        self.due.remove(&(open.due, number));
        self.repeats += u64::from(!open.wait.is_zero());
        open.wait = (open.wait * 2).clamp(self.retry.first, self.retry.most);
        open.due = now + open.wait;
        self.due.insert((open.due, number));
        let lives = (self.controller, self.relay);
        Some(Message::encode_call(lives, (number, settled), &open.call))
    }

    /// When the next message is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }
}
