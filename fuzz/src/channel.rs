//! What goes over a channel's connection: of somebody who has none of the keys, or as somebody on the way changes it.

use crate::bed::{input_of, requests};
use canopy_channel::{Channel, ChannelError, Pieces, pieces};
use canopy_session::Identity;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::time::timeout;

/// How many messages each side of a channel sends, and how long they are.
const LENGTHS: [usize; 4] = [0, 1, 100, 700];
/// Time is not real: it passes as soon as nobody has anything to do.
const PATIENCE: Duration = Duration::from_secs(1);
/// More than all that is said.
const ROOM: usize = 1 << 16;
/// What is said to a caller, or changed on the way.
const CALLER: u8 = 0;
const CONTROLLER: u8 = 1;
const CHANGED: u8 = 2;
const CUT: u8 = 3;
/// How many bytes say what is changed: how, where, and by what.
const CHANGE: usize = 4;

/// Connections, each behind a byte that says what becomes of it and the length of that in two bytes. Who has no key opens
/// no channel, what is changed on the way is noticed, and what arrives is the beginning of what was sent.
pub fn channel(input: &[u8]) {
    run_channel(input);
}

/// The same; returns how many messages have arrived on each connection that was changed.
pub fn run_channel(input: &[u8]) -> Vec<usize> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("it needs no thread");
    let mut arrived = Vec::new();
    for (what, bytes) in requests(input) {
        match what {
            CALLER | CONTROLLER => assert!(runtime.block_on(is_refused(what, bytes))),
            CHANGED => arrived.push(runtime.block_on(change(bytes))),
            _ => cut(bytes),
        }
    }
    arrived
}

fn identity(number: u8) -> Identity {
    Identity::new([number; 32])
}

/// Whether a caller, or a controller, that hears these bytes alone ends with a word.
async fn is_refused(who: u8, bytes: &[u8]) -> bool {
    let (own, mut other) = duplex(ROOM);
    other.write_all(&bytes[..bytes.len().min(ROOM)]).await.expect("there is room");
    other.shutdown().await.expect("it is open");
    let (own_key, their_key) = (identity(1), identity(2));
    let opened = match who {
        CALLER => Channel::call_over(split(own), &own_key, their_key.public(), PATIENCE).await,
        _ => Channel::accept_over(split(own), &own_key, PATIENCE).await,
    };
    opened.is_err_and(|error| !error.to_string().is_empty())
}

/// How many messages arrive of those that both sides of a channel send, as their bytes are changed on the way.
async fn change(changes: &[u8]) -> usize {
    let [(own, near), (far, other)] = [duplex(ROOM), duplex(ROOM)];
    let (caller, controller) = (identity(1), identity(2));
    let (up, down) = (Changes::of(changes, 0), Changes::of(changes, 1));
    let is_changed = !up.0.is_empty() || !down.0.is_empty();
    let call = Channel::call_over(split(own), &caller, controller.public(), PATIENCE);
    let accept = Channel::accept_over(split(other), &controller, PATIENCE);
    let ((near_read, near_write), (far_read, far_write)) = (split(near), split(far));
    let (called, accepted, ..) = tokio::join!(
        async { talk(call.await, 1).await },
        async { talk(accept.await, 2).await },
        up.carry(near_read, far_write),
        down.carry(far_read, near_write),
    );
    assert!(is_changed || (called, accepted) == (LENGTHS.len(), LENGTHS.len()));
    called + accepted
}

/// Sends all messages of one side, and returns how many of the other's arrive: those and no others, in order.
async fn talk(
    channel: Result<Channel<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>, ChannelError>,
    own: u8,
) -> usize {
    let Ok(mut channel) = channel else { return 0 };
    for length in LENGTHS {
        // Whoever heard something wrong has gone.
        if channel.send(&vec![own; length]).await.is_err() {
            return 0;
        }
    }
    let mut arrived = 0;
    while let Some(length) = LENGTHS.get(arrived) {
        let Ok(Ok(message)) = timeout(PATIENCE, channel.receive()).await else { break };
        assert_eq!(message, vec![3 - own; *length]);
        arrived += 1;
    }
    arrived
}

/// By place: what becomes of a byte that goes one way.
struct Changes(BTreeMap<usize, (u8, u8)>);

impl Changes {
    fn of(changes: &[u8], way: u8) -> Changes {
        let of_way = changes.chunks_exact(CHANGE).filter(|change| change[0] & 1 == way);
        let place = |change: &[u8]| usize::from(u16::from_be_bytes([change[1], change[2]]));
        Changes(of_way.map(|change| (place(change), (change[0] >> 1 & 3, change[3]))).collect())
    }

    /// Carries what goes one way until its sender has ended, or it is cut off.
    async fn carry(self, mut read: ReadHalf<DuplexStream>, mut write: WriteHalf<DuplexStream>) {
        let mut place = 0;
        'way: while let Ok(byte) = read.read_u8().await {
            let out: &[u8] = match self.0.get(&place) {
                None => &[byte],
                Some((0, by)) => &[byte ^ by],
                Some((1, _)) => &[],
                Some((2, more)) => &[*more, byte],
                Some(_) => break 'way,
            };
            if write.write_all(out).await.is_err() {
                break;
            }
            place += 1;
        }
        _ = write.shutdown().await;
    }
}

/// Puts pieces of a text together, as somebody cuts it, and as it is to be cut.
fn cut(bytes: &[u8]) {
    let mut together = Pieces::default();
    let (by, bytes) = bytes.split_first().unwrap_or((&1, &[]));
    for piece in bytes.chunks(usize::from(*by).max(1)) {
        if let Ok(Some(text)) = together.take(piece) {
            assert!(text.len() <= bytes.len());
        }
    }
    let mut whole = Pieces::default();
    let texts: Vec<_> = pieces(bytes).filter_map(|piece| whole.take(&piece).transpose()).collect();
    assert_eq!(texts, [Ok(bytes.to_vec())]);
}

/// Connections, as inputs for a fuzzer to begin with, each with a name.
pub fn channel_seeds() -> Vec<(&'static str, Vec<u8>)> {
    // A frame's length, and as many bytes.
    let frame = |length: u8| [&[0, length][..], &vec![7; length.into()]].concat();
    let change = |how: u8, way: u8, place: u16, by: u8| {
        let [high, low] = place.to_be_bytes();
        vec![how << 1 | way, high, low, by]
    };
    vec![
        ("untouched", input_of(&[(CHANGED, vec![])])),
        ("altered", input_of(&[(CHANGED, change(0, 0, 200, 1)), (CHANGED, change(0, 1, 60, 128))])),
        ("left-out", input_of(&[(CHANGED, change(1, 0, 120, 0)), (CHANGED, change(1, 1, 0, 0))])),
        ("put-in", input_of(&[(CHANGED, change(2, 0, 0, 1)), (CHANGED, change(2, 1, 90, 0))])),
        ("cut-off", input_of(&[(CHANGED, change(3, 0, 300, 0)), (CHANGED, change(3, 1, 20, 0))])),
        (
            "without-keys",
            input_of(&[(CALLER, frame(48)), (CONTROLLER, frame(48)), (CONTROLLER, frame(96))]),
        ),
        ("pieces", input_of(&[(CUT, [&[3][..], b"\x01ab\x01cd\x00ef"].concat())])),
    ]
}
