//! What a participant asks of its relay beyond updates and subscriptions: one request is on the way
//! at a time, and is repeated until it is answered.

use canopy_wire::{
    Address, Comtree, NumberedRequest, Request, RequestStatus, Response, SessionId, Time, Verdict,
    WireError, next_sequence,
};
use core::time::Duration;
use std::collections::VecDeque;

/// The number of a request among a participant's.
pub type RequestNumber = u64;

enum Asked {
    Renew(Vec<u8>),
    Judge(Address, Verdict),
}

/// The most requests that wait.
const MAX_WAITING: usize = 256;

#[derive(Default)]
pub(crate) struct Requests {
    waiting: VecDeque<(RequestNumber, Asked)>,
    next: RequestNumber,
    /// The first of those that wait is on the way under this number; 0 before the session's first.
    sequence: u32,
    is_on_the_way: bool,
    resend_at: Time,
    tries: u32,
}

impl Requests {
    /// Asks for another token to be taken.
    pub(crate) fn renew(&mut self, token: &[u8]) -> Option<RequestNumber> {
        self.push(Asked::Renew(token.to_vec()))
    }

    pub(crate) fn judge(&mut self, whom: Address, verdict: Verdict) -> Option<RequestNumber> {
        self.push(Asked::Judge(whom, verdict))
    }

    fn push(&mut self, asked: Asked) -> Option<RequestNumber> {
        if self.waiting.len() >= MAX_WAITING {
            return None;
        }
        self.next += 1;
        self.waiting.push_back((self.next, asked));
        Some(self.next)
    }

    /// A new session has begun. What was not answered is asked again, for to do it twice does no
    /// harm; but the session began with the newest token. Returns the number of each request for
    /// that.
    pub(crate) fn restart(&mut self) -> Vec<RequestNumber> {
        self.sequence = 0;
        self.is_on_the_way = false;
        let renewed = |(number, asked): &(RequestNumber, Asked)| {
            matches!(asked, Asked::Renew(_)).then_some(*number)
        };
        let done = self.waiting.iter().filter_map(renewed).collect();
        self.waiting.retain(|(_, asked)| !matches!(asked, Asked::Renew(_)));
        done
    }

    pub(crate) fn due(&self) -> Option<Time> {
        let due = if self.is_on_the_way { self.resend_at } else { Time::ZERO };
        (!self.waiting.is_empty()).then_some(due)
    }

    /// Writes the packet that is due into `out`.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Time,
        (comtree, session): (Comtree, SessionId),
        out: &mut [u8],
    ) -> Result<Option<usize>, WireError> {
        let Some((_, asked)) = self.waiting.front() else { return Ok(None) };
        if !self.is_on_the_way {
            self.is_on_the_way = true;
            self.sequence = next_sequence(self.sequence);
            self.tries = 0;
        } else if now < self.resend_at {
            return Ok(None);
        }
        self.resend_at = now + Duration::from_millis(200 << self.tries.min(4));
        self.tries += 1;
        let request = match asked {
            Asked::Renew(token) => Request::Renew(token),
            Asked::Judge(whom, verdict) => Request::Judge(*whom, *verdict),
        };
        let numbered = NumberedRequest { sequence: self.sequence, request };
        numbered.encode(comtree, session, out).map(Some)
    }

    /// How often the request under way was sent.
    pub(crate) fn tries(&self) -> u32 {
        if self.is_on_the_way { self.tries } else { 0 }
    }

    /// The number of the request that this answers, and what became of it.
    pub(crate) fn handle_response(
        &mut self,
        response: Response,
    ) -> Option<(RequestNumber, RequestStatus)> {
        if !self.is_on_the_way || response.sequence != self.sequence {
            return None;
        }
        self.is_on_the_way = false;
        self.waiting.pop_front().map(|(number, _)| (number, response.status))
    }
}
