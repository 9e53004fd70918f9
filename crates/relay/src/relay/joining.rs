//! Strangers become participants: hello, cookie, connect, connected.

use super::{MAX_PASSED_ON, Notice, Relay, SWEEP_EVERY};
use crate::access::Rights;
use crate::comtrees::ComtreeIndex;
use crate::ports::{DatagramClass, Peer, PeerClass, Shape};
use crate::siblings::Told;
use canopy_session::{Answer, Knock, Proof, SessionIndex, Terms, refuse};
use canopy_wire::{
    Address, Comtree, Connect, DropReason, GroupKeyHeld, GroupKeyNumber, Join, MAX_DATAGRAM,
    Packet, Path, RefusedReason, Suite, Time,
};

/// Somebody who has proved its path and wants a session.
#[derive(Clone, Copy)]
pub(super) struct Applicant<'a> {
    connect: Connect<'a>,
    pub(super) path: Path,
    pub(super) proof: Proof,
    /// Data threads that had no address left, or no place.
    pub(super) asked: u16,
    pub(super) now: Time,
}

/// What an applicant is let in with.
struct Entry {
    comtree: Comtree,
    index: ComtreeIndex,
    knock: Knock,
    terms: Terms,
    rights: Option<Box<Rights>>,
}

impl Relay {
    pub(super) fn take_hello(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let mut answer = Answer::new();
        self.sessions.hello(now, from, packet, &mut answer)?;
        self.reply_to_stranger(now, from, answer.bytes());
        Ok(())
    }

    /// Takes a connect that came here, or that `asked` other data threads have passed on.
    pub(super) fn take_connect(
        &mut self,
        now: Time,
        path: Path,
        packet: &Packet<'_>,
        asked: u16,
    ) -> Result<(), DropReason> {
        // What costs least comes first: the cookie, what is known of the path, then the message.
        let (connect, proof) = self.sessions.prove(now, path, packet)?;
        let applicant = Applicant { connect, path, proof, asked, now };
        if self.is_draining {
            return self.refuse_for(&applicant, RefusedReason::Draining, DropReason::Draining);
        }
        if let Some((session, nonce)) = self.sessions.at(path)
            && nonce == proof.nonce
        {
            return self.welcome_again(session, path);
        }
        if self.sessions.is_stale(path, proof) {
            return Err(DropReason::Stale);
        }
        // What the first data thread has let pass is not counted again.
        if asked == 0 {
            self.pass_the_gate(&applicant)?;
        }
        let Ok(knock) = self.sessions.knock(&connect) else {
            return self.refuse_for(&applicant, RefusedReason::Key, DropReason::Forged);
        };
        if let Some(join) = knock.link_join()? {
            return self.take_call(now, &applicant, knock, join);
        }
        let join = knock.join()?;
        let Join { comtree, suites, max_datagram, .. } = join;
        let Some(suite) = Suite::best_of(suites) else {
            let (reason, drop) = (RefusedReason::Credentials, DropReason::BadCredentials);
            return self.refuse_for(&applicant, reason, drop);
        };
        let Some(index) = self.comtrees.find(comtree) else {
            let (reason, drop) = (RefusedReason::UnknownComtree, DropReason::UnknownComtree);
            return self.refuse_for(&applicant, reason, drop);
        };
        let rights = match self.rights_of(now, &join, knock.participant(), index) {
            Ok(rights) => rights,
            Err(why) => {
                self.note(Notice::TokenRefused { comtree, path, why });
                return self.refuse_for(&applicant, RefusedReason::Token, DropReason::BadToken);
            }
        };
        let token = rights.as_ref().map(|rights| rights.token());
        if token.is_some_and(|token| self.is_used_since(token, proof)) {
            return Err(DropReason::Stale);
        }
        // What is sealed for all, all must be able to open.
        let group_suite = self.comtrees.get(index).group_keys.as_ref().map(|keys| keys.suite());
        if group_suite.is_some_and(|suite| suites & suite.bit() == 0) {
            let (reason, drop) = (RefusedReason::Credentials, DropReason::BadCredentials);
            return self.refuse_for(&applicant, reason, drop);
        }
        let datagrams = DatagramClass::of(max_datagram.min(self.max_datagram));
        let terms = Terms {
            address: Address::UNSPECIFIED,
            suite,
            downlink: self.comtrees.get(index).downlink,
            max_datagram: datagrams.max_datagram() as u16,
            // None beyond the base protocol exists yet.
            features: 0,
        };
        self.make_room(now, &applicant, Entry { comtree, index, knock, terms, rights })
    }

    /// The participant sent connect twice: its answer was lost, or is late.
    fn welcome_again(&mut self, session: SessionIndex, path: Path) -> Result<(), DropReason> {
        if !self.push_welcome(session, path) {
            return Err(DropReason::Stale);
        }
        self.tell_of_move(path);
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
        let drop = if !self.may_have_a_session(path) {
            DropReason::TooManySessions
        } else if !self.may_shake_hands(now, path) {
            DropReason::TooManyHandshakes
        } else {
            return Ok(());
        };
        let mut answer = Answer::new();
        refuse(proof.nonce, Comtree(0), RefusedReason::TooMany, &mut answer);
        self.reply_to_stranger(now, path, answer.bytes());
        Err(drop)
    }

    /// Takes a place and an address for an applicant, and lets it in; or asks the next data thread.
    fn make_room(
        &mut self,
        now: Time,
        applicant: &Applicant<'_>,
        mut entry: Entry,
    ) -> Result<(), DropReason> {
        let Applicant { path, proof, .. } = *applicant;
        if let Some((older, _)) = self.sessions.at(path) {
            let ended = self.sessions.end(older);
            self.end(ended);
        }
        // Sent twice, and passed on before: another data thread may have made it a member since, and
        // there must not be two of it.
        if self.passed_on.contains(&(proof.nonce, path)) || !self.places.take() {
            // If there is no place, one of them may be the applicant's own, on another data thread.
            return self.ask_next_thread(applicant);
        }
        let Entry { comtree, index, .. } = entry;
        let Some(address) = self.comtrees.get_mut(index).addresses.take() else {
            self.places.give_back();
            return self.ask_next_thread(applicant);
        };
        entry.terms.address = address;
        if !self.let_in(now, applicant, entry) {
            self.comtrees.get_mut(index).addresses.give_back(address);
            self.places.give_back();
            return self.refuse_for(applicant, RefusedReason::Full, DropReason::SessionsFull);
        }
        self.note(Notice::Joined { comtree, address, path });
        self.tell_of_move(path);
        Ok(())
    }

    /// Opens a session with a port on a comtree, and answers. False if a table is full.
    fn let_in(&mut self, now: Time, applicant: &Applicant<'_>, entry: Entry) -> bool {
        let Applicant { path, proof, .. } = *applicant;
        let Entry { comtree, index, knock, terms, rights } = entry;
        let Some(session) = self.sessions.open(now, path, proof, knock, &terms) else {
            return false;
        };
        let datagrams = DatagramClass::of(terms.max_datagram);
        let shape = Shape { class: PeerClass::Participant, datagrams };
        let (peer, address) = (Peer::Participant(session), terms.address);
        let Some(port) = self.open_port(now, peer, shape, (comtree, index), address) else {
            // It was never a member, so nothing hangs on it.
            let _ = self.sessions.end(session);
            return false;
        };
        if let Some(rights) = rights {
            self.take_token_from_others(rights.token(), proof);
            self.by_token.insert(rights.token(), port);
            self.set_budget(port, rights.budget(self.budgets.member));
            self.ports.give_rights(port, rights);
        }
        self.comtrees.get_mut(index).participants += 1;
        self.counters.sessions_opened += 1;
        self.count_in(session, path.remote.ip());
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
        true
    }

    /// The addresses of a comtree are the data threads', the places are the relay's: while there
    /// is a place, some thread has an address. And while there is none, some thread may have an
    /// older session at the applicant's path, which it ends.
    fn ask_next_thread(&mut self, applicant: &Applicant<'_>) -> Result<(), DropReason> {
        let Applicant { path, proof, asked, .. } = *applicant;
        let threads = self.siblings.threads();
        if asked + 1 >= threads {
            return self.refuse_for(applicant, RefusedReason::Full, DropReason::SessionsFull);
        }
        self.hand_on(applicant, (self.siblings.thread() + 1) % threads)?;
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
    ) -> Result<(), DropReason> {
        let Applicant { connect, path, asked, .. } = *applicant;
        let mut datagram = [0; MAX_DATAGRAM];
        let len = connect.encode(&mut datagram)?;
        let told = Told::Connect { path, asked: asked + 1, datagram: &datagram[..len] };
        if !self.siblings.tell_one(thread, told) {
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
        if matches!(drop, DropReason::Forged | DropReason::BadToken) {
            self.note_failure(applicant.now);
        }
        let mut answer = Answer::new();
        refuse(applicant.proof.nonce, Comtree(0), reason, &mut answer);
        self.reply_to_stranger(applicant.now, applicant.path, answer.bytes());
        Err(drop)
    }
}
