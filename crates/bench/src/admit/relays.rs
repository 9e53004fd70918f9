//! The daemon's relays: real channels and the real side of the control plane, and no data plane.

use super::{BITS_OF_PACKET, PLACES, UPLINK_BITS, relay_name};
use anyhow::Context;
use canopy_channel::{Budget, Channel, Hello, Register, Registered};
use canopy_control::RelaySide;
use canopy_session::{Identity, PublicKey};
use canopy_wire::Time;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Connecting, and each step of registering, may take so long.
const DEADLINE: Duration = Duration::from_secs(5);
/// A relay calls again so long after its channel has ended.
const PAUSE: Duration = Duration::from_millis(50);

/// The relays, which end when this is dropped.
pub(super) struct Relays(#[expect(dead_code, reason = "what is dropped ends")] JoinSet<()>);

impl Relays {
    /// Starts so many relays that register at the controller, again and again if need be.
    pub(super) fn start(count: u16, controller: SocketAddr, key: PublicKey) -> Relays {
        let mut relays = JoinSet::new();
        for number in 0..count {
            relays.spawn(serve(number, controller, key));
        }
        Relays(relays)
    }
}

async fn serve(number: u16, controller: SocketAddr, key: PublicKey) {
    let (mut side, origin) = (RelaySide::new(1), Instant::now());
    loop {
        // While the controller is away there is nobody to be served.
        let _ = serve_once(number, controller, key, &mut side, origin).await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Serves on a channel until it ends.
async fn serve_once(
    number: u16,
    controller: SocketAddr,
    key: PublicKey,
    side: &mut RelaySide,
    origin: Instant,
) -> anyhow::Result<()> {
    let channel = register(number, controller, key).await?;
    // Calls whose answers were lost with the last channel come again.
    while side.poll_transmit().is_some() {}
    let Channel { mut sender, mut receiver, .. } = channel;
    let now = || Time::ZERO + origin.elapsed();
    loop {
        side.handle_timeout(now());
        while let Some(message) = side.poll_transmit() {
            sender.send(&message).await?;
        }
        let wait = side.poll_timeout().since(now());
        match tokio::time::timeout(wait, receiver.receive()).await {
            Ok(message) => side.handle_message(&message?),
            Err(_elapsed) => {}
        }
        while let Some(applying) = side.poll_apply() {
            side.applied(applying, Ok(()));
        }
    }
}

async fn register(number: u16, controller: SocketAddr, key: PublicKey) -> anyhow::Result<Channel> {
    let stream = TcpStream::connect(controller).await.context("it does not answer")?;
    let identity = Identity::new([number as u8 + 1; 32]);
    let mut channel = Channel::call(stream, &identity, &key, DEADLINE).await?;
    let packets = UPLINK_BITS / BITS_OF_PACKET;
    let register = Register {
        name: relay_name(number),
        native: ([10, 0, 0, 1], 7000 + number).into(),
        uplink: Budget {
            up_bits: UPLINK_BITS,
            up_packets: packets,
            down_bits: UPLINK_BITS,
            down_packets: packets,
        },
        places: PLACES,
        comtrees: Register::COMTREES,
        life: 1,
    };
    let _: Registered = channel.ask(&Hello::Register(register), DEADLINE).await?;
    Ok(channel)
}
