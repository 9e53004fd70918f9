//! The handshake's keys.

use crate::{ChannelError, MOST_HANDSHAKE};
use canopy_session::{Identity, Pattern, PublicKey};
use snow::types::Random;
use snow::{HandshakeState, StatelessTransportState};

/// What both sides must mean alike: it tells channels from sessions with relays.
pub(crate) const PROLOGUE: &[u8] = b"canopy control 1";

/// The length of the first message of [`Pattern::Ik`], by which callers of earlier releases begin. Theirs tells who they are.
const FIRST_OF_IK: usize = 32 + 48 + 16;

/// Random numbers of the operating system.
#[derive(Clone)]
pub(crate) struct Random32;

impl Random for Random32 {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        getrandom::fill(dest).map_err(|_| snow::Error::Rng)
    }
}

/// One side's, between the messages.
pub(crate) struct Handshake(pub(crate) HandshakeState);

impl Handshake {
    pub(crate) fn caller(own: &Identity, controller: &PublicKey) -> Result<Handshake, snow::Error> {
        let builder = own.handshake(Pattern::Xk, PROLOGUE, Random32)?;
        Ok(Handshake(builder.remote_public_key(controller)?.build_initiator()?))
    }

    /// The controller's side, which has got the caller's first message.
    pub(crate) fn controller(own: &Identity, first: &[u8]) -> Result<Handshake, snow::Error> {
        let pattern = if first.len() == FIRST_OF_IK { Pattern::Ik } else { Pattern::Xk };
        let mut handshake =
            Handshake(own.handshake(pattern, PROLOGUE, Random32)?.build_responder()?);
        handshake.read(first)?;
        Ok(handshake)
    }

    /// Its next message.
    pub(crate) fn write(&mut self) -> Result<Vec<u8>, snow::Error> {
        let mut message = vec![0; MOST_HANDSHAKE];
        let len = self.0.write_message(&[], &mut message)?;
        message.truncate(len);
        Ok(message)
    }

    /// Takes the other side's message.
    pub(crate) fn read(&mut self, message: &[u8]) -> Result<(), snow::Error> {
        self.0.read_message(message, &mut [0; MOST_HANDSHAKE]).map(|_| ())
    }

    /// Whether both sides have said what they had to.
    pub(crate) fn is_complete(&self) -> bool {
        self.0.is_handshake_finished()
    }

    /// The other side's key, and the keys of the channel.
    pub(crate) fn finish(self) -> Result<(PublicKey, StatelessTransportState), ChannelError> {
        let peer = self.0.get_remote_static().and_then(|key| key.try_into().ok());
        let peer = peer.ok_or(ChannelError::NotACaller)?;
        Ok((peer, self.0.into_stateless_transport_mode()?))
    }
}
