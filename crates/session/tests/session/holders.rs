//! Who has which path, against a model: whatever order joins, moves, ends and late copies come in.

use crate::sessions::{Member, Table, sharing};
use crate::support::{COMTREE, at, packet};
use canopy_session::{Ended, Holder, Proof};
use canopy_wire::{Comtree, Connect, DropReason, Path, Rebind};
use std::time::Duration;

const PATHS: [u16; 3] = [1, 2, 3];
const COMTREES: [Comtree; 2] = [COMTREE, Comtree(2)];
const KEYS: [u8; 3] = [4, 5, 6];

/// A session that is there.
struct Live {
    member: Member,
    path: Path,
    holder: Holder,
    proof: Proof,
    /// Its connect has it.
    nonce: u64,
}

/// What is known outside.
#[derive(Default)]
struct Model {
    live: Vec<Live>,
    /// Who has left which path, by which proof.
    left: Vec<(Path, Holder, Proof)>,
}

impl Model {
    fn at(&self, path: Path, holder: Holder) -> Option<usize> {
        self.live.iter().position(|one| one.path == path && one.holder == holder)
    }

    /// Whether somebody has proved a path later than that, as this holder.
    fn is_stale(&self, path: Path, holder: Holder, proof: Proof) -> bool {
        match self.at(path, holder) {
            Some(number) => self.live[number].proof >= proof,
            None => {
                self.left.iter().any(|(at, by, of)| (*at, *by) == (path, holder) && *of >= proof)
            }
        }
    }

    /// A session is no more where it was.
    fn leaves(&mut self, number: usize) {
        let Live { path, holder, proof, .. } = self.live[number];
        self.left.push((path, holder, proof));
    }

    fn end(&mut self, number: usize) -> Live {
        self.leaves(number);
        self.live.swap_remove(number)
    }
}

/// A table and its model, and all connects and rebinds that were ever made.
struct Trial {
    table: Table,
    model: Model,
    connects: Vec<(Path, Holder, Vec<u8>)>,
    rebinds: Vec<(Path, Member, Vec<u8>)>,
    random: u64,
    nonces: u64,
}

impl Trial {
    fn draw(&mut self, below: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % below
    }

    fn draw_path(&mut self) -> Path {
        let number = self.draw(PATHS.len());
        at(PATHS[number])
    }

    fn draw_holder(&mut self) -> Holder {
        let (key, comtree) = (KEYS[self.draw(3)], COMTREES[self.draw(2)]);
        if self.draw(3) == 0 { Holder::Alone } else { sharing(key, comtree) }
    }

    /// Somebody greets; the connect may come at once or later.
    fn greet(&mut self) {
        let (path, holder) = (self.draw_path(), self.draw_holder());
        self.nonces += 1;
        // Nonces are in no order, as they are drawn.
        let nonce = self.nonces * 7919 % 10_007;
        let key_of = |key: &u8| COMTREES.iter().any(|comtree| sharing(*key, *comtree) == holder);
        let connect = match (KEYS.into_iter().find(|key| key_of(key)), holder) {
            (Some(key), Holder::Sharing(_, comtree)) => {
                self.table.greet_sharing(path, nonce, key, comtree)
            }
            _ => self.table.greet(path, nonce),
        };
        self.connects.push((path, holder, connect));
    }

    /// A connect comes, for the first time or again, and is done with as a relay does.
    fn connect(&mut self) {
        let number = self.draw(self.connects.len());
        let (path, holder, connect) = self.connects[number].clone();
        let Ok(proof) = self.table.prove(path, &connect) else { return };
        let opened = |one: &Live| one.path == path && one.nonce == proof.nonce;
        let known = self.model.live.iter().find(|one| opened(one));
        let found = self.table.sessions.opened_by(path, proof.nonce);
        assert_eq!(found, known.map(|one| one.member.session), "it has opened one already");
        let has_left = |left: &(Path, Holder, Proof)| left.0 == path && left.2.nonce == proof.nonce;
        let is_copy = self.model.left.iter().any(|left| has_left(left) && proof <= left.2);
        assert_eq!(self.table.sessions.is_copy(path, proof), is_copy);
        let is_stale = self.model.is_stale(path, holder, proof);
        assert_eq!(self.table.sessions.is_stale(path, holder, proof), is_stale);
        if known.is_some() || is_copy || is_stale {
            return;
        }
        let packet = packet(&connect);
        let knock = self.table.sessions.knock(&Connect::decode(&packet).unwrap());
        assert_eq!(knock.map(|knock| knock.holder()), Ok(holder));
        if let Some(number) = self.model.at(path, holder) {
            let older = self.model.end(number);
            assert_eq!(self.table.sessions.at(path, holder), Some(older.member.session));
            self.table.end(older.member.session);
        }
        let member = self.table.open(path, &connect);
        self.model.live.push(Live { member, path, holder, proof, nonce: proof.nonce });
    }

    /// A session is asked to prove another path; the answer may come at once or later.
    fn challenge(&mut self) {
        if self.model.live.is_empty() {
            return;
        }
        let number = self.draw(self.model.live.len());
        let (path, member) = (self.draw_path(), self.model.live[number].member);
        self.table.pass(Duration::from_millis(60));
        let rebind = self.table.prove_move(path, &member);
        self.rebinds.push((path, member, rebind));
    }

    /// A rebind comes, for the first time or again.
    fn rebind(&mut self) {
        if self.rebinds.is_empty() {
            return;
        }
        let number = self.draw(self.rebinds.len());
        let (path, member, rebind) = self.rebinds[number].clone();
        let is_it = |one: &Live| one.member.id == member.id && one.member.serial == member.serial;
        let Some(number) = self.model.live.iter().position(is_it) else { return };
        let cookie = Rebind::decode(&packet(&rebind)).unwrap().cookie;
        let Some(made) = self.table.made_rebind(path, member.id, &cookie) else { return };
        let Live { holder, proof: own, nonce, .. } = self.model.live[number];
        let proof = Proof { at: made, nonce };
        let present = self.model.at(path, holder);
        let is_late = present != Some(number) && self.model.is_stale(path, holder, proof);
        let (moved, _) = self.table.rebind(path, &rebind);
        if proof < own || is_late {
            return assert_eq!(moved, Err(DropReason::Stale));
        }
        let evicted = present.filter(|present| *present != number);
        let ended = evicted.map(|other| Ended(self.model.live[other].member.session));
        assert_eq!(moved, Ok(ended));
        if self.model.live[number].path != path {
            self.model.leaves(number);
        }
        (self.model.live[number].path, self.model.live[number].proof) = (path, proof);
        if let Some(other) = evicted {
            self.model.end(other);
        }
    }

    /// A session ends; or another data thread tells of one that has the path as somebody.
    fn end(&mut self) {
        let (path, holder, is_told) = (self.draw_path(), self.draw_holder(), self.draw(2) == 0);
        let number = self.model.at(path, holder);
        if is_told {
            let at = self.table.now - Duration::from_millis(self.draw(200) as u64);
            let proof = Proof { at, nonce: self.draw(10_007) as u64 };
            let older = number.filter(|number| self.model.live[*number].proof < proof);
            let ended = self.table.sessions.end_older(path, holder, proof);
            assert_eq!(
                ended.map(|Ended(session)| session),
                older.map(|number| self.model.live[number].member.session)
            );
            older.map(|number| self.model.end(number));
        } else if let Some(number) = number {
            let session = self.model.end(number).member.session;
            self.table.end(session);
        }
    }

    /// All that can be asked is as the model says.
    fn check(&self) {
        let sessions = &self.table.sessions;
        assert_eq!(sessions.live() as usize, self.model.live.len());
        for path in PATHS.map(at) {
            let of_key = |key| COMTREES.map(|comtree| sharing(key, comtree));
            let holders = KEYS.into_iter().flat_map(of_key).chain([Holder::Alone]);
            for holder in holders {
                let expected = self.model.at(path, holder);
                let expected = expected.map(|number| self.model.live[number].member.session);
                assert_eq!(sessions.at(path, holder), expected, "{holder:?} at {path:?}");
            }
        }
        for Live { member, path, holder, proof, .. } in &self.model.live {
            assert_eq!(sessions.holder(member.session), *holder);
            assert_eq!(sessions.proof(member.session), Some(*proof));
            assert_eq!(sessions.admit(*path, member.id), Ok(member.session));
        }
    }
}

#[test]
fn whoever_comes_goes_moves_or_comes_late_a_path_is_whose_the_model_says() {
    for seed in 1..=12 {
        let (table, model) = (Table::new(), Model::default());
        let (connects, rebinds) = (Vec::new(), Vec::new());
        let mut trial = Trial { table, model, connects, rebinds, random: seed, nonces: seed * 100 };
        trial.greet();
        for _ in 0..1_200 {
            match trial.draw(8) {
                0..=1 => trial.greet(),
                2..=3 => trial.connect(),
                4 => trial.challenge(),
                5 => trial.rebind(),
                6 if trial.draw(3) == 0 => trial.end(),
                _ => {
                    let wait = trial.draw(120) as u64;
                    trial.table.pass(Duration::from_millis(wait));
                }
            }
            trial.check();
        }
        assert!(trial.model.left.len() < 1_000, "the table remembers each");
        let shared = PATHS
            .map(at)
            .map(|path| trial.model.live.iter().filter(|one| one.path == path).count());
        assert!(shared.iter().any(|count| *count > 1), "{shared:?} sessions have each path");
    }
}
