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
pub(super) async fn all(relays: &[RelayPlace], most: Duration) -> Vec<Nearness> {
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

/// From a hello to the cookie that answers it. A hello that is lost is repeated.
async fn round_trip(relay: SocketAddr) -> std::io::Result<Duration> {
    let any = match relay {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(relay).await?;
    let mut seed = [0; 16];
    getrandom::fill(&mut seed)?;
    let mut session = Session::new(SessionConfig::new(Comtree(1), seed));
    let (start, mut bytes) = (Instant::now(), [0; MAX_DATAGRAM]);
    let mut sent = start;
    loop {
        let now = Time::ZERO + start.elapsed();
        if let Some(len) = session.poll_transmit(now, &mut bytes) {
            sent = Instant::now();
            socket.send(&bytes[..len]).await?;
        }
        let due = session.poll_timeout().unwrap_or(now).since(Time::ZERO);
        let Ok(received) = timeout_at(start + due, socket.recv(&mut bytes)).await else { continue };
        let len = received?;
        if Packet::new_checked(&bytes[..len]).is_ok_and(|packet| session.is_answered_by(&packet)) {
            return Ok(sent.elapsed());
        }
    }
}
