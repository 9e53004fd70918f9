//! The handshake's keys: Noise IK. The participant knows the relay's public key beforehand, sends
//! its own and what it asks for in the first message, and has the session's keys with the second.

use crate::curve::PublicKey;
use crate::primitives::{Identity, Pattern};
use crate::secret::{Secret, SeededRandom};
use canopy_wire::{TAG_LEN, Tag, VERSION};
use snow::types::Random;
use snow::{Builder, HandshakeState};

/// Bytes that the first message has beside its payload: an ephemeral key, a static key, two tags.
pub(crate) const FIRST_MORE: usize = 32 + 48 + 16;
/// Bytes that the second message has beside its payload.
pub(crate) const SECOND_MORE: usize = 32 + 16;

impl Random for SeededRandom {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        for chunk in dest.chunks_mut(32) {
            chunk.copy_from_slice(&self.draw()[..chunk.len()]);
        }
        Ok(())
    }
}

/// What both sides must mean alike for their messages to be read: the version, and the connect that
/// the first message is in. Without the latter, whoever has seen a message could send it in a
/// connect of its own, and would be given a session in another's name.
pub(crate) struct Prologue([u8; NAME.len() + 1 + 8 + TAG_LEN]);

const NAME: &[u8; 6] = b"canopy";

impl Prologue {
    pub(crate) fn new(nonce: u64, cookie: &Tag) -> Prologue {
        let mut bytes = [0; _];
        let (name, rest) = bytes.split_at_mut(NAME.len());
        name.copy_from_slice(NAME);
        rest[0] = VERSION;
        rest[1..9].copy_from_slice(&nonce.to_be_bytes());
        rest[9..].copy_from_slice(cookie);
        Prologue(bytes)
    }
}

fn builder<'own>(
    own: &'own Identity,
    seed: [u8; 32],
    prologue: &'own Prologue,
) -> Result<Builder<'own>, snow::Error> {
    own.handshake(Pattern::Ik, &prologue.0, SeededRandom::from_drawn(seed))
}

/// The secrets of a session, one for each direction.
pub(crate) struct Secrets {
    pub(crate) from_participant: Secret,
    pub(crate) from_relay: Secret,
}

impl Secrets {
    fn of(mut state: HandshakeState) -> Secrets {
        let (from_participant, from_relay) = state.dangerously_get_raw_split();
        Secrets { from_participant, from_relay }
    }
}

/// The participant's side, between its message and the relay's.
pub(crate) struct Initiator {
    state: HandshakeState,
}

impl Initiator {
    /// Writes the first message into `out`; returns its length too.
    pub(crate) fn begin(
        own: &Identity,
        relay: &PublicKey,
        seed: [u8; 32],
        prologue: &Prologue,
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<(Initiator, usize), snow::Error> {
        let builder = builder(own, seed, prologue)?.remote_public_key(relay)?;
        let mut state = builder.build_initiator()?;
        let len = state.write_message(payload, out)?;
        Ok((Initiator { state }, len))
    }

    /// Reads the second message; its payload into `out`. A message that is not the relay's changes
    /// nothing.
    pub(crate) fn read(&mut self, message: &[u8], out: &mut [u8]) -> Option<usize> {
        self.state.read_message(message, out).ok()
    }

    /// The session's secrets, after the second message has been read.
    pub(crate) fn finish(self) -> Secrets {
        Secrets::of(self.state)
    }
}

/// The relay's side, between the participant's message and its own.
pub(crate) struct Responder {
    state: HandshakeState,
}

impl Responder {
    /// Reads the first message; its payload into `out`.
    pub(crate) fn read(
        own: &Identity,
        seed: [u8; 32],
        prologue: &Prologue,
        message: &[u8],
        out: &mut [u8],
    ) -> Option<(Responder, usize)> {
        let mut state = builder(own, seed, prologue).ok()?.build_responder().ok()?;
        let len = state.read_message(message, out).ok()?;
        Some((Responder { state }, len))
    }

    /// Who the participant is.
    pub(crate) fn participant(&self) -> Option<PublicKey> {
        self.state.get_remote_static()?.try_into().ok()
    }

    /// Writes the second message into `out`; returns its length and the session's secrets.
    pub(crate) fn finish(mut self, payload: &[u8], out: &mut [u8]) -> Option<(usize, Secrets)> {
        let len = self.state.write_message(payload, out).ok()?;
        Some((len, Secrets::of(self.state)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::{PacketsPerKey, Reader, Sealer};
    use canopy_wire::Suite;

    const COOKIE: Tag = [8; TAG_LEN];
    const PER_KEY: PacketsPerKey = PacketsPerKey::PROTOCOL;

    fn prologue() -> Prologue {
        Prologue::new(7, &COOKIE)
    }

    fn identity(number: u8) -> Identity {
        Identity::new([number; 32])
    }

    fn begin(
        own: &Identity,
        relay: &PublicKey,
        payload: &[u8],
        out: &mut [u8],
    ) -> (Initiator, usize) {
        Initiator::begin(own, relay, [3; 32], &prologue(), payload, out).unwrap()
    }

    #[test]
    fn both_sides_have_the_same_secrets_and_know_each_other() {
        let (relay, participant) = (identity(1), identity(2));
        let mut first = [0; 200];
        let (mut initiator, len) = begin(&participant, relay.public(), b"let me in", &mut first);
        assert_eq!(len, FIRST_MORE + 9);
        let mut payload = [0; 200];
        let (responder, read) =
            Responder::read(&relay, [4; 32], &prologue(), &first[..len], &mut payload).unwrap();
        assert_eq!(&payload[..read], b"let me in");
        assert_eq!(responder.participant().as_ref(), Some(participant.public()));
        let mut second = [0; 200];
        let (len, of_relay) = responder.finish(b"welcome", &mut second).unwrap();
        assert_eq!(len, SECOND_MORE + 7);
        // What is not the relay's changes nothing.
        assert_eq!(initiator.read(&[9; 60], &mut payload), None);
        second[0] ^= 1;
        assert_eq!(initiator.read(&second[..len], &mut payload), None);
        second[0] ^= 1;
        assert_eq!(initiator.read(&second[..len], &mut payload), Some(7));
        let of_participant = initiator.finish();
        assert_eq!(of_relay.from_participant, of_participant.from_participant);
        assert_eq!(of_relay.from_relay, of_participant.from_relay);
        assert_ne!(of_relay.from_relay, of_relay.from_participant);
    }

    #[test]
    fn a_relay_with_another_key_reads_nothing() {
        let (relay, participant) = (identity(1), identity(2));
        let mut first = [0; 200];
        let len = begin(&participant, relay.public(), b"", &mut first).1;
        let read = |relay: &Identity, message: &[u8]| {
            Responder::read(relay, [4; 32], &prologue(), message, &mut [0; 200]).is_some()
        };
        assert!(read(&relay, &first[..len]) && !read(&identity(5), &first[..len]));
        for at in 0..len {
            let mut altered = first;
            altered[at] ^= 1;
            // X25519 ignores the top bit of a key, but the transcript does not.
            assert!(!read(&relay, &altered[..len]), "byte {at}");
            altered[at] ^= 0x81;
            assert!(!read(&relay, &altered[..len]), "byte {at}");
        }
    }

    /// Whoever has recorded a session and learns both private keys later. What is missing are the
    /// ephemeral keys, which nobody keeps: so it reads the first message, and nothing of what follows.
    #[test]
    fn both_long_term_keys_open_nothing_of_a_recorded_session() {
        let (relay, participant, seeds) = (identity(1), identity(2), [[3; 32], [4; 32]]);
        let (mut first, mut second, mut out) = ([0; 200], [0; 200], [0; 200]);
        let first = {
            let len = begin(&participant, relay.public(), b"let me in", &mut first).1;
            &first[..len]
        };
        let as_relay = |seed, out: &mut [u8]| {
            let mut payload = [0; 200];
            let (responder, len) =
                Responder::read(&relay, seed, &prologue(), first, &mut payload).unwrap();
            assert_eq!(&payload[..len], b"let me in");
            responder.finish(b"welcome", out).unwrap()
        };
        let (len, secrets) = as_relay(seeds[1], &mut second);
        let second = &second[..len];
        let recorded = [secrets.from_participant, secrets.from_relay].map(|secret| {
            let mut datagram = [0; 64];
            let mut sealer = Sealer::new(Suite::Aes128Gcm, &secret, PER_KEY);
            let len = sealer.seal(&mut datagram, 40);
            datagram[..len].to_vec()
        });
        let opens = |secrets: &Secrets| {
            [secrets.from_participant, secrets.from_relay].map(|secret| {
                let reader = Reader::new(Suite::Aes128Gcm, &secret, PER_KEY);
                recorded.iter().any(|datagram| reader.peek(datagram).is_some())
            })
        };
        let as_participant = |seed| {
            let (own, relay, mut out) = (&participant, relay.public(), [0; 200]);
            let begun = Initiator::begin(own, relay, seed, &prologue(), b"let me in", &mut out);
            let (mut initiator, _) = begun.unwrap();
            initiator.read(second, &mut out).map(|_| initiator.finish())
        };
        // With an ephemeral key of either side everything opens: that is all that is missing.
        assert_eq!(opens(&as_relay(seeds[1], &mut out).1), [true; 2]);
        assert_eq!(as_participant(seeds[0]).map(|secrets| opens(&secrets)), Some([true; 2]));
        let others = (0..=u8::MAX).map(|byte| [byte; 32]);
        for seed in others.filter(|seed| !seeds.contains(seed)) {
            assert_eq!(opens(&as_relay(seed, &mut out).1), [false; 2], "{seed:?}");
            assert!(as_participant(seed).is_none(), "{seed:?}");
        }
    }

    /// The prologue may be that of another version of the protocol, or of another connect.
    #[test]
    fn a_message_with_another_prologue_is_not_read() {
        let (relay, participant) = (identity(1), identity(2));
        let mut first = [0; 200];
        let len = begin(&participant, relay.public(), b"", &mut first).1;
        let read = |prologue: &Prologue| {
            Responder::read(&relay, [4; 32], prologue, &first[..len], &mut [0; 200]).is_some()
        };
        assert!(read(&prologue()));
        for at in 0..prologue().0.len() {
            let mut other = prologue();
            other.0[at] ^= 1;
            assert!(!read(&other), "byte {at}");
        }
    }
}
