//! How far relays are.

use super::RelayPlace;
use canopy_channel::Nearness;
use canopy_session::{Session, SessionConfig};
use canopy_wire::{Comtree, MAX_DATAGRAM, Packet, Time};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

/// How near those of the relays are that answer in time, measured all at once.
pub(crate) async fn all(relays: &[RelayPlace], most: Duration) -> Vec<Nearness> {
    let mut measuring = JoinSet::new();
    for RelayPlace { name, address, .. } in relays.iter().cloned() {
        measuring.spawn(async move {
            let delay = timeout(most, round_trip(address)).await.ok()?.ok()? / 2;
            let delay_us = u32::try_from(delay.as_micros()).unwrap_or(u32::MAX);
            Some(Nearness { relay: name, delay_us })
        });
    }
    let mut measured: Vec<Nearness> = measuring.join_all().await.into_iter().flatten().collect();
    measured.sort_by_key(|near| near.delay_us);
    measured
}

/// From one hello to the cookie that answers it: how long the way to a relay and back is, measured without
/// a session. Nothing if there is no answer in time.
///
/// # Errors
/// No socket can be had, or the network says that nothing can be sent there.
pub async fn ask_once(relay: SocketAddr, most: Duration) -> std::io::Result<Option<Duration>> {
    let mut asking = Asking::new(relay).await?;
    let start = Instant::now();
    asking.send(Time::ZERO).await?;
    match timeout_at(start + most, asking.answered()).await {
        Ok(answered) => answered.map(|()| Some(start.elapsed())),
        Err(_) => Ok(None),
    }
}

/// From a hello to the cookie that answers it. A hello that is lost is repeated.
async fn round_trip(relay: SocketAddr) -> std::io::Result<Duration> {
    let mut asking = Asking::new(relay).await?;
    let start = Instant::now();
    let mut sent = start;
    loop {
        let now = Time::ZERO + start.elapsed();
        if asking.send(now).await? {
            sent = Instant::now();
        }
        let due = asking.session.poll_timeout().unwrap_or(now).since(Time::ZERO);
        if let Ok(answered) = timeout_at(start + due, asking.answered()).await {
            return answered.map(|()| sent.elapsed());
        }
    }
}

/// A socket of its own, and somebody who goes no further than the first answer.
struct Asking {
    socket: UdpSocket,
    session: Session,
    bytes: [u8; MAX_DATAGRAM],
}

impl Asking {
    async fn new(relay: SocketAddr) -> std::io::Result<Asking> {
        let any = match relay {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(relay).await?;
        let mut seed = [0; 16];
        getrandom::fill(&mut seed)?;
        let session = Session::new(SessionConfig::new(Comtree(1), seed));
        Ok(Asking { socket, session, bytes: [0; MAX_DATAGRAM] })
    }

    /// Sends a hello if one is due. Returns whether it was.
    async fn send(&mut self, now: Time) -> std::io::Result<bool> {
        let Some(len) = self.session.poll_transmit(now, &mut self.bytes) else { return Ok(false) };
        self.socket.send(&self.bytes[..len]).await?;
        Ok(true)
    }

    async fn answered(&mut self) -> std::io::Result<()> {
        loop {
            let len = self.socket.recv(&mut self.bytes).await?;
            let packet = Packet::new_checked(&self.bytes[..len]);
            if packet.is_ok_and(|packet| self.session.is_answered_by(&packet)) {
                return Ok(());
            }
        }
    }
}
