//! Receiving goes on after what the system could not do for a moment.
//!
//! A filter makes the system call fail on one thread, and there for good; another thread still
//! receives.

use canopy_net::{Receiver, Socket, SocketOptions};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::env::consts::ARCH;
use std::thread;

/// From now on receiving fails with `error` on this thread.
fn fail(error: i32) -> Result<(), Box<dyn std::error::Error>> {
    let rules = [(libc::SYS_recvmmsg, Vec::new())].into();
    let (pass, fail) = (SeccompAction::Allow, SeccompAction::Errno(error as u32));
    let filter = SeccompFilter::new(rules, pass, fail, ARCH.try_into()?)?;
    Ok(seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?)
}

fn socket() -> Socket {
    Socket::bind("127.0.0.1:0".parse().unwrap(), &SocketOptions::default()).unwrap()
}

/// What three calls say on a thread where receiving fails with `error`; None if it cannot be made
/// to fail.
fn receive_failing(
    receiver: &mut Receiver,
    socket: &Socket,
    error: i32,
) -> Option<Vec<Option<i32>>> {
    let failing = || {
        fail(error).inspect_err(|error| println!("skipped: {error}")).ok()?;
        let mut code = || match receiver.receive(socket, |_, _| panic!("nothing is received")) {
            Ok(more) => {
                assert!(!more);
                None
            }
            Err(error) => error.raw_os_error(),
        };
        Some(vec![code(), code(), code()])
    };
    thread::scope(|scope| scope.spawn(failing).join().unwrap())
}

#[test]
fn a_want_of_memory_is_counted_and_outlived() {
    let (sender, socket, mut receiver) = (socket(), socket(), Receiver::new(2, 2_000));
    sender.connect(socket.local_address()).unwrap();
    sender.send(b"hello").unwrap();
    for (round, error) in (1..).zip([libc::ENOMEM, libc::ENOBUFS, libc::EIO, libc::EPERM]) {
        let Some(said) = receive_failing(&mut receiver, &socket, error) else { return };
        assert_eq!(said, [None; 3], "{error}");
        assert_eq!(socket.failed_receives(), 3 * round);
    }
    let mut heard = Vec::new();
    receiver.receive(&socket, |_, bytes| heard.push(bytes.to_vec())).unwrap();
    assert_eq!(heard, [b"hello"]);
}

#[test]
fn what_no_call_can_mend_is_handed_up_at_once() {
    let (socket, mut receiver) = (socket(), Receiver::new(2, 2_000));
    for error in [libc::EBADF, libc::ENOTSOCK, libc::EINVAL] {
        let Some(said) = receive_failing(&mut receiver, &socket, error) else { return };
        assert_eq!(said, [Some(error); 3]);
    }
}
