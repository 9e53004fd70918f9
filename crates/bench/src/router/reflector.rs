//! What the router is measured against: `recvmmsg`, then `sendmmsg` of each datagram to everyone, and
//! nothing else; or the same with each datagram opened once and sealed for each receiver.

use anyhow::Context;
use canopy_batch::SendBatch;
use canopy_net::{Clock, Mmsg, Receiver, SendEngine, Socket, SocketOptions, Waker, wait_readable};
use canopy_wire::MAX_DATAGRAM;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::net::SocketAddr;
use std::process::ExitCode;

/// Datagrams of one receive call, as in the relay.
const RECEIVED: usize = 32;
/// Bytes of a sealed datagram that are not sealed: its number.
const NUMBER: usize = 8;
const TAG: usize = 16;

/// The socket of a reflector: with the relay's receive buffer, without any offload.
pub(super) fn open(listen: SocketAddr) -> anyhow::Result<Socket> {
    let options = SocketOptions { receive_offload: false, ..SocketOptions::default() };
    Socket::bind(listen, &options).context("cannot open the reflector's socket")
}

/// Sends everything that arrives to all of `to`, for ever.
pub(super) fn reflect(socket: &Socket, to: &[SocketAddr], seals: bool) -> anyhow::Result<ExitCode> {
    let (waker, clock) = (Waker::new()?, Clock::start());
    let mut receiver = Receiver::new(RECEIVED, MAX_DATAGRAM + 1);
    let mut engine = Mmsg::plain();
    let mut batch = SendBatch::new();
    let mut rest = Vec::new();
    let opener = Seal::new(0)?;
    let mut sealers =
        (1..).zip(to).map(|(number, _)| Seal::new(number)).collect::<Result<Vec<_>, _>>()?;
    loop {
        let more = receiver.fill(socket)?;
        batch.clear();
        while let Some((_, datagram)) = receiver.next(socket) {
            if !seals {
                batch.push_datagram(to[0], datagram);
                to[1..].iter().for_each(|to| batch.push_same(*to));
                continue;
            }
            let Some(body) = opener.open(datagram) else { continue };
            for (to, sealer) in to.iter().zip(&mut sealers) {
                let mut out = [0; MAX_DATAGRAM];
                let len = sealer.seal(body, &mut out)?;
                batch.push_datagram(*to, &out[..len]);
            }
        }
        if !batch.is_empty() {
            rest.clear();
            // What the kernel does not take is lost, and counted by whoever misses it.
            let _ = engine.send(socket, &batch, &mut rest);
        }
        if !more {
            wait_readable(socket, &waker, &clock, None)?;
        }
    }
}

/// One direction's key, known to both sides: the cipher of a link without its handshake.
pub(super) struct Seal {
    key: LessSafeKey,
    number: u64,
}

impl Seal {
    /// The key of the direction with this number.
    pub(super) fn new(number: u8) -> anyhow::Result<Seal> {
        let key = UnboundKey::new(&AES_128_GCM, &[number; 16]);
        let key = key.map_err(|_| anyhow::anyhow!("the cipher takes no key"))?;
        Ok(Seal { key: LessSafeKey::new(key), number: 0 })
    }

    /// Writes a sealed datagram and returns its length.
    pub(super) fn seal(&mut self, body: &[u8], out: &mut [u8]) -> anyhow::Result<usize> {
        self.number += 1;
        let number = self.number.to_be_bytes();
        let end = NUMBER + body.len();
        let room = out.get_mut(..end + TAG).context("the datagram is too long")?;
        room[..NUMBER].copy_from_slice(&number);
        room[NUMBER..end].copy_from_slice(body);
        let sealed = self.key.seal_in_place_separate_tag(
            nonce(number),
            Aad::from(number),
            &mut room[NUMBER..end],
        );
        let tag = sealed.map_err(|_| anyhow::anyhow!("the cipher does not seal"))?;
        room[end..].copy_from_slice(tag.as_ref());
        Ok(end + TAG)
    }

    /// The body of a sealed datagram, if it is one.
    pub(super) fn open<'a>(&self, datagram: &'a mut [u8]) -> Option<&'a [u8]> {
        let (number, sealed) = datagram.split_first_chunk_mut::<NUMBER>()?;
        let opened = self.key.open_in_place(nonce(*number), Aad::from(*number), sealed).ok()?;
        Some(opened)
    }

    /// How much longer a sealed datagram is than its body.
    pub(super) const MORE: usize = NUMBER + TAG;
}

fn nonce(number: [u8; NUMBER]) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number);
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_once_it_is_unchanged() {
        let mut sealer = Seal::new(3).unwrap();
        let opener = Seal::new(3).unwrap();
        let mut out = [0; 64];
        for body in [&b"one"[..], b"another"] {
            let len = sealer.seal(body, &mut out).unwrap();
            assert_eq!(len, body.len() + Seal::MORE);
            assert_eq!(opener.open(&mut { out }[..len]), Some(body));
            assert_eq!(Seal::new(4).unwrap().open(&mut { out }[..len]), None);
        }
    }
}
