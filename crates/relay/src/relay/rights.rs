//! Tokens: who is let in by them, how long they hold, and what servers say of their bearers.

use super::{MAX_UNSAID, Notice, Relay, SESSION_SWEEPS};
use crate::access::{Conduct, Rights, TokenId, TokenRefusal, Trust, time_of_day};
use crate::index::{ComtreeIndex, PortIndex};
use crate::meters::RENEWAL_COST;
use crate::told::Told;
use canopy_session::{Proof, PublicKey};
use canopy_token::{TokenError, UnixTime};
use canopy_wire::{
    Address, Comtree, DropReason, Join, LeaveReason, NumberedRequest, Packet, Path, Request,
    RequestStatus, Response, Time, Verdict, next_sequence,
};
use std::sync::Arc;

impl Relay {
    /// What an applicant may do on the comtree that it asks for; `None` if this relay lets in
    /// whoever comes.
    pub(super) fn rights_of(
        &mut self,
        now: Time,
        join: &Join<'_>,
        key: Option<PublicKey>,
        comtree: ComtreeIndex,
    ) -> Result<Option<Box<Rights>>, TokenRefusal> {
        let Some(trust) = &self.trust else { return Ok(None) };
        if join.token.is_empty() {
            return Err(TokenRefusal::Missing);
        }
        let token = core::str::from_utf8(join.token);
        let token = token.map_err(|_| TokenRefusal::Invalid(TokenError::NotAToken))?;
        let verified = trust.keys.verify(token, time_of_day(self.origin, now), &trust.revoked);
        let verified = verified.map_err(TokenRefusal::Invalid)?;
        if key != Some(verified.claims.client_key) {
            return Err(TokenRefusal::OtherKey);
        }
        if *verified.claims.grant.world != *self.comtrees.get(comtree).world {
            return Err(TokenRefusal::OtherWorld(verified.claims.grant.world));
        }
        let own_site = self.comtrees.get(comtree).addresses.site();
        if let Some(site) = verified.claims.grant.site.filter(|site| *site != own_site) {
            return Err(TokenRefusal::OtherSite(site));
        }
        let rights = Rights::new(self.origin, verified, join.comtree, &mut self.granted);
        let mut rights = rights.ok_or(TokenRefusal::OtherComtree(join.comtree))?;
        if let Some(conduct) = self.conducts.of(rights.token()) {
            if conduct.is_thrown_out {
                return Err(TokenRefusal::ThrownOut);
            }
            rights.restrict(&conduct.restrictions);
        }
        let gone = rights.address().filter(|at| self.dismissals.has(now, join.comtree, *at));
        gone.map_or(Ok(Some(Box::new(rights))), |at| Err(TokenRefusal::Dismissed(at)))
    }

    /// Whether a session here joined by a token, and by a later proof.
    pub(super) fn is_used_since(&self, token: TokenId, proof: Proof) -> bool {
        self.proof_by_token(token).is_some_and(|(_, own)| own >= proof)
    }

    fn proof_by_token(&self, token: TokenId) -> Option<(PortIndex, Proof)> {
        let port = *self.by_token.get(&token)?;
        Some((port, self.proof_of_member(port)?))
    }

    /// Whoever joined by this token before has lost it, here and on the other data threads.
    pub(super) fn take_token_from_others(&mut self, now: Time, token: TokenId, proof: Proof) {
        self.end_older_by_token(now, token, proof);
        self.tell_of_token(token, proof);
    }

    fn tell_of_token(&mut self, token: TokenId, proof: Proof) {
        self.say(Told::TokenUsed { token, proof });
    }

    /// Another data thread has let somebody in by a token.
    pub(super) fn hear_of_token(&mut self, now: Time, token: TokenId, proof: Proof) {
        // The other may not have known yet of a newer session here.
        if let Some(newer) = self.end_older_by_token(now, token, proof) {
            self.tell_of_token(token, newer);
        }
    }

    /// Ends the session that joined by a token, unless by a newer proof, which it returns. Of two
    /// with one proof, which only their owner can bring about, both end.
    fn end_older_by_token(&mut self, now: Time, token: TokenId, proof: Proof) -> Option<Proof> {
        let (port, own) = self.proof_by_token(token)?;
        if own > proof {
            return Some(own);
        }
        self.send_away(now, port, LeaveReason::Elsewhere);
        None
    }

    fn proof_of_member(&self, port: PortIndex) -> Option<Proof> {
        self.sessions.proof(self.session_of(port)?)
    }

    pub(super) fn path_of_member(&self, port: PortIndex) -> Option<Path> {
        self.sessions.path(self.session_of(port)?)
    }

    /// Believes other keys from now on. Whose token is taken no more is sent away.
    pub(super) fn replace_trust(&mut self, now: Time, trust: Arc<Trust>, origin: UnixTime) {
        for port in 0..self.ports.high_water() {
            let is_out = self.session_of(port).is_some()
                && !self.rights(port).is_some_and(|rights| rights.is_trusted(&trust));
            if is_out {
                self.send_away(now, port, LeaveReason::Revoked);
            }
        }
        (self.trust, self.origin) = (Some(trust), origin);
    }

    fn rights(&self, port: PortIndex) -> Option<&Rights> {
        self.ports.get(port)?.rights.as_deref()
    }

    /// Sends those away whose tokens have ended, a part of the ports each time.
    pub(super) fn end_by_tokens(&mut self, now: Time) {
        if self.trust.is_none() {
            return;
        }
        let ports = self.ports.high_water();
        for _ in 0..(ports / SESSION_SWEEPS + 1).min(ports) {
            self.token_sweep = (self.token_sweep + 1) % ports;
            let port = self.token_sweep;
            if self.rights(port).is_some_and(|rights| rights.ends() <= now) {
                self.send_away(now, port, LeaveReason::Revoked);
            }
        }
    }

    /// Takes what a member asks for, once, and answers as often as it is asked.
    pub(super) fn take_request(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let index = self.admit(now, from, packet)?;
        let NumberedRequest { sequence, request } = NumberedRequest::decode(packet)?;
        let session = self.session_of(index).ok_or(DropReason::UnexpectedKind)?;
        let port = self.ports.get(index).ok_or(DropReason::UnknownSource)?;
        let (last, done) = port.last_request;
        let repeats = sequence == last && last != 0;
        if !repeats && sequence != next_sequence(last) {
            return Err(DropReason::RequestOrder);
        }
        let is_renewal = matches!(request, Request::Renew(_)) && !repeats;
        self.charge_request(now, index, if is_renewal { RENEWAL_COST } else { 1 })?;
        let status = if repeats { done } else { self.answer(now, index, request) };
        if let Some(port) = self.ports.get_mut(index) {
            port.last_request = (sequence, status);
        }
        let (header, room) = (packet.header(), self.replies.room().ok_or(DropReason::RepliesFull)?);
        let len = Response { sequence, status }.encode(header.comtree, header.session, room)?;
        let len = self.sessions.seal(session, room, len).ok_or(DropReason::RepliesFull)?;
        self.replies.push(from, len);
        match status {
            RequestStatus::NotAllowed if !repeats => Err(DropReason::RequestNotAllowed),
            RequestStatus::Token if !repeats => Err(DropReason::BadToken),
            _ => Ok(()),
        }
    }

    fn answer(&mut self, now: Time, asker: PortIndex, request: Request<'_>) -> RequestStatus {
        let (whom, verdict) = match request {
            Request::Renew(token) => return self.renew(now, asker, token),
            Request::Judge(whom, verdict) => (whom, verdict),
        };
        let Some(port) = self.ports.get(asker) else { return RequestStatus::UnknownAddress };
        let comtree = port.comtree;
        if !port.rights.as_ref().is_some_and(|rights| rights.is_server()) {
            return RequestStatus::NotAllowed;
        }
        if self.thread_of(comtree, whom).is_none() {
            return self.take_verdict(now, comtree, whom, verdict);
        }
        let told = self.siblings.tell(Told::Verdict { comtree, address: whom, verdict });
        if told { RequestStatus::Done } else { RequestStatus::Full }
    }

    /// Goes on by another token of the same key.
    fn renew(&mut self, now: Time, port: PortIndex, token: &[u8]) -> RequestStatus {
        let refused = RequestStatus::Token;
        let session = self.session_of(port);
        let key = session.and_then(|session| self.sessions.participant_key(session));
        let Some((comtree, index)) = self.ports.get(port).map(|p| (p.comtree, p.comtree_index))
        else {
            return refused;
        };
        let (features, max_datagram, suites, slow_suites) = (0, 0, 0, 0);
        let ticket = &[];
        let join = Join { comtree, features, max_datagram, suites, slow_suites, token, ticket };
        let rights = match self.rights_of(now, &join, key, index) {
            Ok(Some(rights)) => rights,
            Ok(None) => return RequestStatus::Done,
            Err(why) => {
                if let Some(path) = self.path_of_member(port) {
                    self.note(Notice::TokenRefused { comtree, path, why });
                }
                return refused;
            }
        };
        let Some(proof) = self.proof_of_member(port) else { return refused };
        let (token, ends) = (rights.token(), rights.ends());
        let is_newer = |(other, own): (PortIndex, Proof)| other != port && own >= proof;
        if self.proof_by_token(token).is_some_and(is_newer) {
            return refused;
        }
        let before = self.rights(port).map(|before| before.token());
        if let Some(before) = before.filter(|before| *before != token) {
            if !self.keep_blame(now, before, token, ends) {
                return RequestStatus::Full;
            }
            self.by_token.remove(&before);
        }
        // By the token that it has already it takes nothing from anybody.
        if before != Some(token) {
            self.take_token_from_others(now, token, proof);
            self.by_token.insert(token, port);
        }
        self.set_budget(now, port, rights.budget(self.budgets.member));
        self.give_rights(port, rights);
        // What was said of its bearer before goes on.
        self.follow_conduct(now, token);
        RequestStatus::Done
    }

    /// What servers have said of the bearer of a token is said of another token of its, too. False if
    /// there is no room.
    fn keep_blame(&mut self, now: Time, before: TokenId, token: TokenId, ends: Time) -> bool {
        let conduct = self.conducts.of(before);
        let restrictions = conduct.map(|conduct| conduct.restrictions.clone()).unwrap_or_default();
        restrictions.into_iter().all(|restriction| {
            self.blame(now, token, ends, Verdict::Restrict(restriction)) == RequestStatus::Done
        })
    }

    /// A member may do this from now on; subscriptions beyond it end.
    fn give_rights(&mut self, index: PortIndex, rights: Box<Rights>) {
        self.table
            .keep_of_port(index, |group, level| rights.check_subscription(group, level).is_ok());
        self.ports.give_rights(index, rights);
    }

    /// Does with a member of this data thread what a server says.
    pub(super) fn take_verdict(
        &mut self,
        now: Time,
        comtree: Comtree,
        whom: Address,
        verdict: Verdict,
    ) -> RequestStatus {
        let port = self.ports.find(comtree, whom);
        let Some(rights) = port.and_then(|port| self.rights(port)) else {
            return RequestStatus::UnknownAddress;
        };
        let (token, ends) = (rights.token(), rights.ends());
        self.blame(now, token, ends, verdict)
    }

    /// Notes what a server has said of the bearer of a token, here and on the other data threads.
    fn blame(&mut self, now: Time, token: TokenId, ends: Time, verdict: Verdict) -> RequestStatus {
        let has_room = self.unsaid.len() < MAX_UNSAID;
        if !has_room || !self.hear_of_conduct(now, token, ends, verdict) {
            return RequestStatus::Full;
        }
        self.say(Told::Conduct { token, ends, verdict });
        RequestStatus::Done
    }

    /// Tells the other data threads of a token, now or when there is room.
    fn say(&mut self, told: Told<'static>) {
        if self.unsaid.len() >= MAX_UNSAID {
            return self.counters.drop(DropReason::SiblingsFull);
        }
        self.unsaid.push_back(told);
        self.say_all();
    }

    /// Tells the other data threads what they have not been told of tokens, as far as there is room;
    /// the next sweep goes on.
    pub(super) fn say_all(&mut self) {
        while let Some(told) = self.unsaid.front()
            && self.siblings.tell(*told)
        {
            self.unsaid.pop_front();
        }
    }

    /// Notes what a server has said of the bearer of a token, who may be here. False if there is
    /// no room.
    pub(super) fn hear_of_conduct(
        &mut self,
        now: Time,
        token: TokenId,
        ends: Time,
        verdict: Verdict,
    ) -> bool {
        let is_noted = self.conducts.note(now, token, ends, verdict);
        if is_noted {
            self.follow_conduct(now, token);
        } else if let (Verdict::ThrowOut, Some(port)) = (verdict, self.by_token.get(&token)) {
            // It may come back, but not stay.
            self.send_away(now, *port, LeaveReason::ThrownOut);
        }
        is_noted
    }

    /// Does with the bearer of a token, who may be here, what servers have said.
    fn follow_conduct(&mut self, now: Time, token: TokenId) {
        let Some(port) = self.by_token.get(&token).copied() else { return };
        let Some(Conduct { is_thrown_out, restrictions, .. }) = self.conducts.of(token) else {
            return;
        };
        if *is_thrown_out {
            self.send_away(now, port, LeaveReason::ThrownOut);
        } else if let Some(rights) = self.rights(port) {
            let mut rights = Box::new(rights.clone());
            rights.restrict(restrictions);
            self.give_rights(port, rights);
        }
    }
}
