use super::*;
use canopy_session::Pattern;
use serde_json::json;
use tokio::io::AsyncReadExt;

const SOON: Duration = Duration::from_secs(5);

fn identity(number: u8) -> Identity {
    Identity::new([number; 32])
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    prepare_listener(&listener).unwrap();
    let (called, accepted) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (called.unwrap(), accepted.unwrap().0)
}

/// A channel's two ends: the caller's and the controller's.
async fn channel() -> (Channel, Channel) {
    let (called, accepted) = connection().await;
    let (caller, controller) = (identity(1), identity(2));
    let call = async {
        let mut called = Channel::call(called, &caller, controller.public(), SOON).await.unwrap();
        // As if nothing were said with it.
        called.sender.send_all([[0; 0]; 0]).await.unwrap();
        called
    };
    let (called, accepted) = tokio::join!(call, Channel::accept(accepted, &controller, SOON));
    (called, accepted.unwrap())
}

#[test]
fn both_ends_send_at_once_and_find_out_that_the_others_host_has_vanished() {
    run(async {
        let (caller, controller) = channel().await;
        for end in [caller, controller] {
            let stream = end.receiver.frames.into_inner().reunite(end.sender.write).unwrap();
            let socket = SockRef::from(&stream);
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            let probed = (socket.tcp_keepalive_time(), socket.tcp_keepalive_interval());
            assert_eq!((probed.0.unwrap(), probed.1.unwrap()), (PROBE, PROBE));
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(VANISHED));
        }
    });
}

#[test]
fn messages_of_every_length_go_both_ways_and_both_sides_know_each_other() {
    run(async {
        let (mut caller, mut controller) = channel().await;
        assert_eq!(caller.peer(), identity(2).public());
        assert_eq!(controller.peer(), identity(1).public());
        for len in [0, 1, 1000, MOST] {
            let message = vec![7; len];
            let (sent, got) = tokio::join!(caller.send(&message), controller.receive());
            sent.unwrap();
            assert_eq!(got.unwrap(), message);
            let (sent, got) = tokio::join!(controller.send(&message), caller.receive());
            sent.unwrap();
            assert_eq!(got.unwrap(), message);
        }
        let result = caller.send(&vec![0; MOST + 1]).await;
        assert!(matches!(result, Err(ChannelError::TooLong(_))), "{result:?}");
        drop(caller);
        assert!(matches!(controller.receive().await, Err(ChannelError::Ended)));
    });
}

#[test]
fn a_controller_with_another_key_is_refused() {
    run(async {
        let (called, accepted) = connection().await;
        let (caller, expected, other) = (identity(1), identity(2), identity(3));
        let (called, accepted) = tokio::join!(
            Channel::call(called, &caller, expected.public(), SOON),
            Channel::accept(accepted, &other, SOON)
        );
        // The one who answers cannot read who calls, and ends the connection.
        assert!(matches!(accepted, Err(ChannelError::NotACaller)), "{accepted:?}");
        assert!(matches!(called, Err(ChannelError::Ended | ChannelError::Io(_))), "{called:?}");
    });
}

#[test]
fn who_answers_without_the_key_is_not_believed() {
    run(async {
        let (called, accepted) = connection().await;
        let caller = identity(1);
        let answer = async {
            let (read, mut write) = accepted.into_split();
            let mut frames = Frames::new(read);
            let _first = frames.next(MOST_HANDSHAKE).await.unwrap();
            send_frame(&mut write, &[9; 48]).await.unwrap();
        };
        let expected = identity(2);
        let call = Channel::call(called, &caller, expected.public(), SOON);
        let (called, ()) = tokio::join!(call, answer);
        assert!(matches!(called, Err(ChannelError::NotTheController)), "{called:?}");
    });
}

/// Who calls, by what it has said, and what it asks; it says so with this pattern.
async fn accepted_from(
    pattern: Pattern,
    caller: &Identity,
    alter: impl FnOnce(&mut Vec<u8>),
) -> Result<(PublicKey, Hello), ChannelError> {
    let (called, accepted) = connection().await;
    let controller = identity(2);
    let (read, mut write) = called.into_split();
    let mut frames = Frames::new(read);
    let random = noise::Random32;
    let begun = caller.handshake(pattern, noise::PROLOGUE, random).unwrap();
    let begun = begun.remote_public_key(controller.public()).unwrap();
    let mut handshake = Handshake(begun.build_initiator().unwrap());
    let call = async {
        send_frame(&mut write, &handshake.write().unwrap()).await.unwrap();
        handshake.read(frames.next(MOST_HANDSHAKE).await.unwrap()).unwrap();
        if !handshake.is_complete() {
            let mut third = handshake.write().unwrap();
            alter(&mut third);
            send_frame(&mut write, &third).await.unwrap();
        }
        let mut called = Channel::of(handshake, frames, write, Vec::new()).unwrap();
        _ = called.ask::<()>(&Hello::Relays, SOON).await;
    };
    let accept = async {
        let mut accepted = Channel::accept(accepted, &controller, SOON).await?;
        let hello = accepted.asked(SOON).await?;
        Ok((*accepted.peer(), hello))
    };
    tokio::join!(call, accept).1
}

#[test]
fn callers_of_earlier_releases_are_known_too() {
    run(async {
        for pattern in [Pattern::Ik, Pattern::Xk] {
            let (peer, hello) = accepted_from(pattern, &identity(1), |_| ()).await.unwrap();
            assert_eq!((&peer, hello), (identity(1).public(), Hello::Relays), "{pattern:?}");
        }
    });
}

#[test]
fn who_calls_is_believed_only_with_the_key_and_whole() {
    run(async {
        // 48 bytes with the key, 16 that prove that the caller has its secret.
        for at in 0..64 {
            let alter = |third: &mut Vec<u8>| third[at] ^= 1;
            let accepted = accepted_from(Pattern::Xk, &identity(1), alter).await;
            assert!(matches!(accepted, Err(ChannelError::NotACaller)), "byte {at}: {accepted:?}");
        }
    });
}

#[test]
fn a_stranger_who_says_nothing_or_half_of_it_is_dropped_at_the_deadline() {
    run(async {
        for said in [&b""[..], &[0], &[0, 96, 1, 2, 3]] {
            let (mut called, accepted) = connection().await;
            called.write_all(said).await.unwrap();
            let began = tokio::time::Instant::now();
            let deadline = Duration::from_millis(50);
            let accepted = Channel::accept(accepted, &identity(2), deadline).await;
            assert!(matches!(accepted, Err(ChannelError::Silent(_))), "{accepted:?}");
            assert!(began.elapsed() >= deadline);
            assert_eq!(called.read(&mut [0; 8]).await.unwrap_or(0), 0, "the connection has ended");
        }
    });
}

#[test]
fn handshakes_that_are_too_long_short_or_empty_are_refused_at_once() {
    run(async {
        for said in [&[0xff, 0xff][..], &[1, 1], &[0, 0], &[0, 3, 1, 2, 3]] {
            let (mut called, accepted) = connection().await;
            called.write_all(said).await.unwrap();
            let accepted = Channel::accept(accepted, &identity(2), SOON).await.unwrap_err();
            assert!(!matches!(accepted, ChannelError::Silent(_)), "{said:?}: {accepted:?}");
        }
    });
}

#[test]
fn messages_that_are_sent_together_arrive_in_order_and_none_of_them_is_too_long() {
    run(async {
        let (mut caller, mut controller) = channel().await;
        caller.sender.send_all([&b"one"[..], b"", &[7; 300]]).await.unwrap();
        assert_eq!(controller.receiver.received().unwrap(), None, "nothing was waited for");
        assert_eq!(controller.receive().await.unwrap(), b"one");
        // They left in one piece.
        assert_eq!(controller.receiver.received().unwrap().unwrap(), b"");
        assert_eq!(controller.receiver.received().unwrap().unwrap(), [7; 300]);
        assert_eq!(controller.receiver.received().unwrap(), None);
        caller.send(b"last").await.unwrap();
        assert_eq!(controller.receive().await.unwrap(), b"last");
        let long = vec![0; MOST + 1];
        let refused = caller.sender.send_all([&b"short"[..], &long]).await;
        assert!(matches!(refused, Err(ChannelError::TooLong(_))), "{refused:?}");
    });
}

#[test]
fn a_message_that_is_altered_repeated_or_cut_is_not_taken() {
    run(async {
        for case in 0..4 {
            let (mut caller, mut controller) = channel().await;
            let mut sealed = vec![0; 3 + TAG];
            let len = caller.sender.seal.write_message(0, b"yes", &mut sealed).unwrap();
            assert_eq!(len, sealed.len());
            let write = &mut caller.sender.write;
            match case {
                0 => {
                    sealed[1] ^= 1;
                    send_frame(write, &sealed).await.unwrap();
                }
                1 => {
                    send_frame(write, &sealed).await.unwrap();
                    assert_eq!(controller.receive().await.unwrap(), b"yes");
                    send_frame(write, &sealed).await.unwrap();
                }
                2 => send_frame(write, &sealed[..TAG - 1]).await.unwrap(),
                _ => {
                    write.write_all(&[0, 40, 1, 2, 3]).await.unwrap();
                    drop(caller);
                    let ended = controller.receive().await;
                    assert!(matches!(ended, Err(ChannelError::Ended)), "{ended:?}");
                    continue;
                }
            }
            let result = controller.receive().await;
            assert!(matches!(result, Err(ChannelError::Forged)), "{case}: {result:?}");
        }
    });
}

#[test]
fn a_receive_that_is_given_up_halfway_loses_nothing() {
    run(async {
        let (mut caller, mut controller) = channel().await;
        let mut sealed = vec![0; 3 + TAG];
        caller.sender.seal.write_message(0, b"yes", &mut sealed).unwrap();
        let write = &mut caller.sender.write;
        write.write_all(&[0, sealed.len() as u8, sealed[0]]).await.unwrap();
        let given_up = timeout(Duration::from_millis(20), controller.receive()).await;
        assert!(given_up.is_err());
        write.write_all(&sealed[1..]).await.unwrap();
        assert_eq!(controller.receive().await.unwrap(), b"yes");
    });
}

#[test]
fn what_is_asked_is_answered_or_refused() {
    run(async {
        let (mut caller, mut controller) = channel().await;
        let register = Hello::Register(Register {
            name: "a".to_owned(),
            native: ([127, 0, 0, 1], 4040).into(),
            uplink: Budget { up_bits: 1, up_packets: 2, down_bits: 3, down_packets: 4 },
            places: 5,
            comtrees: 8,
            life: 6,
        });
        let registered = Registered { relay: 7, issuers: "key".to_owned() };
        let answer = async {
            assert_eq!(controller.asked(SOON).await.unwrap(), register);
            controller.reply(&Reply::Done(registered.clone())).await.unwrap();
            assert_eq!(controller.asked(SOON).await.unwrap(), Hello::Relays);
            controller.reply(&Reply::<()>::Refused(json!({ "what": "no" }))).await.unwrap();
        };
        let ask = async {
            assert_eq!(caller.ask::<Registered>(&register, SOON).await.unwrap(), registered);
            let refused = caller.ask::<Registered>(&Hello::Relays, SOON).await;
            assert!(matches!(refused, Err(ChannelError::Refused(why)) if why["what"] == "no"));
        };
        tokio::join!(answer, ask);
    });
}

#[test]
fn a_hello_is_json_that_says_what_is_asked() {
    let text = r#"{"ask":"join","world":"w","measured":[{"relay":"a","delay_us":5}]}"#;
    let Ok(Hello::Join(join)) = serde_json::from_str(text) else { panic!("{text}") };
    assert_eq!((join.world.as_str(), join.measured[0].delay_us), ("w", 5));
    let again = serde_json::to_string(&Hello::Join(join)).unwrap();
    assert_eq!(again, text);
    assert!(serde_json::from_str::<Hello>(r#"{"ask":"reign"}"#).is_err());
    assert!(serde_json::from_str::<Hello>(r#"{"ask":"leave","world":"w","more":1}"#).is_err());
}
