//! What an older kernel lacks, by a filter that has this one answer as if it had never heard of it.

use canopy_batch::SendBatch;
use canopy_engines::{Engine, EngineChoice, EngineName};
use canopy_net::{Receiver, SendEngine, Socket, SocketOptions};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::env::consts::ARCH;

/// From now on `call` fails with `error` on this thread, where its third argument is `option`.
fn forget(call: i64, option: Option<i32>, error: i32) -> Result<(), Box<dyn std::error::Error>> {
    let is_it = |option: i32| {
        SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, option as u64)
            .and_then(|condition| SeccompRule::new(vec![condition]))
    };
    let rules = option.map(is_it).transpose()?.into_iter().collect();
    let (pass, fail) = (SeccompAction::Allow, SeccompAction::Errno(error as u32));
    let filter = SeccompFilter::new([(call, rules)].into(), pass, fail, ARCH.try_into()?)?;
    Ok(seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?)
}

fn socket() -> Socket {
    Socket::bind("127.0.0.1:0".parse().unwrap(), &SocketOptions::default()).unwrap()
}

#[test]
fn what_an_old_kernel_lacks_is_named_and_done_without() {
    let (sender, receiver) = (socket(), socket());
    let forgotten = forget(libc::SYS_io_uring_setup, None, libc::ENOSYS)
        .and_then(|()| forget(libc::SYS_setsockopt, Some(libc::UDP_SEGMENT), libc::ENOPROTOOPT));
    if let Err(error) = forgotten {
        return println!("skipped: {error}");
    }
    for (name, parts) in [
        (EngineName::Gso, ["UDP_SEGMENT", "Linux 4.18"]),
        (EngineName::Uring, ["io_uring", "Linux 5.11"]),
    ] {
        let error = Engine::open(EngineChoice::Named(name), &sender).err().expect("it is missing");
        let said = error.to_string();
        assert!(said.contains(name.name()), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
    let mut engine = Engine::open(EngineChoice::Auto, &sender).unwrap();
    assert_eq!(engine.name(), EngineName::Sendmmsg);
    assert!(engine.why().contains("Linux 4.18"), "{}", engine.why());

    let mut batch = SendBatch::new();
    batch.push_burst(receiver.local_address(), &[b"onetwothree"], 3);
    assert_eq!(engine.send(&sender, &batch, &mut Vec::new()).report.sent, 4);
    let mut arrived = Vec::new();
    let mut receive = Receiver::new(8, 65_535);
    while receive.receive(&receiver, |_, bytes| arrived.push(bytes.to_vec())).unwrap() {}
    assert_eq!(arrived, [&b"one"[..], b"two", b"thr", b"ee"]);
}
