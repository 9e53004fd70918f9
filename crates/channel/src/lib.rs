//! Sealed messages between the controller and whoever asks it, over TCP.
//!
//! The handshake is Noise IK, as between participants and relays: the caller knows the controller's
//! public key, and the controller learns the caller's. Each message has a number within the seal, so
//! nothing on the way can be altered, left out, repeated or put in another order unnoticed.
//!
//! ```text
//!  u16 length │ first message       caller → controller
//!  u16 length │ second message      controller → caller
//!  u16 length │ sealed message      both ways, from then on
//! ```
//!
//! The first sealed message is a [`Hello`], which says what the caller wants.
//!
//! A host that vanishes without a word is noticed within three seconds, by both sides: TCP probes the
//! connection each second.
#![forbid(unsafe_code)]

mod error;
mod hello;
mod noise;
mod pieces;

#[cfg(test)]
mod tests;

pub use error::ChannelError;
pub use hello::{Budget, Hello, Join, Nearness, Register, Registered, Reply};
pub use pieces::{NoPiece, Pieces, pieces};

use canopy_session::{Identity, PublicKey};
use noise::Handshake;
use snow::StatelessTransportState;
use socket2::{SockRef, TcpKeepalive};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Bytes that a sealed message has beside what is in it.
const TAG: usize = 16;
/// Bytes before each message that say its length.
const PREFIX: usize = 2;
/// The longest message, bytes.
pub const MOST: usize = u16::MAX as usize - TAG;
/// A connection on which nothing is sent is probed this often.
const PROBE: Duration = Duration::from_secs(1);
/// A connection ends when the other side's host has confirmed nothing for so long.
const VANISHED: Duration = Duration::from_secs(3);
/// The longest message of a handshake, bytes: its payload is empty.
const MOST_HANDSHAKE: usize = 256;

/// A channel to somebody whose key is known.
#[derive(Debug)]
pub struct Channel {
    /// What is sent.
    pub sender: Sender,
    /// What is received.
    pub receiver: Receiver,
    peer: PublicKey,
}

impl Channel {
    /// Calls the controller with this key on a connection. It takes at most as long as the deadline
    /// says.
    ///
    /// # Errors
    /// The other side has another key, says something else, or does not answer in time.
    pub async fn call(
        stream: TcpStream,
        own: &Identity,
        controller: &PublicKey,
        deadline: Duration,
    ) -> Result<Channel, ChannelError> {
        within(deadline, async {
            let (mut read, mut write) = split(stream)?;
            let mut handshake = Handshake::caller(own, controller)?;
            send_frame(&mut write, &handshake.write()?).await?;
            let second = read_handshake(&mut read).await?;
            handshake.read(&second).map_err(|_| ChannelError::NotTheController)?;
            Channel::of(handshake, read, write)
        })
        .await
    }

    /// Answers a caller on a connection; [`Channel::peer`] says who it is. It takes at most as long as
    /// the deadline says.
    ///
    /// # Errors
    /// The other side means another controller, says something else, or says nothing in time.
    pub async fn accept(
        stream: TcpStream,
        own: &Identity,
        deadline: Duration,
    ) -> Result<Channel, ChannelError> {
        within(deadline, async {
            let (mut read, mut write) = split(stream)?;
            let mut handshake = Handshake::controller(own)?;
            let first = read_handshake(&mut read).await?;
            handshake.read(&first).map_err(|_| ChannelError::NotACaller)?;
            send_frame(&mut write, &handshake.write()?).await?;
            Channel::of(handshake, read, write)
        })
        .await
    }

    fn of(
        handshake: Handshake,
        read: OwnedReadHalf,
        write: OwnedWriteHalf,
    ) -> Result<Channel, ChannelError> {
        let (peer, seal) = handshake.finish()?;
        let seal = Arc::new(seal);
        let sender = Sender { seal: seal.clone(), number: 0, write };
        let receiver = Receiver { seal, number: 0, read, buffer: Vec::new() };
        Ok(Channel { sender, receiver, peer })
    }

    /// The other side's public key.
    pub fn peer(&self) -> &PublicKey {
        &self.peer
    }

    /// Sends a message; see [`Sender::send`].
    ///
    /// # Errors
    /// The message is too long, or the connection has ended.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        self.sender.send(message).await
    }

    /// The next message; see [`Receiver::receive`].
    ///
    /// # Errors
    /// The connection has ended, or what came is not the other side's.
    pub async fn receive(&mut self) -> Result<Vec<u8>, ChannelError> {
        self.receiver.receive().await
    }

    /// Asks one thing and returns what is answered, within the deadline.
    ///
    /// # Errors
    /// The other side refused and says why, did not answer in time, or answered something else.
    pub async fn ask<T: serde::de::DeserializeOwned>(
        &mut self,
        hello: &Hello,
        deadline: Duration,
    ) -> Result<T, ChannelError> {
        within(deadline, async {
            let message = serde_json::to_vec(hello).map_err(ChannelError::Text)?;
            self.send(&message).await?;
            match serde_json::from_slice(&self.receive().await?).map_err(ChannelError::Text)? {
                Reply::Done(answer) => Ok(answer),
                Reply::Refused(why) => Err(ChannelError::Refused(why)),
            }
        })
        .await
    }

    /// What the caller asks for, within the deadline.
    ///
    /// # Errors
    /// It says something else, or nothing in time.
    pub async fn asked(&mut self, deadline: Duration) -> Result<Hello, ChannelError> {
        let message = within(deadline, self.receive()).await?;
        serde_json::from_slice(&message).map_err(ChannelError::Text)
    }

    /// Answers what was asked for.
    ///
    /// # Errors
    /// The answer is too long, or the connection has ended.
    pub async fn reply<T: serde::Serialize>(
        &mut self,
        reply: &Reply<T>,
    ) -> Result<(), ChannelError> {
        let message = serde_json::to_vec(reply).map_err(ChannelError::Text)?;
        self.send(&message).await
    }
}

/// The sending half of a channel.
#[derive(Debug)]
pub struct Sender {
    seal: Arc<StatelessTransportState>,
    number: u64,
    write: OwnedWriteHalf,
}

impl Sender {
    /// Sends a message of at most [`MOST`] bytes. If this is given up halfway, the channel is to be
    /// dropped.
    ///
    /// # Errors
    /// The message is too long, or the connection has ended.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        if message.len() > MOST {
            return Err(ChannelError::TooLong(message.len()));
        }
        let mut sealed = vec![0; message.len() + TAG];
        let len = self.seal.write_message(self.number, message, &mut sealed)?;
        self.number += 1;
        send_frame(&mut self.write, &sealed[..len]).await
    }
}

/// The receiving half of a channel.
#[derive(Debug)]
pub struct Receiver {
    seal: Arc<StatelessTransportState>,
    number: u64,
    read: OwnedReadHalf,
    /// What has come of the next message.
    buffer: Vec<u8>,
}

impl Receiver {
    /// The next message. If this is given up halfway, nothing is lost: the next call goes on.
    ///
    /// # Errors
    /// The connection has ended, or what came is not the other side's.
    pub async fn receive(&mut self) -> Result<Vec<u8>, ChannelError> {
        fill_frame(&mut self.read, &mut self.buffer, usize::from(u16::MAX)).await?;
        let sealed = &self.buffer[PREFIX..];
        let mut message = vec![0; sealed.len()];
        let read = self.seal.read_message(self.number, sealed, &mut message);
        let len = read.map_err(|_| ChannelError::Forged)?;
        self.number += 1;
        message.truncate(len);
        self.buffer.clear();
        Ok(message)
    }
}

fn split(stream: TcpStream) -> Result<(OwnedReadHalf, OwnedWriteHalf), ChannelError> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE).with_interval(PROBE))?;
    socket.set_tcp_user_timeout(Some(VANISHED))?;
    Ok(stream.into_split())
}

async fn within<T>(
    deadline: Duration,
    what: impl Future<Output = Result<T, ChannelError>>,
) -> Result<T, ChannelError> {
    timeout(deadline, what).await.unwrap_or(Err(ChannelError::Silent(deadline)))
}

async fn read_handshake(read: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, ChannelError> {
    let mut frame = Vec::new();
    fill_frame(read, &mut frame, MOST_HANDSHAKE).await?;
    Ok(frame.split_off(PREFIX))
}

/// Reads until the buffer has a whole frame, with its length before it. What has come stays in the
/// buffer if this is given up.
async fn fill_frame(
    read: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    most: usize,
) -> Result<(), ChannelError> {
    loop {
        let wanted = match buffer.first_chunk() {
            None => PREFIX,
            Some(length) => {
                let length = usize::from(u16::from_be_bytes(*length));
                if length > most {
                    return Err(ChannelError::TooLong(length));
                }
                PREFIX + length
            }
        };
        let missing = wanted - buffer.len();
        if missing == 0 && wanted > PREFIX {
            return Ok(());
        }
        if missing == 0 {
            return Err(ChannelError::Forged);
        }
        if read.take(missing as u64).read_buf(buffer).await? == 0 {
            return Err(ChannelError::Ended);
        }
    }
}

async fn send_frame(
    write: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Result<(), ChannelError> {
    let length = u16::try_from(bytes.len()).map_err(|_| ChannelError::TooLong(bytes.len()))?;
    let mut frame = Vec::with_capacity(PREFIX + bytes.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(bytes);
    Ok(write.write_all(&frame).await?)
}
