//! The secrets of all sessions, in all of a relay's lives: a key counts from zero, so no two sessions,
//! and no two directions, may have one in common.

use canopy_session::LoggedKeys;
use std::collections::BTreeSet;

/// The secrets that there were, by their prints. What it holds grows with every session: it is for runs
/// that end.
#[derive(Debug, Default)]
pub struct Secrets {
    prints: BTreeSet<[u8; 32]>,
}

impl Secrets {
    /// A relay has opened a session, or a link.
    ///
    /// # Errors
    /// It has a secret that was another's before, or both its directions have the same.
    pub fn opened(&mut self, keys: &LoggedKeys) -> Result<(), String> {
        let prints = [keys.from_participant.print(), keys.from_relay.print()];
        let are_new = prints.map(|print| self.prints.insert(print));
        if are_new != [true; 2] {
            let (session, nonce) = (keys.session, keys.nonce);
            return Err(format!("session {session:?} of handshake {nonce:#x} has another's keys"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seats::tests::joined;

    #[test]
    fn keys_that_were_anothers_are_found() {
        let mut secrets = Secrets::default();
        assert_eq!(secrets.opened(&joined(1)), Ok(()));
        assert_eq!(secrets.opened(&joined(2)), Ok(()));
        let error = secrets.opened(&joined(1)).unwrap_err();
        assert!(error.contains("has another's keys"), "{error}");
    }
}
