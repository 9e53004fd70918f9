//! The sockets of a relay: one address, and for each data thread a socket for the traffic of its
//! sessions and one for strangers.
//!
//! Anybody can send the packets with which a session is begun, as many as the line carries. They
//! come to a socket of their own, so that a flood of them fills that one's receive buffer and
//! costs the sessions nothing.

use crate::clock::Clock;
use crate::socket::{Socket, SocketOptions};
use crate::wait::{self, Waker};
use canopy_wire::{Class, SessionId, Time, VERSION};
use std::io;
use std::net::SocketAddr;

/// Bytes of strangers' packets that may wait. They are short, and who sent one repeats it.
const STRANGERS_BUFFER: usize = 256 << 10;

/// Bytes that may wait to leave a data thread, or as many as the kernel grants. The kernel keeps
/// up to 208 KiB for each receiver that does not answer ARP, for some seconds, and counts them
/// here against twice as much: there must be room for a good number of those beside the others.
pub const SEND_BUFFER: usize = 2 << 20;

/// The first byte of what strangers send.
const OF_STRANGERS: u8 = VERSION | Class::Stranger as u8;

/// The sockets of one data thread. Both have the same address; answers leave through `data`.
#[derive(Debug)]
pub struct ThreadSockets {
    /// Receives what sessions send, and sends.
    pub data: Socket,
    /// Receives hellos and connects only.
    pub strangers: Socket,
}

impl ThreadSockets {
    /// Waits until one of the sockets has something to read, the waker was used, or `until` is
    /// reached. Returns whether one has something.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait_readable(
        &self,
        waker: &Waker,
        clock: &Clock,
        until: Option<Time>,
    ) -> io::Result<bool> {
        wait::wait_for_either([&self.data, &self.strangers], waker, clock, until)
    }
}

/// The sockets of `threads` data threads, which share one address; port 0 takes a free one.
///
/// The kernel chooses among them by what a datagram says: a stranger's goes to a socket for
/// strangers, all others to one for data, and both by the session's number modulo `threads`. So a
/// session stays with its data thread when its ip:port changes. What is too short to say is
/// thread 0's.
///
/// The first socket is bound alone and opened to the others afterwards: an address that anybody
/// holds, be it another relay, is in use. So no relay joins another's sockets by mistake and takes
/// its datagrams.
///
/// # Errors
/// What the kernel says, for example that the address is in use.
pub fn listen(
    address: SocketAddr,
    threads: u16,
    options: &SocketOptions,
) -> io::Result<Vec<ThreadSockets>> {
    let threads = threads.max(1);
    let send_buffer = options.send_buffer.max(SEND_BUFFER);
    let options = SocketOptions { serves_many: true, send_buffer, ..*options };
    let first = Socket::bind(address, &options)?;
    let address = first.local_address();
    first.share()?;
    // The kernel counts them in the order in which they join.
    let mut data = vec![first];
    for _ in 1..threads {
        data.push(Socket::join(address, &options)?.with_sender());
    }
    // Their datagrams come one by one, so that a budget counts them.
    let options = SocketOptions {
        receive_offload: false,
        receive_buffer: STRANGERS_BUFFER.min(options.receive_buffer),
        ..options
    };
    let strangers = (0..threads).map(|_| Socket::join(address, &options));
    let strangers = strangers.collect::<io::Result<Vec<_>>>()?;
    data[0].steer(&mut steering(threads.into()))?;
    let pairs = data.into_iter().zip(strangers);
    Ok(pairs.map(|(data, strangers)| ThreadSockets { data, strangers }).collect())
}

/// The program that names the socket for a datagram, by its number among those that share the
/// address: the data threads' are 0 to `threads` - 1, their strangers' sockets follow in the same order.
/// A datagram that is too short to be read from ends the program with 0.
///
/// ```text
/// if first byte is of strangers { session % threads + threads } else { session % threads }
/// ```
fn steering(threads: u32) -> [libc::sock_filter; 11] {
    use libc::{
        BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD,
        BPF_MISC, BPF_MOD, BPF_RET, BPF_TAX, BPF_TXA, BPF_W,
    };
    let jump =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let step = |code: u32, k: u32| jump(code, k, 0, 0);
    [
        // The session's number is behind the first byte, in the first word.
        step(BPF_LD | BPF_W | BPF_ABS, 0),
        step(BPF_ALU | BPF_AND | BPF_K, SessionId::NONE.number()),
        step(BPF_ALU | BPF_MOD | BPF_K, threads),
        step(BPF_MISC | BPF_TAX, 0),
        step(BPF_LD | BPF_B | BPF_ABS, 0),
        // What is not of strangers skips the three steps for them.
        jump(BPF_JMP | BPF_JEQ | BPF_K, OF_STRANGERS.into(), 0, 3),
        step(BPF_MISC | BPF_TXA, 0),
        step(BPF_ALU | BPF_ADD | BPF_K, threads),
        step(BPF_RET | BPF_A, 0),
        step(BPF_MISC | BPF_TXA, 0),
        step(BPF_RET | BPF_A, 0),
    ]
}
