//! Keeping a client in its world: renews its lease, finds another relay when its own is lost, and moves to
//! another when its own drains or another is nearer. It says what is to be asked of the controller, is told the
//! answers, and does what follows from them with the [`Member`]; it neither waits nor calls anybody.

use super::question::{Answer, Question};
use crate::ask::{JoinError, Nearness, Place};
use crate::chance::Chance;
use crate::handover::Outcome;
use crate::member::Member;
use crate::{Event, Refusal};
use canopy_wire::Time;
use std::time::Duration;

/// A lease is renewed so often while it lasts: two renewals may fail.
const RENEWALS: u32 = 3;
/// The shortest time between renewals, however short the lease is.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// Relays are measured again with one renewal in so many: every 200 s, while leases are 60 s.
const LOOK_EVERY: u32 = 10;
/// How soon a renewal that failed is tried again.
const RENEW_AGAIN: Duration = Duration::from_secs(2);
/// The pause before a client that has no relay asks again doubles with each refusal, up to some five seconds.
const MOST_DOUBLINGS: u32 = 5;
/// Who leaves waits so long until the controller has taken its place back. After that the lease ends.
pub(crate) const LEAVE_LIMIT: Duration = Duration::from_secs(2);

pub(crate) struct Keeper {
    place: Place,
    measured: Vec<Nearness>,
    /// Whether relays are measured at all.
    measures: bool,
    chance: Chance,
    /// Counted from a number by chance on, as not all who came together shall measure together.
    renewals: u32,
    /// After this renewal it is asked whether there is another relay to move to.
    looks: bool,
    /// Why the controller refused last, if it did; and how often since it last gave a place.
    refused: Option<Refusal>,
    refusals: u32,
    /// How often it said that a relay is the right one which the member hears nothing of.
    stays: u32,
    renew_at: Time,
    /// When it is asked again while the relay is lost.
    again_at: Time,
    doing: Doing,
}

enum Doing {
    Nothing,
    /// A question waits for its answer.
    Waits,
    /// It has measured, and asks for another relay next.
    Relocates,
    /// The member goes to this place.
    Moves(Box<Place>),
    /// The place with this address is given back next.
    GivesBack(String),
    /// The world was left, and the place is being given back. Nobody waits for that any longer.
    Leaves(Time),
    /// Nothing is to be done any more.
    Over,
}

impl Keeper {
    /// One for a member that has this place since now.
    pub(crate) fn new(
        now: Time,
        place: Place,
        measured: Vec<Nearness>,
        measures: bool,
        mut chance: Chance,
    ) -> Keeper {
        let renew_at = now + renew_in(&place);
        Keeper {
            place,
            measured,
            measures,
            renewals: chance.below(u64::from(LOOK_EVERY)) as u32,
            chance,
            looks: false,
            refused: None,
            refusals: 0,
            stays: 0,
            renew_at,
            again_at: now,
            doing: Doing::Nothing,
        }
    }

    /// What is to be asked now, if anything. Its answer is told before the next one is asked, but for
    /// [`Question::Leave`], which is the last.
    pub(crate) fn turn(&mut self, now: Time, member: &mut Member) -> Option<Question> {
        if member.is_over() {
            return self.end(now, member);
        }
        if matches!(self.doing, Doing::Moves(_)) {
            self.end_move(member.moved()?);
        }
        let question = match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => self.next(now, member),
            Doing::Relocates if member.lacks_a_relay(now) => self.next(now, member),
            Doing::Relocates => Some(Question::Relocate(self.measured.clone())),
            Doing::GivesBack(address) => Some(Question::GiveBack(address)),
            unchanged => {
                self.doing = unchanged;
                return None;
            }
        };
        if question.is_some() {
            self.doing = Doing::Waits;
        }
        question
    }

    fn end(&mut self, now: Time, member: &Member) -> Option<Question> {
        let (doing, question) = match self.doing {
            Doing::Leaves(until) if now < until => return None,
            Doing::Leaves(_) | Doing::Over => (Doing::Over, None),
            _ if member.has_departed() => (Doing::Leaves(now + LEAVE_LIMIT), Some(Question::Leave)),
            _ => (Doing::Over, None),
        };
        self.doing = doing;
        question
    }

    fn next(&mut self, now: Time, member: &Member) -> Option<Question> {
        let renew = |keeper: &Keeper| Some(Question::Renew(keeper.measured.clone()));
        if member.lacks_a_relay(now) {
            self.looks = false;
            return if self.again_at <= now { renew(self) } else { None };
        }
        self.stays = 0;
        if std::mem::take(&mut self.looks) {
            let relay = self.place.relay.clone();
            return Some(match self.measures {
                true => Question::Measure(relay),
                false => Question::Relocate(self.measured.clone()),
            });
        }
        if now < self.renew_at {
            return None;
        }
        self.renewals = self.renewals.wrapping_add(1);
        self.looks = true;
        renew(self)
    }

    /// When it wants its turn, if no answer comes before and nothing happens to the member.
    pub(crate) fn due(&self, now: Time, member: &Member) -> Option<Time> {
        match &self.doing {
            Doing::Nothing if member.lacks_a_relay(now) => Some(self.again_at),
            Doing::Nothing if self.looks => Some(now),
            Doing::Nothing => Some(self.renew_at),
            Doing::Relocates | Doing::GivesBack(_) => Some(now),
            Doing::Moves(_) => member.has_moved_or_not().then_some(now),
            Doing::Leaves(until) => Some(*until),
            Doing::Waits | Doing::Over => None,
        }
    }

    /// What the last question was answered. The member wants its turn afterwards.
    pub(crate) fn handle_answer(&mut self, now: Time, member: &mut Member, answer: Answer) {
        if member.is_over() {
            if matches!(answer, Answer::Left) {
                self.doing = Doing::Over;
            }
            return;
        }
        self.doing = Doing::Nothing;
        self.again_at = now + self.chance.pause();
        match answer {
            Answer::Renewed(Ok(place)) => {
                let counts = self.measures && self.renewals.is_multiple_of(LOOK_EVERY);
                self.looks &= place.drains || counts;
                self.go_on_at(now, member, place);
            }
            Answer::Renewed(Err(error)) => {
                self.looks = false;
                self.renew_at = now + RENEW_AGAIN + self.chance.pause();
                // Whoever is in stays in without the controller.
                if let JoinError::Refused(why) = error {
                    // Who has no relay asks soon, and then ever more seldom: it may be refused for good.
                    self.refusals = (self.refusals + 1).min(MOST_DOUBLINGS);
                    self.again_at = now + self.chance.pause() * (1 << self.refusals);
                    self.tell(member, why);
                }
            }
            Answer::Relocated(Ok(place)) => self.go_on_at(now, member, place),
            Answer::Measured(measured) => {
                self.doing = Doing::Relocates;
                if let Some(measured) = measured {
                    self.measured = measured;
                }
            }
            // Who gets no other place stays, and asks again another time. If the controller does not hear of
            // a place that is given back, its lease ends; and the next answer may name it again.
            Answer::Relocated(Err(_)) | Answer::Done | Answer::Left => {}
        }
    }

    fn go_on_at(&mut self, now: Time, member: &mut Member, place: Place) {
        (self.refused, self.refusals) = (None, 0);
        if place.relay == self.place.relay && member.is_silent() {
            return self.stay_at(now, place);
        }
        self.renew_at = now + renew_in(&place) + self.chance.pause();
        let (relay, key) = (place.relay.address, place.relay.key.to_bytes());
        if place.relay == self.place.relay {
            // The answer only says what the relay says to the session.
            drop(member.set_token(&place.token));
            self.place = place;
        } else if member.lacks_a_relay(now) {
            // Without a socket there is no network; the next question comes soon.
            if member.turn_to(now, relay, key, &place.token).is_ok() {
                self.place = place;
            }
        } else {
            self.doing = match member.move_to(now, relay, key, &place.token) {
                Ok(()) => Doing::Moves(Box::new(place)),
                Err(_) => Doing::GivesBack(place.address),
            };
        }
    }

    /// The relay is the right one although it is silent: it may only pause, and the controller is asked ever more
    /// seldom. The next renewal brings it the next token, once it answers.
    fn stay_at(&mut self, now: Time, place: Place) {
        self.again_at = now + self.chance.pause() * (1 << self.stays);
        self.stays = (self.stays + 1).min(MOST_DOUBLINGS);
        self.place = place;
    }

    /// One of the two places is given back.
    fn end_move(&mut self, outcome: Outcome) {
        let Doing::Moves(place) = std::mem::replace(&mut self.doing, Doing::Nothing) else {
            return;
        };
        let left = match outcome {
            Outcome::Moved => std::mem::replace(&mut self.place, *place),
            Outcome::Stayed => *place,
        };
        self.doing = Doing::GivesBack(left.address);
    }

    /// Tells the application of a refusal, once for each reason.
    fn tell(&mut self, member: &mut Member, why: Refusal) {
        if self.refused.as_ref().map(reason) != Some(reason(&why)) {
            member.inbox().push_event(Event::NotLetIn(why.clone()));
            self.refused = Some(why);
        }
    }

    /// Whether the world was left, and nothing is to be asked or waited for any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.doing, Doing::Over)
    }
}

/// Why it was refused, without figures: how long it is barred, and what is free, is another number each time.
fn reason(why: &Refusal) -> (String, &str) {
    (why.what.chars().filter(|of| !of.is_ascii_digit()).collect(), &why.place)
}

/// When a place is asked for again. The lease is counted from the answer on, so clocks may differ.
fn renew_in(place: &Place) -> Duration {
    (place.lease / RENEWALS).max(LEAST_PAUSE)
}

#[cfg(test)]
mod tests;
