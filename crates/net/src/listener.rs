//! The sockets of a relay: one address, and for each data thread a socket for each [`Lane`] of its
//! sessions and one for strangers.
//!
//! Anybody can send the packets with which a session is begun, as many as the line carries. They
//! come to a socket of their own, so that a flood of them fills that one's receive buffer and
//! costs the sessions nothing. In the same way a flood on one comtree fills the buffer of that
//! comtree's lane, and costs the other lanes nothing (Forest §2.2).

use crate::clock::Clock;
use crate::socket::{Socket, SocketOptions};
use crate::wait::{MOST_SOCKETS, Poller, Waker};
use canopy_wire::{Class, Lane, SessionId, Time, VERSION};
use std::io;
use std::iter;
use std::net::SocketAddr;
use std::sync::Arc;

/// Bytes of strangers' packets that may wait. They are short, and who sent one repeats it.
const STRANGERS_BUFFER: usize = 256 << 10;

/// Bytes that may wait to leave a data thread, or as many as the kernel grants. The kernel keeps
/// up to 208 KiB for each receiver that does not answer ARP, for some seconds, and counts them
/// here against twice as much: there must be room for a good number of those beside the others.
pub const SEND_BUFFER: usize = 2 << 20;

/// The first byte of what strangers send.
const OF_STRANGERS: u8 = VERSION | Class::Stranger as u8;

const _: () = assert!((Lane::COUNT as usize) < MOST_SOCKETS);

/// The sockets of one data thread. All have the same address; answers leave through one of them.
#[derive(Debug)]
pub struct ThreadSockets {
    /// By lane: what receives what sessions send.
    lanes: Vec<Socket>,
    /// Receives hellos and connects, and what is too short to say whose it is.
    pub strangers: Socket,
    /// Ends a wait for any of them.
    waker: Arc<Waker>,
    poller: Poller,
}

impl ThreadSockets {
    fn new(lanes: Vec<Socket>, strangers: Socket) -> io::Result<ThreadSockets> {
        let waker = Waker::new()?;
        let poller = Poller::new(lanes.iter().chain([&strangers]), &waker)?;
        Ok(ThreadSockets { lanes, strangers, waker: Arc::new(waker), poller })
    }

    /// Ends [`ThreadSockets::wait_readable`], from any thread.
    pub fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// What receives in a lane.
    pub fn lane(&self, lane: Lane) -> &Socket {
        &self.lanes[usize::from(lane.number())]
    }

    /// What sends. It receives too, in one of the lanes.
    pub fn sending(&self) -> &Socket {
        &self.lanes[0]
    }

    /// Waits until one of the sockets has something to read, the waker was used, or `until` is
    /// reached. Returns which have something, a bit for each: the lanes by their numbers, strangers behind
    /// them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait_readable(&self, clock: &Clock, until: Option<Time>) -> io::Result<u32> {
        self.poller.wait(|at| self.socket(at), &self.waker, clock, until)
    }

    /// Looks which of the sockets have something to read, as [`ThreadSockets::wait_readable`]. A waker
    /// that was used still ends the next wait.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn look(&self) -> io::Result<u32> {
        self.poller.look(|at| self.socket(at))
    }

    fn socket(&self, number: usize) -> &Socket {
        self.lanes.get(number).unwrap_or(&self.strangers)
    }
}

/// The sockets of `threads` data threads, which share one address; port 0 takes a free one.
///
/// The kernel chooses among them by what a datagram says: the session's number names its data thread
/// and its lane, and a stranger's goes to that thread's socket for strangers. So a session stays with
/// its data thread when its ip:port changes. What is too short to say goes to the strangers' of
/// thread 0.
///
/// Each lane may hold as many bytes as the options say: that is a bound, and the kernel takes memory
/// only for what waits.
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
    // Strangers' datagrams come one by one, so that a budget counts them.
    let for_strangers = SocketOptions {
        receive_offload: false,
        receive_buffer: STRANGERS_BUFFER.min(options.receive_buffer),
        ..options
    };
    // The kernel counts the sockets in the order in which they join. The first gets what is too short
    // to say whose it is.
    let first = Socket::bind_alone(address, &for_strangers)?;
    let address = first.local_address();
    first.share()?;
    let others = (1..threads).map(|_| Socket::join(address, &for_strangers));
    let strangers = iter::once(Ok(first)).chain(others).collect::<io::Result<Vec<_>>>()?;
    let mut lanes: Vec<Vec<Socket>> = strangers.iter().map(|_| Vec::new()).collect();
    for lane in Lane::all() {
        for lanes in &mut lanes {
            let socket = Socket::join(address, &options)?;
            let sends = lane.number() == 0;
            lanes.push(if sends { socket.with_sender() } else { socket });
        }
    }
    strangers[0].steer(&mut steering(threads.into()))?;
    let each = lanes.into_iter().zip(strangers);
    each.map(|(lanes, strangers)| ThreadSockets::new(lanes, strangers)).collect()
}

/// The program that names the socket for a datagram, by its number among those that share the
/// address: the strangers' sockets of the data threads are 0 to `threads` - 1; those of each lane
/// follow, in the same order. A datagram that is too short to be read from ends the program with 0.
///
/// ```text
/// thread = session / lanes % threads
/// if first byte is of strangers { thread } else { (session % lanes + 1) * threads + thread }
/// ```
fn steering(threads: u32) -> [libc::sock_filter; 15] {
    use libc::{
        BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_DIV, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD,
        BPF_MISC, BPF_MOD, BPF_MUL, BPF_RET, BPF_TAX, BPF_TXA, BPF_W, BPF_X,
    };
    let jump =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let step = |code: u32, k: u32| jump(code, k, 0, 0);
    let lanes = u32::from(Lane::COUNT);
    [
        // The session's number is behind the first byte, in the first word.
        step(BPF_LD | BPF_W | BPF_ABS, 0),
        step(BPF_ALU | BPF_AND | BPF_K, SessionId::NONE.number()),
        step(BPF_ALU | BPF_DIV | BPF_K, lanes),
        step(BPF_ALU | BPF_MOD | BPF_K, threads),
        step(BPF_MISC | BPF_TAX, 0),
        step(BPF_LD | BPF_B | BPF_ABS, 0),
        // What is not of strangers skips the two steps for them.
        jump(BPF_JMP | BPF_JEQ | BPF_K, OF_STRANGERS.into(), 0, 2),
        step(BPF_MISC | BPF_TXA, 0),
        step(BPF_RET | BPF_A, 0),
        // The lane is the low bits of the number's last byte.
        step(BPF_LD | BPF_B | BPF_ABS, 3),
        step(BPF_ALU | BPF_AND | BPF_K, lanes - 1),
        step(BPF_ALU | BPF_ADD | BPF_K, 1),
        step(BPF_ALU | BPF_MUL | BPF_K, threads),
        step(BPF_ALU | BPF_ADD | BPF_X, 0),
        step(BPF_RET | BPF_A, 0),
    ]
}
