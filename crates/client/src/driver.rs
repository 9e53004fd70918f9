//! The task of a client on tokio: moves datagrams between the socket and the member, and keeps its
//! time.

use crate::member::Member;
use crate::shared::Shared;
use canopy_net::{Receiver, Socket};
use canopy_wire::Time;
use std::cell::RefCell;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
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
    /// The other relay's, while the member goes from one to another.
    beside: Option<AsyncFd<Arc<Socket>>>,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>) -> io::Result<Driver> {
        let socket = watch(Arc::clone(shared.lock().socket()))?;
        Ok(Driver { shared, socket, beside: None })
    }

    /// Runs until the world is left.
    pub(crate) async fn run(mut self) {
        let mut timer = pin!(tokio::time::sleep(Duration::MAX));
        let mut armed = None;
        while let Some(due) = self.shared.with(Member::turn) {
            self.follow_sockets();
            #[cfg(feature = "join")]
            if self.shared.needs_a_keeper() {
                self.shared.lack.notify_one();
            }
            if armed != Some(due) {
                self.arm(timer.as_mut(), due);
                armed = Some(due);
            }
            tokio::select! {
                ready = self.socket.readable() => {
                    // Only while the runtime is shut down.
                    let Ok(mut ready) = ready else { return };
                    if receive(&self.shared, Member::receive) {
                        ready.clear_ready();
                    }
                }
                ready = readable(self.beside.as_ref()) => {
                    let Ok(mut ready) = ready else { return };
                    if receive(&self.shared, Member::receive_beside) {
                        ready.clear_ready();
                    }
                }
                () = timer.as_mut() => armed = None,
                () = self.shared.nudge.notified() => {}
            }
        }
    }

    fn arm(&self, timer: Pin<&mut Sleep>, due: Time) {
        timer.reset(Instant::now() + due.since(self.shared.now()));
    }

    /// Watches the member's sockets, which it may have replaced. None is watched twice.
    fn follow_sockets(&mut self) {
        let (socket, beside) = {
            let member = self.shared.lock();
            (Arc::clone(member.socket()), member.socket_beside().cloned())
        };
        let is = |watched: &AsyncFd<Arc<Socket>>, socket: &Arc<Socket>| {
            Arc::ptr_eq(watched.get_ref(), socket)
        };
        if let Some(other) = self.beside.as_mut().filter(|other| is(other, &socket)) {
            std::mem::swap(&mut self.socket, other);
        }
        // If the system can watch no more, the next turn tries again.
        if !is(&self.socket, &socket)
            && let Ok(watched) = watch(socket)
        {
            self.socket = watched;
        }
        self.beside = match (self.beside.take(), beside) {
            (Some(watched), Some(other)) if is(&watched, &other) => Some(watched),
            (_, other) => other.and_then(|other| watch(other).ok()),
        };
    }
}

/// However the task ends, also with its runtime, nobody is left waiting.
impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.with(|member, _| member.end());
        #[cfg(feature = "join")]
        self.shared.lack.notify_one();
    }
}

/// Tokio deprecates this way in for one that is `unsafe`, as it can't see that the descriptor stays
/// open and the same. It does: the socket owns it, and the `Arc` keeps the socket.
#[allow(deprecated)]
fn watch(socket: Arc<Socket>) -> io::Result<AsyncFd<Arc<Socket>>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

/// Waits until there is something to be received; forever if there is no socket.
async fn readable(
    watched: Option<&AsyncFd<Arc<Socket>>>,
) -> io::Result<AsyncFdReadyGuard<'_, Arc<Socket>>> {
    match watched {
        Some(watched) => watched.readable().await,
        None => std::future::pending().await,
    }
}

/// Receives what waits. Returns whether that was all.
fn receive(shared: &Shared, receive: impl Fn(&mut Member, Time, &mut Receiver) -> bool) -> bool {
    RECEIVER.with_borrow_mut(|receiver| {
        let mut more = || shared.with(|member, now| receive(member, now, receiver));
        (0..RECEIVES_PER_TURN).any(|_| !more())
    })
}
