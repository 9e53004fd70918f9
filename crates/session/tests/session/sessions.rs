//! The relay's table of sessions, when datagrams come late, twice, or from whoever else.

use crate::support::{
    COMTREE, JOIN, TERMS, at, connect_of, connect_with, cookie_for, is_sealed, opened, packet,
};
use canopy_session::{
    Answer, Ended, Holder, Identity, Keyring, LoggedKeys, PacketsPerKey, Proof, SessionIndex,
    SessionLimits, Sessions, SessionsConfig, Terms, unknown,
};
use canopy_wire::{
    Challenge, Comtree, Connect, DropReason, HEADER_LEN, Header, Join, Keepalive, Kind, Lane, Path,
    Rebind, SEAL_LEN, SessionId, Tag, Time, Unknown,
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The second of three data threads.
const THREAD: u16 = 1;
const THREADS: u16 = 3;

fn limits() -> SessionLimits {
    SessionLimits::default()
}

/// A table, and the time. Its packets are opened before they come to it: the tests are about what
/// it makes of them then.
pub(crate) struct Table {
    pub(crate) sessions: Sessions,
    pub(crate) now: Time,
    opened: u64,
    keys: Vec<LoggedKeys>,
}

/// A session as its participant knows it.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub(crate) session: SessionIndex,
    pub(crate) id: SessionId,
    path_stamp: u64,
    /// A number of its own, where places are given to others.
    pub(crate) serial: u64,
}

impl Table {
    pub(crate) fn new() -> Table {
        let config = SessionsConfig {
            max_sessions: 2_000,
            thread: THREAD,
            threads: THREADS,
            unix_zero: 0,
            log_keys: true,
            packets_per_key: PacketsPerKey::PROTOCOL,
            limits: limits(),
        };
        let sessions = Sessions::new(config, Keyring::new([5; 16]), &[6; 16]);
        Table { sessions, now: Time::from_millis(50_000), opened: 0, keys: Vec::new() }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Greets from a path; returns the connect that follows.
    pub(crate) fn greet(&self, path: Path, nonce: u64) -> Vec<u8> {
        connect_with(&cookie_for(&self.sessions, self.now, path, nonce), &JOIN)
    }

    pub(crate) fn prove(&mut self, path: Path, connect: &[u8]) -> Result<Proof, DropReason> {
        let proved = self.sessions.prove(self.now, path, &packet(connect));
        proved.map(|(_, proof)| proof)
    }

    /// Opens a session at a path that nobody has.
    pub(crate) fn open(&mut self, path: Path, connect: &[u8]) -> Member {
        let proof = self.prove(path, connect).unwrap();
        let knock = self.sessions.knock(&Connect::decode(&packet(connect)).unwrap());
        let knock = knock.unwrap_or_else(|reason| panic!("{reason:?}"));
        let terms = Terms { features: knock.join().unwrap().features, ..TERMS };
        let session = self.sessions.open(self.now, path, proof, knock, &terms).unwrap();
        let keys = self.sessions.poll_key_log().unwrap();
        let id = self.sessions.id(session);
        assert_eq!(keys.session, id);
        self.keys.retain(|older| older.session != id);
        self.keys.push(keys);
        let path_stamp = self.keepalive(session, 0);
        self.opened += 1;
        Member { session, id, path_stamp, serial: self.opened }
    }

    /// Somebody who shares its path greets there; returns the connect that follows.
    pub(crate) fn greet_sharing(
        &self,
        path: Path,
        nonce: u64,
        key: u8,
        comtree: Comtree,
    ) -> Vec<u8> {
        let join = Join { features: Join::SHARES, comtree, ..JOIN };
        connect_of([key; 32], &cookie_for(&self.sessions, self.now, path, nonce), &join)
    }

    fn join_sharing(&mut self, path: Path, nonce: u64, key: u8, comtree: Comtree) -> Member {
        let connect = self.greet_sharing(path, nonce, key, comtree);
        self.open(path, &connect)
    }

    fn join(&mut self, path: Path, nonce: u64) -> Member {
        let connect = self.greet(path, nonce);
        let proof = self.prove(path, &connect).unwrap();
        assert_eq!(proof, Proof { at: self.now, nonce }, "it is timed by its cookie");
        self.open(path, &connect)
    }

    /// The packet in an answer; nothing if there is none. It is sealed.
    fn opened(&mut self, id: SessionId, answer: &Answer) -> Vec<u8> {
        if answer.bytes().is_empty() {
            return Vec::new();
        }
        assert!(is_sealed(answer.bytes()));
        let keys = self.keys.iter_mut().find(|keys| keys.session == id).unwrap();
        opened(&keys.from_relay, answer.bytes())
    }

    /// Challenges whoever is at a path to prove that it has the session; returns the cookie.
    fn challenge(&mut self, path: Path, id: SessionId) -> Option<Tag> {
        let (mut out, mut answer) = ([0; 100], Answer::new());
        let len = Keepalive { stamp: 1, path_stamp: 1 }.encode(COMTREE, id, &mut out).unwrap();
        self.sessions.challenge(self.now, path, &packet(&out[..len]), &mut answer);
        let challenge = self.opened(id, &answer);
        (!challenge.is_empty()).then(|| Challenge::decode(&packet(&challenge)).unwrap().cookie)
    }

    /// What the participant answers to a challenge at a path.
    pub(crate) fn prove_move(&mut self, path: Path, member: &Member) -> Vec<u8> {
        rebind(member.id, self.challenge(path, member.id).unwrap())
    }

    /// When the relay made the cookie of a rebind, if it takes that still.
    pub(crate) fn made_rebind(&self, path: Path, id: SessionId, cookie: &Tag) -> Option<Time> {
        Keyring::new([5; 16]).made_rebind(self.now, path, id, cookie)
    }

    pub(crate) fn rebind(
        &mut self,
        path: Path,
        rebind: &[u8],
    ) -> (Result<Option<Ended>, DropReason>, Vec<u8>) {
        let mut answer = Answer::new();
        let moved = self.sessions.rebind(self.now, path, &packet(rebind), &mut answer);
        let moved = moved.map(|(session, ended)| {
            assert_eq!(self.sessions.path(session), Some(path));
            ended
        });
        (moved, self.opened(packet(rebind).header().session, &answer))
    }

    /// A keepalive with this path stamp; returns the one in the answer.
    fn keepalive(&mut self, session: SessionIndex, path_stamp: u64) -> u64 {
        let (mut out, mut answer) = ([0; 100], Answer::new());
        let id = self.sessions.id(session);
        let len = Keepalive { stamp: 7, path_stamp }.encode(COMTREE, id, &mut out).unwrap();
        self.sessions.keepalive(self.now, session, &packet(&out[..len]), &mut answer).unwrap();
        let echo = self.opened(id, &answer);
        let echo = Keepalive::decode(&packet(&echo)).unwrap();
        assert_eq!(echo.stamp, 7);
        echo.path_stamp
    }

    /// Ends the sessions whose lifetime is over; returns how many are left.
    fn expire(&mut self) -> u32 {
        let mut budget = self.sessions.high_water() * 2;
        while self.sessions.expire(self.now, &mut budget).is_some() {}
        self.sessions.live()
    }

    pub(crate) fn end(&mut self, session: SessionIndex) {
        assert_eq!(self.sessions.end(session), Ended(session));
    }
}

/// As whom somebody with this private key shares a path.
pub(crate) fn sharing(key: u8, comtree: Comtree) -> Holder {
    Holder::Sharing(*Identity::new([key; 32]).public(), comtree)
}

fn rebind(id: SessionId, cookie: Tag) -> Vec<u8> {
    let mut out = [0; 100];
    let len = Rebind { cookie }.encode(COMTREE, id, &mut out).unwrap();
    out[..len].to_vec()
}

#[test]
fn of_two_proofs_of_a_path_the_later_counts() {
    let mut table = Table::new();
    let early = table.greet(at(1), 9);
    table.pass(SECOND);
    let twin = table.greet(at(1), 4);
    let member = table.join(at(1), 5);
    let late_twin = table.greet(at(1), 6);
    table.pass(SECOND);
    let newer = table.greet(at(1), 1);
    let is_stale = |connect: &[u8], table: &mut Table| {
        let proof = table.prove(at(1), connect).unwrap();
        table.sessions.is_stale(at(1), Holder::Alone, proof)
    };
    assert!(is_stale(&early, &mut table), "though its nonce is higher");
    assert!(is_stale(&twin, &mut table), "of two at one instant the nonce decides");
    assert!(!is_stale(&late_twin, &mut table));
    assert!(!is_stale(&newer, &mut table), "though its nonce is lower");
    assert_eq!(table.sessions.at(at(1), Holder::Alone), Some(member.session));
    assert_eq!(table.sessions.opened_by(at(1), 5), Some(member.session));
    assert_eq!(table.sessions.opened_by(at(1), 4), None);
}

#[test]
fn a_session_that_left_is_remembered_as_long_as_its_cookie_is_taken() {
    for cookie_age in [0, 4, 9] {
        let mut table = Table::new();
        let connect = table.greet(at(1), 9);
        table.pass(SECOND * cookie_age);
        let proof = table.prove(at(1), &connect).unwrap();
        let member = table.open(at(1), &connect);
        table.pass(SECOND / 2);
        table.end(member.session);
        table.now = proof.at + SECOND * 10;
        let copy = table.prove(at(1), &connect).expect("the cookie is still taken");
        assert_eq!(copy, proof);
        assert!(table.sessions.is_stale(at(1), Holder::Alone, copy), "{cookie_age} s");
        assert!(!table.sessions.is_stale(at(2), Holder::Alone, copy), "another path was not left");
        let newer = table.greet(at(1), 1);
        let newer = table.prove(at(1), &newer).unwrap();
        assert!(!table.sessions.is_stale(at(1), Holder::Alone, newer), "who comes back is welcome");
        table.pass(Duration::from_millis(1));
        assert_eq!(table.prove(at(1), &connect), Err(DropReason::BadCookie));
    }
}

/// Those of which there is no room to remember each are remembered together, so that some others
/// whose proof is as old count as such, and nobody whose proof is new.
#[test]
fn paths_that_were_left_are_remembered_in_bounded_memory() {
    let mut table = Table::new();
    let first = table.join(at(1), 9);
    let proof = table.sessions.proof(first.session).unwrap();
    table.end(first.session);
    for later in 1..=5_000 {
        table.pass(Duration::from_millis(1));
        let member = table.join(at(1 + later), 9);
        table.end(member.session);
        assert!(table.sessions.is_stale(at(1), Holder::Alone, proof), "{later} have left after it");
    }
    let others = (6_000..16_000)
        .filter(|port| table.sessions.is_stale(at(*port), Holder::Alone, proof))
        .count();
    assert!((5_000..7_500).contains(&others), "{others} share an entry with one that left");
    table.pass(Duration::from_millis(1));
    for port in 1..10_000 {
        let connect = table.greet(at(port), 1);
        let newer = table.prove(at(port), &connect).unwrap();
        assert!(!table.sessions.is_stale(at(port), Holder::Alone, newer), "{port} is new");
    }
}

#[test]
fn a_late_copy_of_a_move_moves_nothing() {
    let mut table = Table::new();
    let connect = table.greet(at(1), 9);
    let member = table.join(at(1), 9);
    let mut moves = Vec::new();
    for port in [2, 3, 1, 2] {
        table.pass(SECOND / 10);
        let rebind = table.prove_move(at(port), &member);
        let (moved, answer) = table.rebind(at(port), &rebind);
        assert_eq!(moved, Ok(None), "to {port}");
        assert_eq!(packet(&answer).header().kind, Kind::KeepaliveAck);
        assert_eq!(table.sessions.path(member.session), Some(at(port)));
        moves.push((port, rebind));
    }
    // A copy of the rebind that holds it is answered again, for its answer may be lost.
    let last = moves.pop().unwrap();
    for (port, rebind) in &moves {
        assert_eq!(table.rebind(at(*port), rebind), (Err(DropReason::Stale), Vec::new()), "{port}");
    }
    let (moved, answer) = table.rebind(at(last.0), &last.1);
    assert_eq!((moved, answer.is_empty()), (Ok(None), false));
    assert_eq!(table.sessions.path(member.session), Some(at(2)));
    // Nor does its connect open the session again where it began.
    let proof = table.prove(at(1), &connect).unwrap();
    assert!(
        table.sessions.at(at(1), Holder::Alone).is_none()
            && table.sessions.is_stale(at(1), Holder::Alone, proof)
    );
}

#[test]
fn a_path_goes_to_whoever_proved_it_last() {
    let mut table = Table::new();
    let mover = table.join(at(1), 9);
    let early = table.prove_move(at(2), &mover);
    table.pass(SECOND);
    let holder = table.join(at(2), 3);
    assert_eq!(table.rebind(at(2), &early), (Err(DropReason::Stale), Vec::new()));
    assert_eq!(table.sessions.opened_by(at(2), 3), Some(holder.session));
    // It left, and the late copy gets no more than before.
    table.end(holder.session);
    assert_eq!(table.rebind(at(2), &early).0, Err(DropReason::Stale));
    let holder = table.join(at(3), 3);
    table.pass(SECOND);
    let late = table.prove_move(at(3), &mover);
    assert_eq!(table.rebind(at(3), &late).0, Ok(Some(Ended(holder.session))));
    assert_eq!(table.sessions.opened_by(at(3), 9), Some(mover.session));
    assert_eq!(table.sessions.live(), 1);
}

#[test]
fn a_session_gives_way_to_a_later_proof_of_another_data_thread_only() {
    let own = Proof { at: Table::new().now, nonce: 5 };
    let earlier = Time::from_nanos(own.at.as_nanos() - 1);
    let later = Time::from_nanos(own.at.as_nanos() + 1);
    for (proof, gives_way) in [
        (Proof { at: earlier, nonce: u64::MAX }, false),
        (Proof { at: own.at, nonce: 4 }, false),
        (own, false),
        (Proof { at: own.at, nonce: 6 }, true),
        (Proof { at: later, nonce: 0 }, true),
    ] {
        let mut table = Table::new();
        let member = table.join(at(1), 5);
        assert_eq!(table.sessions.proof(member.session), Some(own));
        assert_eq!(table.sessions.end_older(at(2), Holder::Alone, proof), None, "another path");
        let ended = table.sessions.end_older(at(1), Holder::Alone, proof);
        assert_eq!(ended, gives_way.then_some(Ended(member.session)), "{proof:?}");
        assert!(table.sessions.is_stale(at(1), Holder::Alone, own), "either way a copy is late");
    }
}

/// Behind a gateway many have one ip:port: each is known by its key, and on each comtree apart.
#[test]
fn sessions_that_share_a_path_stand_beside_each_other() {
    let mut table = Table::new();
    let (here, there) = (COMTREE, Comtree(2));
    let alone = table.join(at(1), 1);
    let all = [(2, 4, here), (3, 5, here), (4, 4, there)];
    let members = all.map(|(nonce, key, comtree)| table.join_sharing(at(1), nonce, key, comtree));
    for (member, (nonce, key, comtree)) in members.iter().zip(all) {
        assert_eq!(table.sessions.at(at(1), sharing(key, comtree)), Some(member.session));
        assert_eq!(table.sessions.opened_by(at(1), nonce), Some(member.session));
        assert_eq!(table.sessions.admit(at(1), member.id), Ok(member.session));
        assert_eq!(table.sessions.holder(member.session), sharing(key, comtree));
    }
    assert_eq!(table.sessions.at(at(1), Holder::Alone), Some(alone.session));
    assert_eq!(table.sessions.at(at(2), sharing(4, here)), None, "another path");
    // Whoever goes takes nobody along.
    table.end(members[0].session);
    assert_eq!(table.sessions.at(at(1), sharing(4, here)), None);
    assert_eq!(table.sessions.opened_by(at(1), 2), None);
    let others =
        [(alone, Holder::Alone), (members[1], sharing(5, here)), (members[2], sharing(4, there))];
    for (member, holder) in others {
        assert_eq!(table.sessions.at(at(1), holder), Some(member.session));
    }
}

#[test]
fn on_a_shared_path_a_later_proof_takes_the_place_of_the_same_holder_alone() {
    let mut table = Table::new();
    let early = table.greet_sharing(at(1), 9, 4, COMTREE);
    table.pass(SECOND);
    let [first, second] = [4, 5].map(|key| table.join_sharing(at(1), u64::from(key), key, COMTREE));
    let early = table.prove(at(1), &early).unwrap();
    assert!(table.sessions.is_stale(at(1), sharing(4, COMTREE), early));
    for other in [sharing(6, COMTREE), sharing(4, Comtree(2)), Holder::Alone] {
        assert!(!table.sessions.is_stale(at(1), other, early), "{other:?} has nothing here");
        assert_eq!(
            table.sessions.end_older(at(1), other, Proof { at: table.now, nonce: 99 }),
            None
        );
    }
    let later = Proof { at: table.now, nonce: 99 };
    let ended = table.sessions.end_older(at(1), sharing(4, COMTREE), later);
    assert_eq!(ended, Some(Ended(first.session)));
    assert_eq!(table.sessions.at(at(1), sharing(5, COMTREE)), Some(second.session));
    // The other data thread's has its place now, and it moves here.
    let mover = table.join_sharing(at(2), 7, 5, COMTREE);
    table.pass(SECOND);
    let proof = table.prove_move(at(1), &mover);
    let third = table.join_sharing(at(1), 8, 6, COMTREE);
    assert_eq!(table.rebind(at(1), &proof).0, Ok(Some(Ended(second.session))), "its own older one");
    assert_eq!(table.sessions.at(at(1), sharing(6, COMTREE)), Some(third.session));
    assert_eq!(table.sessions.at(at(1), sharing(5, COMTREE)), Some(mover.session));
    assert_eq!(table.sessions.at(at(2), sharing(5, COMTREE)), None);
}

#[test]
fn who_leaves_a_shared_path_often_keeps_nobody_from_it() {
    let mut table = Table::new();
    let first = table.greet_sharing(at(1), 1, 1, COMTREE);
    let member = table.open(at(1), &first);
    table.end(member.session);
    let copy = table.prove(at(1), &first).unwrap();
    assert!(table.sessions.is_copy(at(1), copy), "before its message is read");
    let others = table.greet_sharing(at(1), 3, 3, COMTREE);
    let others = table.prove(at(1), &others).unwrap();
    assert!(!table.sessions.is_copy(at(1), others));
    for nonce in 4..1_100 {
        table.pass(Duration::from_millis(1));
        let member = table.join_sharing(at(1), nonce, 2, COMTREE);
        table.end(member.session);
    }
    // It is not one of the latest any more, and known all the same.
    assert!(!table.sessions.is_copy(at(1), copy));
    assert!(table.sessions.is_stale(at(1), sharing(1, COMTREE), copy));
    assert!(table.sessions.is_stale(at(1), sharing(2, COMTREE), others), "it has left since");
    assert!(!table.sessions.is_stale(at(1), sharing(3, COMTREE), others));
}

#[test]
fn a_session_lives_by_keepalives_that_bring_back_what_was_sent() {
    let mut table = Table::new();
    let member = table.join(at(1), 9);
    let mut path_stamp = member.path_stamp;
    for _ in 0..50 {
        table.pass(limits().keepalive);
        path_stamp = table.keepalive(member.session, path_stamp);
        assert_eq!(table.expire(), 1, "after {:?}", table.now);
    }
    // Three are lost in a row, or their answers are.
    for brings_back in [false, true] {
        for _ in 0..3 {
            table.pass(limits().keepalive);
            if brings_back {
                table.keepalive(member.session, path_stamp);
            }
        }
        table.pass(limits().keepalive);
        path_stamp = table.keepalive(member.session, path_stamp);
        assert_eq!(table.expire(), 1, "{brings_back}");
    }
    table.pass(limits().lifetime + SECOND);
    assert_eq!(table.expire(), 0);
}

/// Anyone can write another's ip:port on a packet, but does not see what is sent there.
#[test]
fn keepalives_that_bring_back_nothing_or_what_is_old_prolong_no_session() {
    let mut table = Table::new();
    let other = table.join(at(2), 8);
    let old = table.join(at(1), 9);
    for _ in 0..20 {
        table.pass(limits().keepalive);
        for member in [other, old] {
            let path_stamp = table.keepalive(member.session, 0);
            table.keepalive(member.session, path_stamp);
        }
    }
    let of_others = table.keepalive(other.session, 0);
    let right = table.keepalive(old.session, 0);
    assert_ne!(of_others, right, "a path stamp is one session's");
    table.end(other.session);
    let spoofed = [0, 1, right ^ 1, of_others, old.path_stamp, u64::MAX];
    let began = table.now;
    while table.expire() > 0 {
        assert!(table.now.since(began) < limits().lifetime * 2, "it is kept alive");
        for path_stamp in spoofed {
            table.keepalive(old.session, path_stamp);
        }
        table.pass(SECOND / 4);
    }
    assert!(table.now.since(began) >= limits().lifetime, "{:?}", table.now.since(began));
}

#[test]
fn a_path_stamp_of_the_path_before_is_no_sign_of_life() {
    for brings_back_new in [true, false] {
        let mut table = Table::new();
        let member = table.join(at(1), 9);
        table.pass(SECOND);
        let rebind = table.prove_move(at(2), &member);
        let (moved, answer) = table.rebind(at(2), &rebind);
        assert_eq!(moved, Ok(None));
        let (old, new) =
            (member.path_stamp, Keepalive::decode(&packet(&answer)).unwrap().path_stamp);
        table.pass(limits().lifetime - SECOND);
        table.keepalive(member.session, if brings_back_new { new } else { old });
        table.pass(SECOND * 2);
        assert_eq!(table.expire(), u32::from(brings_back_new));
    }
}

/// Whoever has seen the packet that is answered can check that its relay may have sent the answer.
#[test]
fn who_asks_for_a_session_that_is_not_there_is_told_so() {
    let (id, mut answer) = (SessionId::new(77), Answer::new());
    unknown(id, 0x0102_0304_0506_0708, &mut answer);
    let said = packet(answer.bytes());
    assert_eq!((said.header().kind, said.header().session), (Kind::Unknown, id));
    assert_eq!(Unknown::decode(&said).unwrap().echo, 0x0102_0304_0506_0708);
    let shortest = HEADER_LEN + SEAL_LEN;
    assert!(answer.bytes().len() <= shortest, "it is no longer than what it answers");
}

#[test]
fn a_proof_moves_a_session_that_is_there_from_where_it_was_asked_for() {
    let mut table = Table::new();
    let member = table.join(at(1), 9);
    let right = table.prove_move(at(2), &member);
    let mut altered = right.clone();
    altered[HEADER_LEN + 9] ^= 1;
    // From elsewhere, altered, or in the name of another session.
    let other = table.join(at(5), 8);
    let cookie = Rebind::decode(&packet(&right)).unwrap().cookie;
    let of_another = rebind(other.id, cookie);
    for (path, proof) in [(at(3), &right), (at(2), &altered), (at(2), &of_another)] {
        assert_eq!(table.rebind(path, proof), (Err(DropReason::BadCookie), Vec::new()));
    }
    assert_eq!(table.sessions.path(member.session), Some(at(1)), "nothing has moved");
    // Nor is the cookie of a connect one.
    let connect = table.greet(at(2), member.id.number().into());
    let cookie = Connect::decode(&packet(&connect)).unwrap().cookie;
    let moved = table.rebind(at(2), &rebind(member.id, cookie));
    assert_eq!(moved, (Err(DropReason::BadCookie), Vec::new()));
    table.end(member.session);
    assert_eq!(table.rebind(at(2), &right), (Err(DropReason::UnknownSource), Vec::new()));
}

/// A copy of each packet of a session may come by another path.
#[test]
fn a_session_is_challenged_at_a_rate() {
    let mut table = Table::new();
    let [member, other] = [(1, 9), (2, 8)].map(|(port, nonce)| table.join(at(port), nonce));
    let began = table.now;
    let mut challenged = Vec::new();
    for step in 0..1_000 {
        if table.challenge(at(66), member.id).is_some() {
            challenged.push(step);
        }
        table.pass(Duration::from_millis(1));
    }
    assert_eq!(challenged, (0..1_000).step_by(50).collect::<Vec<_>>());
    table.now = began + SECOND - Duration::from_millis(1);
    assert!(table.challenge(at(66), other.id).is_some(), "each at its own");
}

#[test]
fn a_session_is_admitted_by_its_number_and_path() {
    let mut table = Table::new();
    let [first, second] = [(1, 9), (2, 8)].map(|(port, nonce)| table.join(at(port), nonce));
    let [id, other] = [first, second].map(|member| member.id);
    let number = |place, thread| SessionId::at(place, Lane::of(COMTREE), thread, THREADS);
    assert_eq!((id, other), (number(0, THREAD), number(1, THREAD)));
    assert_eq!(table.sessions.admit(at(1), id), Ok(first.session));
    assert_eq!(table.sessions.admit(at(2), id), Err(DropReason::SpoofedSource));
    // The same place on the other data threads, a place that nobody has had, and no session.
    let elsewhere = [0, 2].map(|thread| number(0, thread));
    let nobody = [number(2, THREAD), SessionId::NONE];
    // The same place in another lane: nobody gets into that by another's number.
    let lanes = Lane::all().filter(|lane| *lane != Lane::of(COMTREE)).map(|lane| id.in_lane(lane));
    for id in elsewhere.into_iter().chain(nobody).chain(lanes) {
        assert_eq!(table.sessions.admit(at(1), id), Err(DropReason::UnknownSource), "{id:?}");
    }
    table.end(first.session);
    assert_eq!(table.sessions.admit(at(1), id), Err(DropReason::UnknownSource));
}

#[test]
fn a_short_datagram_is_not_answered_with_a_challenge() {
    let mut table = Table::new();
    let id = table.join(at(1), 9).id;
    for (len, is_challenged) in [(Challenge::LEN - 1, false), (Challenge::LEN, true)] {
        let mut out = [0; 100];
        let header = Header::new(Kind::Updates, id, COMTREE);
        header.encode_packet(&[0; 100][..len - HEADER_LEN], &mut out).unwrap();
        let mut answer = Answer::new();
        table.sessions.challenge(table.now, at(2), &packet(&out[..len]), &mut answer);
        // Both are sealed on their way.
        assert_eq!(answer.bytes().len(), if is_challenged { len + SEAL_LEN } else { 0 });
    }
}
