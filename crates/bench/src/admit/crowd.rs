//! The daemon's participants: each asks one question over a channel of its own, as the SDK does.

use super::{near, relay_name, world};
use anyhow::{Context, ensure};
use canopy_channel::{Channel, ChannelError, Hello, Join, Nearness};
use canopy_session::{Identity, PublicKey};
use hdrhistogram::Histogram;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

/// An answer may take so long.
const DEADLINE: Duration = Duration::from_secs(20);
/// Who is refused asks again so often.
const AGAIN: u32 = 4;
/// Participants at a time of one ip: a controller takes 64 connections from it, and the ports of those that have
/// ended rest for a minute.
const OF_ONE_IP: u32 = 4;

/// What participants ask.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    Join,
    Renew,
    Leave,
}

/// A crowd that asks a controller.
#[derive(Clone)]
pub(super) struct Crowd {
    pub(super) controller: SocketAddr,
    pub(super) key: PublicKey,
    pub(super) endpoints: u32,
    pub(super) worlds: u32,
    pub(super) together: u32,
    /// How often somebody was refused and asked again.
    pub(super) asked_again: Arc<AtomicU32>,
}

impl Crowd {
    /// Has all ask, so many at a time. Returns how long each took, in microseconds.
    pub(super) async fn ask(&self, asked: Asked) -> anyhow::Result<Histogram<u64>> {
        let next = Arc::new(AtomicU32::new(0));
        let mut asking = JoinSet::new();
        for seat in 0..self.together {
            asking.spawn(self.clone().ask_in_turn(asked, seat, next.clone()));
        }
        let mut took = Histogram::new(3)?;
        while let Some(of_one) = asking.join_next().await {
            took.add(of_one??)?;
        }
        ensure!(took.len() == u64::from(self.endpoints), "some have not asked");
        Ok(took)
    }

    async fn ask_in_turn(
        self,
        asked: Asked,
        seat: u32,
        next: Arc<AtomicU32>,
    ) -> anyhow::Result<Histogram<u64>> {
        let from = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + seat / OF_ONE_IP);
        let mut took = Histogram::new(3)?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= self.endpoints {
                return Ok(took);
            }
            let begun = Instant::now();
            let done = self.ask_one(asked, number, from).await;
            done.with_context(|| format!("participant {number}"))?;
            took.record(begun.elapsed().as_micros() as u64)?;
        }
    }

    async fn ask_one(&self, asked: Asked, number: u32, from: Ipv4Addr) -> anyhow::Result<()> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((from, 0)))?;
        let stream = socket.connect(self.controller).await?;
        let mut channel = Channel::call(stream, &identity(number), &self.key, DEADLINE).await?;
        let hello = self.hello(asked, number);
        let mut answered = channel.ask::<Value>(&hello, DEADLINE).await;
        for _ in 0..AGAIN {
            if !matches!(answered, Err(ChannelError::Refused(_))) {
                break;
            }
            // A relay took its time: the place is kept, and asked for again.
            self.asked_again.fetch_add(1, Ordering::Relaxed);
            answered = channel.ask(&hello, DEADLINE).await;
        }
        let answer = answered?;
        let has_token = answer["token"].as_str().is_some_and(|token| !token.is_empty());
        ensure!(has_token != matches!(asked, Asked::Leave), "the controller answered {answer}");
        Ok(())
    }

    fn hello(&self, asked: Asked, number: u32) -> Hello {
        let world = world(number % self.worlds);
        let near = |(relay, delay_us)| Nearness { relay: relay_name(relay), delay_us };
        let visit = Some(1);
        let join = |world| Join {
            world,
            credential: None,
            budget: None,
            measured: self::near(number, self.worlds).map(near).collect(),
            visit,
        };
        match asked {
            Asked::Join => Hello::Join(join(world)),
            Asked::Renew => Hello::Renew(join(world)),
            Asked::Leave => Hello::Leave { world, credential: None, address: None, visit },
        }
    }
}

/// A participant has the same key whenever it asks.
fn identity(number: u32) -> Identity {
    let mut private = [7; 32];
    private[..4].copy_from_slice(&number.to_be_bytes());
    Identity::new(private)
}
