//! What servers have had a relay do with members, as the relay has answered them: whoever is thrown
//! out or restricted has no such update accepted any more, and is sent none.
//!
//! It knows sessions, not tokens, so it asks for less than a relay must do: a restriction that goes on
//! in the next session of the same token is forgotten here.

use canopy_wire::{
    Acts, Address, NumberedRequest, Packet, Record, Request, RequestStatus, Response, Restriction,
    Verdict,
};
use std::collections::{BTreeMap, BTreeSet};

/// A session, by the nonce of its handshake.
pub(crate) type Nonce = u64;

/// What a server has asked for and was not told of yet.
#[derive(Debug)]
struct Asked {
    asker: Nonce,
    sequence: u32,
    whom: Nonce,
    verdict: Verdict,
}

/// What servers have said of the sessions of a relay.
#[derive(Debug, Default)]
pub(crate) struct Conducts {
    /// The last request of each session that the relay has taken, and what it was answered.
    last: BTreeMap<Nonce, (u32, Option<RequestStatus>)>,
    asked: Vec<Asked>,
    thrown_out: BTreeSet<Nonce>,
    restricted: BTreeMap<Nonce, Vec<Restriction>>,
}

impl Conducts {
    /// The relay has taken a request. `of_address` says whose session an address of the asker's
    /// comtree is.
    pub(crate) fn asks(
        &mut self,
        asker: Nonce,
        packet: &Packet<'_>,
        of_address: impl Fn(Address) -> Option<Nonce>,
    ) {
        let Ok(NumberedRequest { sequence, request }) = NumberedRequest::decode(packet) else {
            return;
        };
        if self.last.get(&asker).is_some_and(|(last, _)| *last == sequence) {
            return;
        }
        self.last.insert(asker, (sequence, None));
        match request {
            // Another token may have another conduct.
            Request::Renew(_) => self.forgive(asker, None),
            Request::Judge(whom, verdict) => {
                let Some(whom) = of_address(whom) else { return };
                if let Verdict::Restore(restriction) = verdict {
                    return self.forgive(whom, Some(restriction));
                }
                self.asked.push(Asked { asker, sequence, whom, verdict });
            }
        }
    }

    /// Forgets one restriction of a member, or all, and what was asked of it. A relay may take it
    /// back before it has answered what came before.
    fn forgive(&mut self, whom: Nonce, only: Option<Restriction>) {
        let is_meant = |one: &Restriction| only.is_none_or(|only| only == *one);
        if let Some(restrictions) = self.restricted.get_mut(&whom) {
            restrictions.retain(|one| !is_meant(one));
        }
        let stays = |asked: &Asked| match asked.verdict {
            Verdict::Restrict(restriction) => asked.whom != whom || !is_meant(&restriction),
            _ => true,
        };
        self.asked.retain(stays);
    }

    /// The relay answers a request. False if it has answered the same one otherwise.
    pub(crate) fn answers(&mut self, asker: Nonce, packet: &Packet<'_>) -> bool {
        let Ok(Response { sequence, status }) = Response::decode(packet) else { return false };
        if let Some((last, before)) = self.last.get_mut(&asker)
            && *last == sequence
            && *before.get_or_insert(status) != status
        {
            return false;
        }
        let is_this = |asked: &Asked| asked.asker == asker && asked.sequence == sequence;
        let Some(at) = self.asked.iter().position(is_this) else { return true };
        let Asked { whom, verdict, .. } = self.asked.swap_remove(at);
        match verdict {
            _ if status != RequestStatus::Done => {}
            Verdict::ThrowOut => {
                self.thrown_out.insert(whom);
            }
            Verdict::Restrict(restriction) => {
                self.restricted.entry(whom).or_default().push(restriction);
            }
            Verdict::Restore(_) => {}
        }
        true
    }

    /// A session has ended for good.
    pub(crate) fn forget(&mut self, whom: Nonce) {
        self.last.remove(&whom);
        self.thrown_out.remove(&whom);
        self.restricted.remove(&whom);
        self.asked.retain(|asked| asked.asker != whom && asked.whom != whom);
    }

    /// Whether a server had the relay throw a member out.
    pub(crate) fn is_thrown_out(&self, whom: Nonce) -> bool {
        self.thrown_out.contains(&whom)
    }

    /// Whether a member may still publish this.
    pub(crate) fn may_publish(&self, whom: Nonce, record: &Record<'_>) -> bool {
        let forbids = |one: &Restriction| match record.dst.group() {
            Some(group) => {
                one.acts.any_of(Acts::PUBLISH) && (one.first..=one.last).contains(&group)
            }
            None => one.acts.any_of(Acts::UNICAST),
        };
        !self.of(whom).any(forbids)
    }

    /// Whether a member may still be sent this.
    pub(crate) fn may_hear(&self, whom: Nonce, record: &Record<'_>) -> bool {
        let Some(group) = record.dst.group() else { return true };
        let forbids = |one: &Restriction| {
            one.acts.any_of(Acts::SUBSCRIBE) && (one.first..=one.last).contains(&group)
        };
        !self.of(whom).any(forbids)
    }

    fn of(&self, whom: Nonce) -> impl Iterator<Item = &Restriction> {
        self.restricted.get(&whom).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::{Comtree, Group, Level, MAX_DATAGRAM, SessionId};

    const SERVER: Nonce = 1;
    const MEMBER: Nonce = 2;
    const WHOM: Address = Address::unicast(1, 70);

    fn packet(write: impl FnOnce(&mut [u8]) -> usize, read: impl FnOnce(&Packet<'_>)) {
        let mut out = [0; MAX_DATAGRAM];
        let len = write(&mut out);
        read(&Packet::new_checked(&out[..len]).unwrap());
    }

    fn asks(conducts: &mut Conducts, asker: Nonce, sequence: u32, request: Request<'_>) {
        let asked = NumberedRequest { sequence, request };
        let write = |out: &mut [u8]| asked.encode(Comtree(1), SessionId::new(5), out).unwrap();
        let of_address = |address| (address == WHOM).then_some(MEMBER);
        packet(write, |packet| conducts.asks(asker, packet, of_address));
    }

    fn answers(conducts: &mut Conducts, sequence: u32, status: RequestStatus) {
        let response = Response { sequence, status };
        let write = |out: &mut [u8]| response.encode(Comtree(1), SessionId::new(5), out).unwrap();
        packet(write, |packet| assert!(conducts.answers(SERVER, packet)));
    }

    fn restriction(acts: Acts) -> Restriction {
        Restriction::new(acts, Group::new(3), Group::new(4))
    }

    /// Whether the member may publish to a group, and hear it.
    fn may(conducts: &Conducts, group: u32) -> (bool, bool) {
        let record = Record::new(Group::new(group).address(), 0, b"an update");
        let record = Record { level: Level(0), ..record };
        (conducts.may_publish(MEMBER, &record), conducts.may_hear(MEMBER, &record))
    }

    #[test]
    fn a_verdict_holds_once_its_server_is_told_that_it_is_done() {
        let mut conducts = Conducts::default();
        let judged = Request::Judge(WHOM, Verdict::Restrict(restriction(Acts::PUBLISH)));
        asks(&mut conducts, SERVER, 1, judged);
        assert_eq!(may(&conducts, 3), (true, true), "it may be on its way");
        answers(&mut conducts, 1, RequestStatus::Full);
        assert_eq!(may(&conducts, 3), (true, true), "there was no room");
        asks(&mut conducts, SERVER, 2, judged);
        answers(&mut conducts, 2, RequestStatus::Done);
        assert_eq!([3, 5].map(|group| may(&conducts, group)), [(false, true), (true, true)]);
        let hushed = Request::Judge(WHOM, Verdict::Restrict(restriction(Acts::SUBSCRIBE)));
        asks(&mut conducts, SERVER, 3, hushed);
        answers(&mut conducts, 3, RequestStatus::Done);
        assert_eq!(may(&conducts, 4), (false, false));
        asks(&mut conducts, SERVER, 4, Request::Judge(WHOM, Verdict::ThrowOut));
        assert!(!conducts.is_thrown_out(MEMBER));
        answers(&mut conducts, 4, RequestStatus::Done);
        assert!(conducts.is_thrown_out(MEMBER));
    }

    #[test]
    fn a_second_answer_that_is_another_is_found() {
        let mut conducts = Conducts::default();
        asks(&mut conducts, SERVER, 1, Request::Judge(WHOM, Verdict::ThrowOut));
        answers(&mut conducts, 1, RequestStatus::Done);
        asks(&mut conducts, SERVER, 1, Request::Judge(WHOM, Verdict::ThrowOut));
        answers(&mut conducts, 1, RequestStatus::Done);
        let other = Response { sequence: 1, status: RequestStatus::UnknownAddress };
        let write = |out: &mut [u8]| other.encode(Comtree(1), SessionId::new(5), out).unwrap();
        packet(write, |packet| assert!(!conducts.answers(SERVER, packet)));
    }

    #[test]
    fn what_is_taken_back_or_left_behind_with_a_token_binds_nobody() {
        let mute = restriction(Acts::PUBLISH);
        let restore = Request::Judge(WHOM, Verdict::Restore(mute));
        for (asker, request) in [(SERVER, restore), (MEMBER, Request::Renew(b"another"))] {
            let mut conducts = Conducts::default();
            let judged = Request::Judge(WHOM, Verdict::Restrict(mute));
            asks(&mut conducts, SERVER, 1, judged);
            answers(&mut conducts, 1, RequestStatus::Done);
            assert_eq!(may(&conducts, 3), (false, true));
            asks(&mut conducts, asker, 2, request);
            assert_eq!(may(&conducts, 3), (true, true));
            // It comes, and is answered, after it was taken back.
            asks(&mut conducts, SERVER, 3, judged);
            asks(&mut conducts, asker, 4, request);
            answers(&mut conducts, 3, RequestStatus::Done);
            assert_eq!(may(&conducts, 3), (true, true));
        }
    }
}
