//! Links to other relays: sessions in which each side has a number of its own, which the other
//! writes on its packets. A link keeps its place, and so its number, from handshake to handshake.
//! No index by path knows it: other links, and participants, may share its ip:port.

use super::{Ended, Keys, Knock, LinkTraffic, Proof, SessionIndex, Sessions, Slot, Terms};
use crate::participant::LinkKeys;
use canopy_wire::{DropReason, LinkJoin, Path, Time};

/// The most links of a data thread.
pub const MAX_LINKS: u32 = 256;

impl Sessions {
    /// Takes a place for a link, which is down at first; `None` if there are [`MAX_LINKS`] already.
    pub fn add_link(&mut self) -> Option<SessionIndex> {
        if self.links >= MAX_LINKS {
            return None;
        }
        self.links += 1;
        let Some(session) = self.take_place(self.config.max_sessions + self.links) else {
            self.links -= 1;
            return None;
        };
        self.put(session, Slot::of_link());
        Some(session)
    }

    /// Gives a link's place back.
    pub fn remove_link(&mut self, session: SessionIndex) {
        let Ended(session) = self.end(session);
        self.slots[session as usize].is_link = false;
        self.links -= 1;
        self.free.push_back(session);
    }

    /// A link is up: the neighbour at `path` has answered the call.
    pub fn link_up(&mut self, now: Time, link: SessionIndex, path: Path, keys: LinkKeys) {
        let LinkKeys { sealer, opener, peer, neighbour: participant, nonce, .. } = keys;
        let proof = Proof { at: now, nonce };
        self.put(link, Slot { path, proof, nonce, heard: now, live: true, ..Slot::of_link() });
        let (welcome, challenged) = (None, None);
        let opener = opener.by_lane();
        let (shares, told_gone) = (None, None);
        let keys =
            Keys { sealer, opener, peer, participant, shares, welcome, challenged, told_gone };
        self.secrets[link as usize] = Some(keys);
    }

    /// Answers a neighbour's call, whose path is proved: the link is up, with new keys, and what the
    /// earlier ones sealed is opened no more. [`Sessions::welcome`] has the answer. False if it is the
    /// same call again.
    ///
    /// # Errors
    /// [`DropReason::Stale`] if it is a late copy, [`DropReason::Malformed`].
    pub fn answer_call(
        &mut self,
        now: Time,
        link: SessionIndex,
        (path, proof): (Path, Proof),
        (knock, join): (Knock, LinkJoin),
        terms: &Terms,
    ) -> Result<bool, DropReason> {
        let before = &self.slots[link as usize];
        if before.live && before.path == path && before.nonce == proof.nonce {
            // The same call again. Its answer is kept until a packet shows that it arrived.
            return self.welcome(link).map(|_| false).ok_or(DropReason::Stale);
        }
        if proof <= before.proof {
            return Err(DropReason::Stale);
        }
        let keys = self.make_keys(now, path, link, knock, proof.nonce, terms);
        let keys = keys.ok_or(DropReason::Malformed)?;
        let nonce = proof.nonce;
        self.put(link, Slot { path, proof, nonce, heard: now, live: true, ..Slot::of_link() });
        self.secrets[link as usize] =
            Some(Keys { peer: join.session, opener: keys.opener.by_lane(), ..keys });
        Ok(true)
    }

    /// What has passed over a link since it came up.
    pub fn link_traffic(&self, link: SessionIndex) -> LinkTraffic {
        self.slots[link as usize].traffic
    }

    /// The neighbour has given a sign of life.
    pub fn heard_on_link(&mut self, now: Time, link: SessionIndex) {
        self.slots[link as usize].heard = now;
    }
}
