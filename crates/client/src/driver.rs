//! The task of a client: moves datagrams between the socket and the session, keeps the session's
//! time, and replaces a socket that has gone dead.

use crate::link::open_socket;
use crate::shared::Shared;
use canopy_net::{Receiver, Socket};
use canopy_wire::Time;
use std::cell::RefCell;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, Sleep};

/// Pieces of one receive call, each of which the kernel may fill with up to 64 KiB of datagrams.
const SLOTS: usize = 8;
const BYTES_PER_SLOT: usize = 65_535;
/// Receive calls in a row, before the other tasks of the thread get their turn.
const RECEIVES_PER_TURN: usize = 4;

thread_local! {
    /// Half a megabyte in which to receive. A client needs it only while it receives, which has no
    /// await in it, so one for each thread of the runtime serves any number of clients; one for
    /// each client would be half a gigabyte for a thousand.
    static RECEIVER: RefCell<Receiver> = RefCell::new(Receiver::new(SLOTS, BYTES_PER_SLOT));
}

pub(crate) struct Driver {
    shared: Arc<Shared>,
    socket: AsyncFd<Arc<Socket>>,
    receive_offload: bool,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        socket: Arc<Socket>,
        receive_offload: bool,
    ) -> io::Result<Driver> {
        Ok(Driver { shared, socket: watch(socket)?, receive_offload })
    }

    /// Runs until the world is left.
    pub(crate) async fn run(mut self) {
        let mut timer = pin!(tokio::time::sleep(Duration::MAX));
        let mut armed = None;
        while let Some(due) = self.shared.turn() {
            if armed != Some(due) {
                self.arm(timer.as_mut(), due);
                armed = Some(due);
            }
            tokio::select! {
                ready = self.socket.readable() => {
                    // Only while the runtime is shut down.
                    let Ok(mut ready) = ready else { return };
                    if receive(&self.shared) {
                        ready.clear_ready();
                    }
                }
                () = timer.as_mut() => armed = None,
                () = self.shared.nudge.notified() => {}
            }
            if self.shared.wants_new_socket() {
                self.reopen();
            }
        }
    }

    fn arm(&self, timer: Pin<&mut Sleep>, due: Time) {
        timer.reset(Instant::now() + due.since(self.shared.clock.now()));
    }

    /// Goes on with a new socket. To the relay that is a change of ip:port, which the session
    /// proves to be its own.
    fn reopen(&mut self) {
        let opened = open_socket(self.shared.relay, self.receive_offload);
        let opened = opened.and_then(|socket| Ok((watch(Arc::clone(&socket))?, socket)));
        // Without a network there is no socket either; the old one serves until the next try.
        if let Ok((watched, socket)) = opened {
            self.socket = watched;
            self.shared.use_socket(socket);
        }
    }
}

/// However the task ends, also with its runtime, nobody is left waiting.
impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// Tokio deprecates this way in for one that is `unsafe`, as it can't see that the descriptor stays
/// open and the same. It does: the socket owns it, and the `Arc` keeps the socket.
#[allow(deprecated)]
fn watch(socket: Arc<Socket>) -> io::Result<AsyncFd<Arc<Socket>>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

/// Receives what waits. Returns whether that was all.
fn receive(shared: &Shared) -> bool {
    RECEIVER.with_borrow_mut(|receiver| (0..RECEIVES_PER_TURN).any(|_| !shared.receive(receiver)))
}
