//! What a participant asks of its relay: to go on by another token, and, if it is a server, to
//! restrict members and to throw them out.

use super::{Event, Session, SessionError, State};
use crate::requests::RequestNumber;
use canopy_wire::{
    Address, Leave, LeaveReason, MAX_TOKEN_LEN, RequestStatus, Response, Time, Verdict,
};
use core::time::Duration;

/// How long to wait before asking a relay again that has sent the participant away.
const SENT_AWAY_PAUSE: Duration = Duration::from_secs(3);

impl Session {
    /// Joins by another token from now on; of the same key, if the participant is to stay who it is.
    /// While connected, the relay is asked to take it at once, and [`Event::Answered`] tells what it
    /// says: without it the session ends with the token that it began with.
    ///
    /// # Errors
    /// [`SessionError::LongToken`], or [`SessionError::Busy`] if too many requests wait already.
    pub fn set_token(&mut self, token: Vec<u8>) -> Result<Option<RequestNumber>, SessionError> {
        if token.len() > MAX_TOKEN_LEN {
            return Err(SessionError::LongToken(token.len()));
        }
        self.config.token = token;
        if self.state != State::Connected {
            return Ok(None);
        }
        self.requests.renew(&self.config.token).map(Some).ok_or(SessionError::Busy)
    }

    /// Says of a member of the comtree what it may do from now on; for servers only.
    /// [`Event::Answered`] tells what the relay says.
    ///
    /// # Errors
    /// [`SessionError::Busy`] if too many requests wait already.
    pub fn judge(
        &mut self,
        whom: Address,
        verdict: Verdict,
    ) -> Result<RequestNumber, SessionError> {
        self.requests.judge(whom, verdict).ok_or(SessionError::Busy)
    }

    pub(super) fn handle_response(&mut self, response: Response) {
        if let Some((number, status)) = self.requests.handle_response(response) {
            self.tell(Event::Answered(number, status));
        }
    }

    /// A new session has begun, by the newest token.
    pub(super) fn restart_requests(&mut self) {
        for number in self.requests.restart() {
            self.tell(Event::Answered(number, RequestStatus::Done));
        }
    }

    /// The relay ends the session.
    pub(super) fn handle_leave(&mut self, leave: Leave, now: Time) {
        self.farewell = true;
        let again_at = match leave.reason {
            LeaveReason::Elsewhere => {
                // To come back would end the newer session, and that one would come back too.
                self.tell(Event::SentAway(leave.reason));
                return self.close();
            }
            LeaveReason::ThrownOut | LeaveReason::Revoked => {
                self.tell(Event::SentAway(leave.reason));
                now + SENT_AWAY_PAUSE
            }
            _ => now + super::FIRST_BACKOFF,
        };
        self.lose(again_at);
    }
}
