//! Sealed messages between the controller and whoever asks it, over TCP.
//!
//! The handshake is Noise XK: the caller knows the controller's public key, and tells its own once the
//! controller has proved to have that. Each message has a number within the seal, so nothing on the way
//! can be altered, left out, repeated or put in another order unnoticed.
//!
//! ```text
//!  u16 length │ first message       caller → controller
//!  u16 length │ second message      controller → caller
//!  u16 length │ third message       caller → controller, together with what follows
//!  u16 length │ sealed message      both ways, from then on
//! ```
//!
//! The first sealed message is a [`Hello`], which says what the caller wants. It is what makes the third
//! message leave, so the handshake takes no more ways than one of two messages, and the caller speaks first.
//!
//! Callers of earlier releases begin with Noise IK, whose first message is longer and whose second one is the last.
//!
//! A host that vanishes without a word is noticed within three seconds, by both sides: TCP probes the
//! connection each second.
#![forbid(unsafe_code)]

mod error;
mod frames;
mod hello;
mod noise;
mod pieces;

#[cfg(test)]
mod tests;

pub use error::ChannelError;
pub use hello::{Budget, Hello, Join, Nearness, Register, Registered, Reply};
pub use pieces::{NoPiece, Pieces, pieces};

use canopy_session::{Identity, PublicKey};
use frames::{Frames, push_empty_frame, push_frame};
use noise::Handshake;
use snow::StatelessTransportState;
use socket2::{SockRef, TcpKeepalive};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Bytes that a sealed message has beside what is in it.
const TAG: usize = 16;
const MOST_SEALED: usize = u16::MAX as usize;
/// The longest message, bytes.
pub const MOST: usize = MOST_SEALED - TAG;
/// A connection on which nothing is sent is probed this often.
const PROBE: Duration = Duration::from_secs(1);
/// A connection ends when the other side's host has confirmed nothing for so long.
const VANISHED: Duration = Duration::from_secs(3);
/// Answers are no longer than this for the most part.
const MOSTLY: usize = 2048;
/// The longest message of a handshake, bytes: its payload is empty.
const MOST_HANDSHAKE: usize = 256;

/// A channel to somebody whose key is known, over TCP or what else carries bytes both ways.
#[derive(Debug)]
pub struct Channel<R = OwnedReadHalf, W = OwnedWriteHalf> {
    /// What is sent.
    pub sender: Sender<W>,
    /// What is received.
    pub receiver: Receiver<R>,
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
        prepare(SockRef::from(&stream))?;
        Channel::call_over(stream.into_split(), own, controller, deadline).await
    }

    /// Answers a caller on a connection of a listener that was [prepared](prepare_listener);
    /// [`Channel::peer`] says who it is. It takes at most as long as the deadline says.
    ///
    /// # Errors
    /// The other side means another controller, says something else, or says nothing in time.
    pub async fn accept(
        stream: TcpStream,
        own: &Identity,
        deadline: Duration,
    ) -> Result<Channel, ChannelError> {
        Channel::accept_over(stream.into_split(), own, deadline).await
    }
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Channel<R, W> {
    /// The same as [`Channel::call`] over what carries bytes.
    ///
    /// # Errors
    /// As there.
    pub async fn call_over(
        (read, mut write): (R, W),
        own: &Identity,
        controller: &PublicKey,
        deadline: Duration,
    ) -> Result<Channel<R, W>, ChannelError> {
        within(deadline, async {
            let mut frames = Frames::new(read);
            let mut handshake = Handshake::caller(own, controller)?;
            send_frame(&mut write, &handshake.write()?).await?;
            let second = frames.next(MOST_HANDSHAKE).await?;
            handshake.read(second).map_err(|_| ChannelError::NotTheController)?;
            let mut third = Vec::new();
            push_frame(&mut third, &handshake.write()?)?;
            Channel::of(handshake, frames, write, third)
        })
        .await
    }

    /// The same as [`Channel::accept`] over what carries bytes.
    ///
    /// # Errors
    /// As there.
    pub async fn accept_over(
        (read, mut write): (R, W),
        own: &Identity,
        deadline: Duration,
    ) -> Result<Channel<R, W>, ChannelError> {
        within(deadline, async {
            let mut frames = Frames::new(read);
            let first = frames.next(MOST_HANDSHAKE).await?;
            let begun = Handshake::controller(own, first);
            let mut handshake = begun.map_err(|_| ChannelError::NotACaller)?;
            send_frame(&mut write, &handshake.write()?).await?;
            if !handshake.is_complete() {
                let third = frames.next(MOST_HANDSHAKE).await?;
                handshake.read(third).map_err(|_| ChannelError::NotACaller)?;
            }
            Channel::of(handshake, frames, write, Vec::new())
        })
        .await
    }

    fn of(
        handshake: Handshake,
        frames: Frames<R>,
        write: W,
        waiting: Vec<u8>,
    ) -> Result<Channel<R, W>, ChannelError> {
        let (peer, seal) = handshake.finish()?;
        let seal = Arc::new(seal);
        let sender = Sender { seal: seal.clone(), number: 0, write, waiting };
        let receiver = Receiver { seal, number: 0, frames };
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
        let mut message = Vec::with_capacity(MOSTLY);
        serde_json::to_writer(&mut message, reply).map_err(ChannelError::Text)?;
        self.send(&message).await
    }
}

/// Has all connections that a listener accepts be what channels need: they leave what is sent at once, and end if
/// the other side's host has vanished. Each takes it over, so it costs no call for each.
///
/// # Errors
/// What the operating system says.
pub fn prepare_listener(listener: &TcpListener) -> std::io::Result<()> {
    prepare(SockRef::from(listener))
}

fn prepare(socket: SockRef<'_>) -> std::io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE).with_interval(PROBE))?;
    socket.set_tcp_user_timeout(Some(VANISHED))
}

/// The sending half of a channel.
#[derive(Debug)]
pub struct Sender<W = OwnedWriteHalf> {
    seal: Arc<StatelessTransportState>,
    number: u64,
    write: W,
    /// What leaves with the next message.
    waiting: Vec<u8>,
}

impl<W: AsyncWrite + Unpin> Sender<W> {
    /// Sends a message of at most [`MOST`] bytes. If this is given up halfway, the channel is to be
    /// dropped.
    ///
    /// # Errors
    /// The message is too long, or the connection has ended.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        self.send_all([message]).await
    }

    /// Sends several messages, as [`Sender::send`] does, in one piece if the connection takes it.
    ///
    /// # Errors
    /// As there. Messages before one that is too long leave with the next call.
    pub async fn send_all<M: AsRef<[u8]>>(
        &mut self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<(), ChannelError> {
        for message in messages {
            let message = message.as_ref();
            if message.len() > MOST {
                return Err(ChannelError::TooLong(message.len()));
            }
            let sealed = push_empty_frame(&mut self.waiting, message.len() + TAG)?;
            self.seal.write_message(self.number, message, sealed)?;
            self.number += 1;
        }
        let out = std::mem::take(&mut self.waiting);
        self.write.write_all(&out).await?;
        Ok(self.write.flush().await?)
    }
}

/// The receiving half of a channel.
#[derive(Debug)]
pub struct Receiver<R = OwnedReadHalf> {
    seal: Arc<StatelessTransportState>,
    number: u64,
    frames: Frames<R>,
}

impl<R: AsyncRead + Unpin> Receiver<R> {
    /// The next message. If this is given up halfway, nothing is lost: the next call goes on.
    ///
    /// # Errors
    /// The connection has ended, or what came is not the other side's.
    pub async fn receive(&mut self) -> Result<Vec<u8>, ChannelError> {
        let sealed = self.frames.next(MOST_SEALED).await?;
        open(&self.seal, &mut self.number, sealed)
    }

    /// The next message, if all of it came along with the one before.
    ///
    /// # Errors
    /// What came is not the other side's.
    pub fn received(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        let sealed = self.frames.ready(MOST_SEALED)?;
        sealed.map(|sealed| open(&self.seal, &mut self.number, sealed)).transpose()
    }
}

/// Opens the message of this number, and counts it.
fn open(
    seal: &StatelessTransportState,
    number: &mut u64,
    sealed: &[u8],
) -> Result<Vec<u8>, ChannelError> {
    let mut message = vec![0; sealed.len()];
    let len = seal.read_message(*number, sealed, &mut message);
    message.truncate(len.map_err(|_| ChannelError::Forged)?);
    *number += 1;
    Ok(message)
}

async fn within<T>(
    deadline: Duration,
    what: impl Future<Output = Result<T, ChannelError>>,
) -> Result<T, ChannelError> {
    timeout(deadline, what).await.unwrap_or(Err(ChannelError::Silent(deadline)))
}

async fn send_frame(
    write: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Result<(), ChannelError> {
    let mut frame = Vec::new();
    push_frame(&mut frame, bytes)?;
    write.write_all(&frame).await?;
    Ok(write.flush().await?)
}
