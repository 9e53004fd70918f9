//! The handshake's keys.

use crate::{ChannelError, MOST_HANDSHAKE};
use canopy_session::{Identity, PublicKey};
use snow::types::Random;
use snow::{HandshakeState, StatelessTransportState};

/// What both sides must mean alike: it tells channels from sessions with relays.
const PROLOGUE: &[u8] = b"canopy control 1";

/// Random numbers of the operating system.
#[derive(Clone)]
struct Random32;

impl Random for Random32 {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        getrandom::fill(dest).map_err(|_| snow::Error::Rng)
    }
}

/// One side's, between the messages.
pub(crate) struct Handshake(HandshakeState);

impl Handshake {
    pub(crate) fn caller(own: &Identity, controller: &PublicKey) -> Result<Handshake, snow::Error> {
        let builder = own.handshake(PROLOGUE, Random32)?.remote_public_key(controller)?;
        Ok(Handshake(builder.build_initiator()?))
    }

    pub(crate) fn controller(own: &Identity) -> Result<Handshake, snow::Error> {
        Ok(Handshake(own.handshake(PROLOGUE, Random32)?.build_responder()?))
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

    /// The other side's key, and the keys of the channel.
    pub(crate) fn finish(self) -> Result<(PublicKey, StatelessTransportState), ChannelError> {
        let peer = self.0.get_remote_static().and_then(|key| key.try_into().ok());
        let peer = peer.ok_or(ChannelError::NotACaller)?;
        Ok((peer, self.0.into_stateless_transport_mode()?))
    }
}
