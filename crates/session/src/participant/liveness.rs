//! How a participant stays: keepalives, a changed ip:port, and a relay that is gone.

use super::{Event, Keys, REMEMBERED, Session, State};
use crate::answer::REBIND_STAMP;
use canopy_wire::{Challenge, Keepalive, Rebind, Tag, Time, Unknown, WireError};
use core::time::Duration;

/// Unanswered keepalives after which the relay counts as lost.
const LOST_AFTER_KEEPALIVES: u32 = 3;
/// Between proofs of a new ip:port. Anyone who can write the relay's address on a packet can send
/// challenges, and each proof costs a packet.
const PROOF_PAUSE: Duration = Duration::from_millis(100);
/// Repetitions of a subscribe or a request that the relay leaves unanswered while it answers others.
const ANSWER_TRIES: u32 = 12;

/// How far a change of the participant's ip:port has come.
pub(super) enum Rebinding {
    /// As far as anyone knows, nothing has changed.
    Settled,
    /// The relay has seen another ip:port and asks for a proof, which may go out at `due`.
    Challenged { cookie: Tag, due: Time },
    /// The proof was sent at `at`, and the relay has not said yet that it took it.
    Proved { at: Time },
}

/// When somebody said that the relay knows no such session, it is asked so often, and given so long
/// for each answer: at least this, and two round trips.
const DOUBT_TRIES: u32 = 3;
const LEAST_DOUBT: Duration = Duration::from_millis(20);

/// Somebody said that the relay knows no such session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    asked: u32,
    /// When to ask again, or to believe it.
    pub(super) due: Time,
}

impl Session {
    pub(super) fn transmit_connected(
        &mut self,
        now: Time,
        out: &mut [u8],
    ) -> Result<Option<usize>, WireError> {
        let (comtree, id) = (self.config.comtree, self.id);
        let len = if let Rebinding::Challenged { cookie, due } = self.rebinding
            && now >= due
        {
            self.rebinding = Rebinding::Proved { at: now };
            Rebind { cookie }.encode(comtree, id, out)?
        } else if self.is_lost(now) {
            self.lose(now);
            return self.transmit_hello(now, out);
        } else if now >= self.due || self.doubt.is_some_and(|doubt| now >= doubt.due) {
            self.due = now + self.keepalive;
            let patience = (self.round_trip.unwrap_or(self.first_round_trip) * 2).max(LEAST_DOUBT);
            if let Some(Doubt { asked, due }) = &mut self.doubt {
                (*asked, *due) = (*asked + 1, now + patience);
            }
            self.write_keepalive(now, out)?
        } else if self.asks_for_a_sign(now) {
            self.write_keepalive(now, out)?
        } else if let Some(len) = self.transmit_report(out)? {
            len
        } else if let Some(held) = self.group_keys.poll(now) {
            held.encode(comtree, id, out)?
        } else {
            let (route, refresh) = ((comtree, id, self.max_datagram), self.refresh);
            let subscribe = match self.may_subscribe() {
                true => self.subscriptions.poll_transmit(now, refresh, route, out)?,
                false => None,
            };
            match subscribe {
                Some(len) => len,
                None => match self.requests.poll_transmit(now, (comtree, id), out)? {
                    Some(len) => len,
                    None => return Ok(None),
                },
            }
        };
        self.seal(out, len).map(Some)
    }

    fn write_keepalive(&self, now: Time, out: &mut [u8]) -> Result<usize, WireError> {
        let stamp = now.as_nanos().max(REBIND_STAMP + 1);
        let keepalive = Keepalive { stamp, path_stamp: self.path_stamp };
        keepalive.encode(self.config.comtree, self.id, out)
    }

    /// Whether the relay has been silent for too long, or has shown that it does not know the session.
    pub(super) fn is_lost(&self, now: Time) -> bool {
        let patience = self.keepalive * LOST_AFTER_KEEPALIVES;
        let is_silent = now >= self.due && now.since(self.heard) > patience;
        let is_unknown = |doubt: Doubt| doubt.asked >= DOUBT_TRIES && now >= doubt.due;
        is_silent
            || self.doubt.is_some_and(is_unknown)
            || self.subscriptions.tries().max(self.requests.tries()) > ANSWER_TRIES
    }

    pub(super) fn handle_challenge(&mut self, challenge: Challenge, now: Time) {
        let due = match self.rebinding {
            Rebinding::Settled => now,
            Rebinding::Challenged { due, .. } => due,
            Rebinding::Proved { at } => at + PROOF_PAUSE,
        };
        self.rebinding = Rebinding::Challenged { cookie: challenge.cookie, due };
    }

    /// The relay heard a keepalive, perhaps not the last: a round trip may take longer than it is from
    /// one to the next.
    pub(super) fn handle_keepalive_ack(&mut self, keepalive: Keepalive, now: Time) {
        let Keepalive { stamp, path_stamp } = keepalive;
        if self.state != State::Connected {
            return;
        }
        self.confirm_rebinding(stamp);
        if stamp == REBIND_STAMP {
            self.path_stamp = path_stamp;
        } else if stamp >= self.answered {
            self.answered = stamp;
            self.path_stamp = path_stamp;
            self.round_trip = Some(now.since(Time::from_nanos(stamp)));
        }
    }

    /// Somebody who has seen one of the last packets says that the relay has no such session: another
    /// incarnation of it, which cannot prove that, or somebody on the way. So the relay is asked, and
    /// believed lost if it stays silent.
    pub(super) fn handle_unknown(&mut self, unknown: Unknown, now: Time) {
        let is_of_ours = |keys: &Keys| {
            let written = keys.next.min(REMEMBERED);
            keys.sealed[..written].contains(&unknown.echo)
        };
        if !self.keys.as_deref().is_some_and(is_of_ours) {
            return;
        }
        match self.state {
            State::Connected => {
                self.doubt.get_or_insert(Doubt { asked: 0, due: now });
            }
            State::Leaving => self.close(),
            _ => {}
        }
    }

    /// The relay answers a proof that it takes, and afterwards the keepalives that come from the new
    /// ip:port. An answer to an earlier keepalive may have been under way for long.
    pub(super) fn confirm_rebinding(&mut self, stamp: u64) {
        if let Rebinding::Proved { at } = self.rebinding
            && (stamp == REBIND_STAMP || stamp > at.as_nanos())
        {
            self.rebinding = Rebinding::Settled;
            self.tell(Event::Rebound);
        }
    }
}
