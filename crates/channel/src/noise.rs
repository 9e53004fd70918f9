//! The handshake's keys.

use crate::{ChannelError, MOST_HANDSHAKE};
use canopy_session::{Curve, Identity, PublicKey};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{BoxedCryptoResolver, CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState, StatelessTransportState};

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
/// What both sides must mean alike: it tells channels from sessions with relays.
const PROLOGUE: &[u8] = b"canopy control 1";

/// The primitives, with random numbers of the operating system.
struct Resolver;

struct Random32;

impl Random for Random32 {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        getrandom::fill(dest).map_err(|_| snow::Error::Rng)
    }
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Random32))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::new(Curve::default())),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// One side's, between the messages.
pub(crate) struct Handshake(HandshakeState);

impl Handshake {
    pub(crate) fn caller(own: &Identity, controller: &PublicKey) -> Result<Handshake, snow::Error> {
        let builder = builder()?.local_private_key(own.private())?.remote_public_key(controller)?;
        Ok(Handshake(builder.build_initiator()?))
    }

    pub(crate) fn controller(own: &Identity) -> Result<Handshake, snow::Error> {
        Ok(Handshake(builder()?.local_private_key(own.private())?.build_responder()?))
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

fn builder() -> Result<Builder<'static>, snow::Error> {
    let resolver: BoxedCryptoResolver = Box::new(Resolver);
    Builder::with_resolver(PATTERN.parse()?, resolver).prologue(PROLOGUE)
}
