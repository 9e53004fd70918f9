//! The relay's side of the controller's calls.

use super::{Answer, Call, Message, WINDOW};
use std::collections::BTreeMap;

/// A call that is being executed: which answer is to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    controller: u32,
    number: u64,
}

/// Calls to this life of a relay. Memory is bounded by [`WINDOW`] calls and as many answers.
#[derive(Clone, Debug)]
pub struct Callee {
    relay: u32,
    /// The newest life of the controller that has called.
    controller: u32,
    /// The call that is executed next.
    next: u64,
    is_executing: bool,
    waiting: BTreeMap<u64, Call>,
    saved: BTreeMap<u64, Answer>,
    /// Calls that were not for this life, of a controller that was replaced, or too far ahead.
    ignored: u64,
}

impl Callee {
    /// The calls to a relay in this life.
    pub fn new(relay: u32) -> Callee {
        Callee {
            relay,
            controller: 0,
            next: 1,
            is_executing: false,
            waiting: BTreeMap::new(),
            saved: BTreeMap::new(),
            ignored: 0,
        }
    }

    /// The relay's life.
    pub fn relay(&self) -> u32 {
        self.relay
    }

    /// The newest life of the controller that has called; 0 before.
    pub fn controller(&self) -> u32 {
        self.controller
    }

    /// Up to which number that life's calls are answered.
    pub fn answered(&self) -> u64 {
        self.next - 1
    }

    /// How many calls were ignored, because they were not for this life, came from a controller
    /// that was replaced, or were too far ahead.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Takes a message. Returns the answer if it was given before.
    pub fn handle(&mut self, message: Message) -> Option<Message> {
        let Message::Call { controller, relay, number, settled, call } = message else {
            self.ignored += 1;
            return None;
        };
        if relay != self.relay || controller < self.controller {
            self.ignored += 1;
            return None;
        }
        if controller > self.controller {
            self.controller = controller;
            self.next = 1;
            self.is_executing = false;
            self.waiting.clear();
            self.saved.clear();
        }
        if number < self.next {
            return self.saved.get(&number).map(|answer| self.message(number, answer.clone()));
        }
        // What the controller has the answers of is less than what was executed.
        self.saved = self.saved.split_off(&settled.min(self.next));
        let is_running = self.is_executing && number == self.next;
        if number >= self.next + WINDOW {
            self.ignored += 1;
        } else if !is_running {
            self.waiting.insert(number, call);
        }
        None
    }

    /// The call to be executed now: one at a time, in the order of their numbers. It is to be
    /// answered before there is another.
    pub fn poll_call(&mut self) -> Option<(Ticket, Call)> {
        if self.is_executing {
            return None;
        }
        let call = self.waiting.remove(&self.next)?;
        self.is_executing = true;
        Some((Ticket { controller: self.controller, number: self.next }, call))
    }

    /// Says what became of a call. Returns the message for the controller, if it is still the one
    /// that has called.
    pub fn answer(&mut self, ticket: Ticket, answer: Answer) -> Option<Message> {
        let Ticket { controller, number } = ticket;
        if controller != self.controller || number != self.next || !self.is_executing {
            return None;
        }
        self.is_executing = false;
        self.next += 1;
        self.saved.insert(number, answer.clone());
        Some(self.message(number, answer))
    }

    fn message(&self, number: u64, answer: Answer) -> Message {
        Message::Answer { controller: self.controller, relay: self.relay, number, answer }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Caller, ItemKey, Retry};
    use super::*;
    use crate::model::LinkId;
    use canopy_wire::Time;
    use core::time::Duration;

    fn call(link: u32) -> Call {
        Call::Remove(ItemKey::Link(LinkId(link)))
    }

    fn next(caller: &mut Caller, now: Time) -> Message {
        Message::decode(&caller.poll_transmit(now).unwrap()).unwrap()
    }

    #[test]
    fn calls_in_any_order_are_executed_in_theirs_and_once() {
        let mut caller = Caller::new(1, 1, Retry::default());
        let mut callee = Callee::new(1);
        (1..=3).for_each(|link| _ = caller.call(Time::ZERO, call(link)));
        let messages: Vec<Message> = (0..3).map(|_| next(&mut caller, Time::ZERO)).collect();
        for at in [2, 1, 1] {
            assert_eq!(callee.handle(messages[at].clone()), None);
            assert_eq!(callee.poll_call(), None, "the first is missing");
        }
        callee.handle(messages[0].clone());
        let mut answers = Vec::new();
        for link in 1..=3 {
            let (ticket, executed) = callee.poll_call().unwrap();
            assert_eq!(executed, call(link));
            assert_eq!(callee.poll_call(), None, "one at a time");
            answers.push(callee.answer(ticket, Answer::Done).unwrap());
        }
        for at in [0, 1, 2] {
            assert_eq!(callee.handle(messages[at].clone()).as_ref(), Some(&answers[at]), "saved");
            assert_eq!(callee.poll_call(), None, "not executed again");
        }
    }

    #[test]
    fn answers_are_kept_until_the_caller_has_them() {
        let mut caller = Caller::new(1, 1, Retry::default());
        let mut callee = Callee::new(1);
        for link in 0..1000 {
            assert!(caller.has_room());
            caller.call(Time::ZERO, call(link));
            callee.handle(next(&mut caller, Time::ZERO));
            let (ticket, _) = callee.poll_call().unwrap();
            let Some(Message::Answer { controller, relay, number, answer }) =
                callee.answer(ticket, Answer::Done)
            else {
                panic!("an answer")
            };
            assert!(caller.handle_answer(controller, relay, number, answer.clone()).is_some());
            assert!(caller.handle_answer(controller, relay, number, answer).is_none(), "once");
            assert!(callee.saved.len() <= 2);
        }
        assert_eq!(caller.open(), 0);
    }

    #[test]
    fn a_call_is_repeated_ever_later_and_the_window_ends() {
        let retry = Retry { first: Duration::from_millis(100), most: Duration::from_millis(300) };
        let mut caller = Caller::new(1, 1, retry);
        caller.call(Time::ZERO, call(1));
        let mut times = Vec::new();
        for _ in 0..5 {
            let now = caller.poll_timeout().unwrap();
            next(&mut caller, now);
            assert_eq!(caller.poll_transmit(now), None);
            times.push(now.as_nanos() / 1_000_000);
        }
        assert_eq!(times, [0, 100, 300, 600, 900]);
        (1..WINDOW).for_each(|_| _ = caller.call(Time::ZERO, call(2)));
        assert!(!caller.has_room());
    }

    #[test]
    fn what_was_meant_for_another_life_has_no_effect() {
        let mut old = Caller::new(1, 1, Retry::default());
        old.call(Time::ZERO, call(1));
        let late = next(&mut old, Time::ZERO);
        let mut restarted = Callee::new(2);
        restarted.handle(late.clone());
        assert_eq!(restarted.poll_call(), None);

        let mut callee = Callee::new(1);
        callee.handle(late.clone());
        let (ticket, _) = callee.poll_call().unwrap();
        let mut new = Caller::new(2, 1, Retry::default());
        new.call(Time::ZERO, call(9));
        callee.handle(next(&mut new, Time::ZERO));
        assert_eq!(callee.answer(ticket, Answer::Done), None, "nobody waits for it");
        assert_eq!(callee.poll_call().unwrap().1, call(9));
        callee.handle(late);
        assert_eq!(callee.ignored(), 1, "the old controller is heeded no more");
    }

    #[test]
    fn what_is_too_far_ahead_takes_no_memory() {
        let mut callee = Callee::new(1);
        for number in [1 + WINDOW, u64::MAX - WINDOW - 1, 5_000_000] {
            let far =
                Message::Call { controller: 1, relay: 1, number, settled: u64::MAX, call: call(1) };
            callee.handle(far);
        }
        assert_eq!((callee.waiting.len(), callee.ignored()), (0, 3));
    }
}
