//! Strangers become participants: hello, cookie, connect, connected.

use super::{MAX_PASSED_ON, Notice, Relay, SWEEP_EVERY};
use crate::access::Rights;
use crate::addresses::{AddressPool, NoAddress, Owner};
use crate::index::ComtreeIndex;
use crate::ports::Peer;
use crate::replies::{STRANGERS, TURNED_AWAY};
use crate::shape::{DatagramClass, PeerClass, Shape};
use crate::told::{Passed, Told};
use canopy_session::{Answer, Knock, Proof, SessionIndex, Terms, refuse};
use canopy_wire::{
    Address, Comtree, Connect, DropReason, GroupKeyHeld, GroupKeyNumber, Join, LeaveReason,
    MAX_DATAGRAM, Packet, Path, RefusedReason, Suite, Time,
};
use core::hash::BuildHasher;

/// Somebody who has proved its path and wants a session.
#[derive(Clone, Copy)]
pub(super) struct Applicant<'a> {
    connect: Connect<'a>,
    pub(super) path: Path,
    pub(super) proof: Proof,
    pub(super) passed: Passed,
    pub(super) now: Time,
}

/// What an applicant is let in with.
struct Entry {
    comtree: Comtree,
    index: ComtreeIndex,
    knock: Knock,
    terms: Terms,
    rights: Option<Box<Rights>>,
    owner: Owner,
    /// Its token names the address.
    is_pinned: bool,
}

impl Relay {
    pub(super) fn take_hello(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        // What is not answered anyway costs no cookie.
        if !self.strangers.holds_one(&STRANGERS, now) {
            self.counters.drop(DropReason::RepliesFull);
            return Ok(());
        }
        if !self.may_answer(now, from) {
            self.counters.drop(DropReason::RepliesRate);
            return Ok(());
        }
        let mut answer = Answer::new();
        self.sessions.hello(now, from, packet, &mut answer)?;
        self.push_to_stranger(now, from, answer.bytes());
        Ok(())
    }

    /// Takes a connect that came here, or that another data thread has passed on.
    pub(super) fn take_connect(
        &mut self,
        now: Time,
        path: Path,
        packet: &Packet<'_>,
        passed: Passed,
    ) -> Result<(), DropReason> {
        // What costs least comes first: the cookie, what is known of the path, then the message.
        let (connect, proof) = self.sessions.prove(now, path, packet)?;
        let applicant = Applicant { connect, path, proof, passed, now };
        if self.is_draining {
            return self.refuse_for(&applicant, RefusedReason::Draining, DropReason::Draining);
        }
        if let Some(session) = self.sessions.opened_by(path, proof.nonce) {
            return self.welcome_again(session, path);
        }
        if self.sessions.is_copy(path, proof) {
            return Err(DropReason::Stale);
        }
        // What the first data thread has let pass is not counted again.
        if passed == Passed::default() {
            self.pass_the_gate(&applicant)?;
        }
        let Ok(knock) = self.sessions.knock(&connect) else {
            return self.refuse_for(&applicant, RefusedReason::Key, DropReason::Forged);
        };
        let link_join = knock.link_join().inspect_err(|_| self.note_failure(now))?;
        if let Some(join) = link_join {
            return self.take_call(now, &applicant, knock, join);
        }
        knock.join().inspect_err(|_| self.note_failure(now))?;
        if self.sessions.is_stale(path, knock.holder(), proof) {
            return Err(DropReason::Stale);
        }
        // A neighbour needs no such place: whoever shares its ip must not keep its link down. Whoever is
        // asked next counts anew, because several may be on their way from one ip; but who is brought
        // may have its older session at the thread that it asked.
        if !passed.was_brought && !self.may_have_a_session(path, knock.holder()) {
            let (reason, drop) = (RefusedReason::TooMany, DropReason::TooManySessions);
            return self.refuse_for(&applicant, reason, drop);
        }
        match self.entry_of(&applicant, knock) {
            Ok(entry) => self.let_in_or_pass_on(&applicant, entry),
            Err((reason, drop)) => self.refuse_for(&applicant, reason, drop),
        }
    }

    /// What an applicant may be let in with, whose message was opened.
    fn entry_of(
        &mut self,
        applicant: &Applicant<'_>,
        knock: Knock,
    ) -> Result<Entry, (RefusedReason, DropReason)> {
        let Applicant { path, now, .. } = *applicant;
        let malformed = (RefusedReason::Credentials, DropReason::Malformed);
        let join = knock.join().map_err(|_| malformed)?;
        let Join { comtree, features, suites, slow_suites, max_datagram, .. } = join;
        let index = self.comtrees.find(comtree);
        let index = index.ok_or((RefusedReason::UnknownComtree, DropReason::UnknownComtree))?;
        let entry = self.comtrees.get(index);
        // What is sealed for all, all must be able to open.
        let group_suite = entry.group_keys.as_ref().map(|keys| keys.suite());
        let opens_all = group_suite.is_none_or(|suite| suites & suite.bit() != 0);
        let suite = Suite::agreed(suites, slow_suites | self.slow_suites).filter(|_| opens_all);
        let suite = suite.ok_or((RefusedReason::Credentials, DropReason::BadCredentials))?;
        let (site, downlink) = (entry.addresses.site(), entry.downlink);
        // What is one datagram for all does not say whose copy it is.
        if features & Join::SHARES != 0 && downlink.is_shared() {
            return Err((RefusedReason::CannotShare, DropReason::CannotShare));
        }
        let rights = self.rights_of(now, &join, knock.participant(), index).map_err(|why| {
            self.note(Notice::TokenRefused { comtree, path, why });
            (RefusedReason::Token, DropReason::BadToken)
        })?;
        let pinned = rights.as_ref().and_then(|rights| rights.address());
        if pinned.is_some_and(|address| !AddressPool::may_have(site, address)) {
            return Err((RefusedReason::AddressTaken, DropReason::AddressTaken));
        }
        let wanted = pinned.or_else(|| self.sessions.seat_of(now, &knock));
        let datagrams = DatagramClass::of(max_datagram.min(self.max_datagram));
        let terms = Terms {
            // What it wants; what it gets is settled when there is a place.
            address: wanted.unwrap_or(Address::UNSPECIFIED),
            suite,
            downlink,
            max_datagram: datagrams.max_datagram() as u16,
            features: features & Join::SHARES,
        };
        let owner = self.owners.hash_one(knock.participant());
        let is_pinned = pinned.is_some();
        Ok(Entry { comtree, index, knock, terms, rights, owner, is_pinned })
    }

    /// Lets an applicant in, or hands it on to the data thread whose the address is that it wants.
    fn let_in_or_pass_on(
        &mut self,
        applicant: &Applicant<'_>,
        entry: Entry,
    ) -> Result<(), DropReason> {
        let Applicant { proof, passed, now, .. } = *applicant;
        let token = entry.rights.as_ref().map(|rights| rights.token());
        if token.is_some_and(|token| self.is_used_since(token, proof)) {
            return Err(DropReason::Stale);
        }
        // No address reads as one of site 0.
        let wanted = Some(entry.terms.address).filter(|it| *it != Address::UNSPECIFIED);
        let elsewhere = wanted.and_then(|wanted| self.thread_of(entry.comtree, wanted));
        match elsewhere.filter(|_| passed == Passed::default()) {
            Some(thread) => self.bring_to(thread, applicant),
            None => self.make_room(now, applicant, entry),
        }
    }

    /// The participant sent connect twice: its answer was lost, or is late.
    fn welcome_again(&mut self, session: SessionIndex, path: Path) -> Result<(), DropReason> {
        if !self.push_welcome(session, path) {
            return Err(DropReason::Stale);
        }
        self.tell_of_move(session);
        Ok(())
    }

    /// Answers a connect; false if its answer is no longer kept. If there is no room, the connect
    /// comes again.
    pub(super) fn push_welcome(&mut self, session: SessionIndex, path: Path) -> bool {
        let Some(welcome) = self.sessions.welcome(session) else { return false };
        if !self.replies.push_copy(path, welcome) {
            self.counters.drop(DropReason::RepliesFull);
        }
        true
    }

    /// Turns away those of whom too many come from one place, before they cost a key agreement.
    fn pass_the_gate(&mut self, applicant: &Applicant<'_>) -> Result<(), DropReason> {
        let Applicant { path, proof, now, .. } = *applicant;
        if self.may_shake_hands(now, path) {
            return Ok(());
        }
        // One ip:port cannot take what others may be told.
        if self.may_answer(now, path) && self.turned_away.take(&TURNED_AWAY, now, 1) {
            let mut answer = Answer::new();
            refuse(proof.nonce, Comtree(0), RefusedReason::TooMany, &mut answer);
            self.push_to_stranger(now, path, answer.bytes());
        }
        Err(DropReason::TooManyHandshakes)
    }

    /// Takes a place and an address for an applicant, and lets it in; or asks the next data thread.
    fn make_room(
        &mut self,
        now: Time,
        applicant: &Applicant<'_>,
        mut entry: Entry,
    ) -> Result<(), DropReason> {
        let Applicant { path, proof, .. } = *applicant;
        if let Some(older) = self.sessions.at(path, entry.knock.holder()) {
            let ended = self.sessions.end(older);
            self.end(now, ended);
        }
        // Sent twice, and passed on before: another data thread may have made it a member since, and
        // there must not be two of it.
        if self.passed_on.contains(&(proof.nonce, path)) {
            return self.ask_next_thread(applicant, DropReason::SessionsFull);
        }
        let Entry { comtree, index, owner, is_pinned, .. } = entry;
        let wanted = entry.terms.address;
        self.relieve(now, (comtree, wanted), owner, proof)?;
        if !self.places.take(index) {
            // One of them may be the applicant's own, on another data thread.
            return self.ask_next_thread(applicant, DropReason::SessionsFull);
        }
        let is_taken = self.ports.find(comtree, wanted).is_some();
        let addresses = &mut self.comtrees.get_mut(index).addresses;
        let taken = if is_pinned {
            let is_its = !is_taken && addresses.take_pinned(wanted);
            is_its.then_some(wanted).ok_or(NoAddress::Anothers)
        } else if addresses.take_this(now, wanted, owner) {
            Ok(wanted)
        } else {
            addresses.take(now)
        };
        let address = match taken {
            Ok(address) => address,
            Err(why) => {
                self.places.give_back(index);
                return match why {
                    NoAddress::AllTaken => {
                        self.ask_next_thread(applicant, DropReason::SessionsFull)
                    }
                    NoAddress::AllResting => {
                        self.ask_next_thread(applicant, DropReason::AddressesResting)
                    }
                    NoAddress::Anothers => {
                        let (reason, drop) =
                            (RefusedReason::AddressTaken, DropReason::AddressTaken);
                        self.refuse_for(applicant, reason, drop)
                    }
                };
            }
        };
        entry.terms.address = address;
        let Some(session) = self.let_in(now, applicant, entry) else {
            self.comtrees.get_mut(index).addresses.give_back(now, address, owner);
            self.places.give_back(index);
            return self.refuse_for(applicant, RefusedReason::Full, DropReason::SessionsFull);
        };
        self.note(Notice::Joined { comtree, address, path });
        self.tell_of_move(session);
        Ok(())
    }

    /// Ends the applicant's own older session that has the address which it wants: whoever shakes
    /// hands last is who has an identity. An applicant that proved its path before that session did
    /// is a late copy.
    fn relieve(
        &mut self,
        now: Time,
        (comtree, address): (Comtree, Address),
        owner: Owner,
        proof: Proof,
    ) -> Result<(), DropReason> {
        let Some(port) = self.ports.find(comtree, address) else { return Ok(()) };
        let Some(session) = self.session_of(port) else { return Ok(()) };
        if self.ports.get(port).is_none_or(|port| port.owner != owner) {
            return Ok(());
        }
        if self.sessions.proof(session).is_some_and(|newer| newer > proof) {
            return Err(DropReason::Stale);
        }
        if let Some(path) = self.sessions.path(session) {
            self.dismiss(port, path, LeaveReason::Elsewhere);
        }
        self.leave(now, port);
        Ok(())
    }

    /// Opens a session with a port on a comtree, and answers. `None` if a table is full.
    fn let_in(
        &mut self,
        now: Time,
        applicant: &Applicant<'_>,
        entry: Entry,
    ) -> Option<SessionIndex> {
        let Applicant { path, proof, .. } = *applicant;
        let Entry { comtree, index, knock, terms, rights, owner, .. } = entry;
        let session = self.sessions.open(now, path, proof, knock, &terms)?;
        let datagrams = DatagramClass::of(terms.max_datagram);
        let shape = Shape { class: PeerClass::Participant, datagrams };
        let (peer, address) = (Peer::Participant(session), terms.address);
        let Some(port) = self.open_port(now, peer, shape, (comtree, index), address) else {
            // It was never a member, so nothing hangs on it.
            let _ = self.sessions.end(session);
            return None;
        };
        if let Some(port) = self.ports.get_mut(port) {
            port.owner = owner;
        }
        if let Some(rights) = rights {
            self.take_token_from_others(now, rights.token(), proof);
            self.by_token.insert(rights.token(), port);
            self.set_budget(now, port, rights.budget(self.budgets.member));
            self.ports.give_rights(port, rights);
        }
        self.comtrees.get_mut(index).participants += 1;
        self.arrived_here(comtree, terms.address);
        self.counters.sessions_opened += 1;
        self.count_in(session, path.remote.ip());
        self.places.hold(session, index);
        self.sweep_at.get_or_insert(now + SWEEP_EVERY);
        self.push_welcome(session, path);
        // Right behind it, so that the participant need not ask; if there is no room, it does.
        let none = GroupKeyNumber::NONE;
        if self.replies.room().is_some()
            && let Err(reason) =
                self.give_keys(path, port, GroupKeyHeld { newest: none, lacks: none })
        {
            self.counters.drop(reason);
        }
        Some(session)
    }

    /// Passes an applicant on to the data thread whose the address is that it wants.
    fn bring_to(&mut self, thread: u16, applicant: &Applicant<'_>) -> Result<(), DropReason> {
        self.hand_on(applicant, thread, Passed { was_brought: true, ..applicant.passed })
    }

    /// The addresses of a comtree are the data threads', the places are the relay's: while there
    /// is a place, some thread has an address. And while there is none, some thread may have an
    /// older session at the applicant's path, which it ends. Whom all have been asked for in vain, is
    /// refused for `reason`.
    fn ask_next_thread(
        &mut self,
        applicant: &Applicant<'_>,
        reason: DropReason,
    ) -> Result<(), DropReason> {
        let Applicant { path, proof, passed, .. } = *applicant;
        let next = Passed { asked: passed.asked + 1, ..passed };
        if next.asked >= self.siblings.threads() {
            return self.refuse_for(applicant, RefusedReason::Full, reason);
        }
        self.hand_on(applicant, self.siblings.next_thread(), next)?;
        // The key agreement was for nothing here, and the next thread does not ask the gate.
        self.note_failure(applicant.now);
        let passed = (proof.nonce, path);
        if !self.passed_on.contains(&passed) {
            if self.passed_on.len() == MAX_PASSED_ON {
                self.passed_on.pop_front();
            }
            self.passed_on.push_back(passed);
        }
        Ok(())
    }

    /// Hands a connect on to another data thread.
    pub(super) fn hand_on(
        &mut self,
        applicant: &Applicant<'_>,
        thread: u16,
        passed: Passed,
    ) -> Result<(), DropReason> {
        let Applicant { connect, path, .. } = *applicant;
        let mut datagram = [0; MAX_DATAGRAM];
        let len = connect.encode(&mut datagram)?;
        let told = Told::Connect { path, passed, datagram: &datagram[..len] };
        if !self.siblings.hand_on(thread, told) {
            return self.refuse_for(applicant, RefusedReason::Full, DropReason::SessionsFull);
        }
        self.counters.connects_passed += 1;
        Ok(())
    }

    pub(super) fn refuse_for(
        &mut self,
        applicant: &Applicant<'_>,
        reason: RefusedReason,
        drop: DropReason,
    ) -> Result<(), DropReason> {
        // All others have cost a key agreement for nothing.
        if drop != DropReason::Draining {
            self.note_failure(applicant.now);
        }
        let mut answer = Answer::new();
        refuse(applicant.proof.nonce, Comtree(0), reason, &mut answer);
        self.reply_to_stranger(applicant.now, applicant.path, answer.bytes());
        Err(drop)
    }
}
