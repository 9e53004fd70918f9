//! Participants that join.

use super::*;

/// A daemon that trusts one key, and the folder that says so.
async fn trusting() -> (Daemon, tempfile::TempDir) {
    trusting_with(1).await
}

/// The same with so many relays.
async fn trusting_with(relays: u8) -> (Daemon, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    std::fs::write(&path, format!("keys = [\"{}\"]", key(5).public())).unwrap();
    let trust = crate::trust::TrustFile::open(path).unwrap();
    (Daemon::admitting(relays, Admits::Trusted(trust)).await, folder)
}

/// A credential for the client key that is all ones.
fn credential(subject: &str, world: &str, up_bits: u64, signer: &SigningKey) -> String {
    credential_on(1, subject, world, up_bits, signer)
}

/// The same, for the world's comtree of this number.
fn credential_on(
    comtree: u32,
    subject: &str,
    world: &str,
    up_bits: u64,
    signer: &SigningKey,
) -> String {
    let now = UnixTime(crate::controller::driver::now().as_nanos() / 1_000_000_000);
    let grant: canopy_token::Grant = serde_json::from_value(json!({
        "world": world, "budget": { "up_bits": up_bits },
        "comtrees": [{ "id": comtree, "pub": { "groups": ["0-7"], "level": 2 } }],
    }))
    .unwrap();
    let claims = canopy_token::Claims {
        subject: subject.to_owned(),
        id: "1".to_owned(),
        expires: now.after(60),
        not_before: None,
        client_key: [1; 32],
        grant,
    };
    signer.issue(&claims).unwrap()
}

fn leave_by(credential: &str) -> LeaveAsk {
    let (world, credential) = ("lobby".to_owned(), Some(credential.to_owned()));
    LeaveAsk { world, credential, address: None, visit: None }
}

fn join_by(credential: &str) -> JoinAsk {
    JoinAsk {
        world: "lobby".to_owned(),
        credential: Some(credential.to_owned()),
        client_key: [1; 32],
        budget: None,
        measured: Vec::new(),
        visit: 0,
    }
}

#[tokio::test]
async fn participants_join_with_a_credential_for_the_world() {
    let (daemon, _folder) = trusting().await;
    daemon.world("lobby", 2).await;
    let credential =
        |world: &str, up_bits, by: &SigningKey| credential("player", world, up_bits, by);
    let ask = |credential: Option<String>| JoinAsk {
        world: "lobby".to_owned(),
        credential,
        client_key: [1; 32],
        budget: Some(canopy_api::Budget {
            up_bits: 1000,
            up_packets: 10,
            down_bits: 1000,
            down_packets: 10,
        }),
        measured: Vec::new(),
        visit: 0,
    };
    let good = credential("lobby", 1000, &key(5));
    for (credential, status, words) in [
        (None, 401, "there is none"),
        (Some(credential("lobby", 1000, &key(6))), 401, "not trusted"),
        (Some(credential("arena", 1000, &key(5))), 403, "for the world arena"),
        (Some(credential("lobby", 999, &key(5))), 403, "more than your credential grants, 999"),
    ] {
        let problem = daemon.joins.join(ask(credential)).await.unwrap_err();
        assert_eq!(problem.status, status, "{problem}");
        assert!(problem.to_string().contains(words), "{problem}");
    }
    let stolen = JoinAsk { client_key: [2; 32], ..ask(Some(good.clone())) };
    assert_eq!(daemon.joins.join(stolen).await.unwrap_err().status, 403);
    assert_eq!(daemon.get("/v1/health").await["members"], 0);

    let joined = daemon.joins.join(ask(Some(good.clone()))).await.unwrap();
    let claims = canopy_token::Claims::read_unverified(&joined.token).unwrap();
    // The credential grants the first of the world's two comtrees, and eight groups there.
    assert_eq!(claims.grant.comtrees.len(), 1);
    assert_eq!(claims.grant.comtrees[0].comtree.0, joined.comtrees[0]);
    assert_eq!(claims.grant.comtrees[0].publish.groups[0].to_string(), "0-7");
    assert!(claims.grant.comtrees[0].subscribe.is_empty());
    assert_eq!(claims.grant.budget.up_bits, Some(1000));
    // The place's token does not stand in for the credential, whose end would not count any more.
    let own = daemon.joins.join(ask(Some(joined.token.clone()))).await.unwrap_err();
    assert_eq!(own.status, 401);
    daemon.joins.leave(&[1; 32], leave_by(&good)).await.unwrap();
    daemon.until("/v1/health", |health| health["members"] == 0).await;
    let gone = daemon.joins.leave(&[1; 32], leave_by(&good)).await.unwrap_err();
    assert_eq!(gone.status, 404);
}

#[tokio::test]
async fn a_token_grants_no_level_that_the_world_has_not() {
    let (daemon, _folder) = trusting().await;
    daemon.world("lobby", 1).await;
    let by_credential = credential("player", "lobby", 1000, &key(5));
    for (levels, granted) in [(0, 0), (1, 1), (3, 2), (1, 1)] {
        let change = json!({ "levels": levels }).to_string();
        assert!(daemon.send("PATCH", "/v1/worlds/lobby", &change).await.0.is_success());
        let joined = daemon.joins.join(join_by(&by_credential)).await.unwrap();
        let claims = canopy_token::Claims::read_unverified(&joined.token).unwrap();
        assert_eq!(claims.grant.comtrees[0].publish.level.0, granted, "the credential has 2");
        let (_, let_in) = daemon.send("POST", "/v1/worlds/lobby/members", &new_member(7)).await;
        let token = let_in["token"].as_str().unwrap();
        let of = |token: &str| {
            let of = &canopy_token::Claims::read_unverified(token).unwrap().grant.comtrees[0];
            (of.publish.level.0, of.subscribe.level.0)
        };
        assert_eq!(of(token), (levels, levels));
        // Whose token is of before has them with the next one.
        let by_token = JoinAsk { client_key: [7; 32], ..join_by(token) };
        let raised = json!({ "levels": levels + 1 }).to_string();
        assert!(daemon.send("PATCH", "/v1/worlds/lobby", &raised).await.0.is_success());
        let renewed = daemon.joins.join(by_token).await.unwrap();
        assert_eq!(of(&renewed.token), (levels + 1, levels + 1));
    }
}

#[tokio::test]
async fn whom_a_backend_lets_in_stays_and_moves_by_its_own_token() {
    let daemon = Daemon::start(2).await;
    daemon.world("lobby", 1).await;
    daemon.world("arena", 1).await;
    let link = r#"{"ends": ["a", "b"], "bits": 1000000000, "packets": 1000000, "delay_us": 5}"#;
    assert!(daemon.send("POST", "/v1/links", link).await.0.is_success());
    daemon.until("/v1/links", |links| links["links"][0]["usable"] == true).await;
    let path = "/v1/worlds/lobby/members";
    let (_, let_in) = daemon.send("POST", path, &new_member(1)).await;
    let token = let_in["token"].as_str().unwrap().to_owned();
    let ask = |token: &str| JoinAsk {
        world: "lobby".to_owned(),
        credential: Some(token.to_owned()),
        client_key: [1; 32],
        budget: None,
        measured: ["a", "b"]
            .map(|of| canopy_api::Nearness { relay: of.into(), delay_us: 5 })
            .into(),
        visit: 0,
    };
    let renewed = daemon.joins.join(ask(&token)).await.unwrap();
    assert_eq!(
        (&renewed.address[..], renewed.token == token),
        (let_in["address"].as_str().unwrap(), false)
    );
    // A bit of the signature, which stands before the footer.
    let (signed, footer) = token.rsplit_once('.').unwrap();
    let at = signed.len() - 10;
    let other = if &signed[at..=at] == "A" { "B" } else { "A" };
    let forged = format!("{}{other}{}.{footer}", &signed[..at], &signed[at + 1..]);
    for (wrong, status) in [
        (JoinAsk { client_key: [2; 32], ..ask(&token) }, 403),
        (JoinAsk { world: "arena".to_owned(), ..ask(&token) }, 403),
        (ask(&forged), 401),
    ] {
        assert_eq!(daemon.joins.join(wrong).await.unwrap_err().status, status);
    }
    let mut more = canopy_token::Claims::read_unverified(&token).unwrap().grant.budget;
    more.up_bits = more.up_bits.map(|bits| bits + 1);
    let [up_bits, up_packets] = [more.up_bits, more.up_packets].map(Option::unwrap);
    let [down_bits, down_packets] = [more.down_bits, more.down_packets].map(Option::unwrap);
    let budget = Some(canopy_api::Budget { up_bits, up_packets, down_bits, down_packets });
    let greedy = daemon.joins.join(JoinAsk { budget, ..ask(&token) }).await.unwrap_err();
    assert_eq!(greedy.status, 403, "{greedy}");
    // Its relay drains: it gets a place at the other one, and gives the old one back.
    let drain = format!("/v1/relays/{}/drain", renewed.relay.name);
    assert!(daemon.send("POST", &drain, "").await.0.is_success());
    let moved = daemon.joins.relocate(ask(&renewed.token)).await.unwrap();
    assert_ne!((&moved.relay.name, &moved.address), (&renewed.relay.name, &renewed.address));
    let back = LeaveAsk { address: Some(renewed.address), ..leave_by(&moved.token) };
    daemon.joins.leave(&[1; 32], back).await.unwrap();
    daemon.until("/v1/health", |health| health["members"] == 1).await;
    // A token that has ended is none.
    let claims = canopy_token::Claims::read_unverified(&moved.token).unwrap();
    let ended = canopy_token::Claims { expires: UnixTime(1), ..claims };
    let ended = daemon.issuer.issue(&ended).unwrap();
    assert_eq!(daemon.joins.join(ask(&ended)).await.unwrap_err().status, 401);
    // Its backend sends it away, and bars it for a moment only: it needs to be let in again.
    let kick = format!("{path}/{}?bar_s=0", moved.address);
    assert_eq!(daemon.send("DELETE", &kick, "").await.0, StatusCode::ACCEPTED);
    daemon.until("/v1/health", |health| health["members"] == 0).await;
    let over = daemon.joins.join(ask(&moved.token)).await.unwrap_err();
    assert!(over.status == 401 && over.to_string().contains("has ended"), "{over}");
}

#[tokio::test]
async fn members_are_found_by_what_their_backend_calls_them() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let path = "/v1/worlds/lobby/members";
    let mut addresses = Vec::new();
    for number in [1, 2] {
        let (_, let_in) = daemon.send("POST", path, &new_member(number)).await;
        addresses.push(let_in["address"].clone());
    }
    let found = daemon.get(&format!("{path}?subject=player-2")).await;
    let found: Vec<_> = found["members"].as_array().unwrap().iter().collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["address"], &found[0]["subject"]), (&addresses[1], &json!("player-2")));
    let nobody = daemon.get(&format!("{path}?subject=player")).await;
    assert_eq!(nobody["members"], json!([]));
}

#[tokio::test]
async fn who_comes_in_otherwise_is_in_by_that_alone() {
    let (daemon, _folder) = trusting().await;
    daemon.world("lobby", 1).await;
    let path = "/v1/worlds/lobby/members";
    let let_in = async || {
        let (status, let_in) = daemon.send("POST", path, &new_member(1)).await;
        assert!(status.is_success(), "{let_in}");
        let_in["token"].as_str().unwrap().to_owned()
    };
    let is_superseded = async |token: &str| {
        let problem = daemon.joins.renew(join_by(token)).await.unwrap_err();
        assert!(problem.status == 401 && problem.to_string().contains("otherwise"), "{problem}");
        let problem = daemon.joins.leave(&[1; 32], leave_by(token)).await.unwrap_err();
        assert_eq!(problem.status, 401, "{problem}");
    };
    let first = let_in().await;
    let by_itself = credential("player-1", "lobby", 999, &key(5));
    let joined = daemon.joins.join(join_by(&by_itself)).await.unwrap();
    let claims = canopy_token::Claims::read_unverified(&joined.token).unwrap();
    assert_eq!(claims.grant.budget.up_bits, Some(999), "the place bears no more than that");
    is_superseded(&first).await;
    daemon.joins.renew(join_by(&by_itself)).await.unwrap();
    // Its backend lets it in, again and again: what is from before counts no more, these do.
    let (second, third) = (let_in().await, let_in().await);
    is_superseded(&first).await;
    for token in [&second, &third] {
        let renewed = daemon.joins.renew(join_by(token)).await.unwrap();
        let claims = canopy_token::Claims::read_unverified(&renewed.token).unwrap();
        assert_eq!(
            (renewed.address == joined.address, claims.grant.budget.up_bits),
            (true, Some(999))
        );
    }
    // Who was sent away and let in again is not in by what it had before.
    let kick = format!("{path}/{}?bar_s=0", joined.address);
    assert_eq!(daemon.send("DELETE", &kick, "").await.0, StatusCode::ACCEPTED);
    daemon.until("/v1/health", |health| health["members"] == 0).await;
    let fourth = let_in().await;
    is_superseded(&third).await;
    daemon.joins.leave(&[1; 32], leave_by(&fourth)).await.unwrap();
}

#[tokio::test]
async fn who_leaves_gives_no_place_back_that_a_later_join_has() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let join = |visit| JoinAsk { visit, credential: None, ..join_by("") };
    let leave = |visit| LeaveAsk { visit, credential: None, ..leave_by("") };
    let first = daemon.joins.join(join(1)).await.unwrap();
    let second = daemon.joins.join(join(2)).await.unwrap();
    assert_eq!(first.address, second.address);
    let place = || LeaveAsk { address: Some(first.address.clone()), ..leave(Some(1)) };
    for abandoned in [leave(Some(1)), place()] {
        let problem = daemon.joins.leave(&[1; 32], abandoned.clone()).await.unwrap_err();
        assert!(problem.status == 409 && problem.to_string().contains("joined again"), "{problem}");
        // A late renewal does not make the place its own again.
        daemon.joins.renew(join(1)).await.unwrap();
    }
    assert_eq!(daemon.get("/v1/health").await["members"], 1);
    // Nor does a late join, which nobody waits for any more.
    let late = daemon.joins.join(join(1)).await.unwrap_err();
    assert!(late.status == 409 && late.to_string().contains("begun later"), "{late}");
    daemon.joins.join(join(2)).await.expect("an answer that went astray comes again");
    daemon.joins.leave(&[1; 32], leave(Some(2))).await.unwrap();
    daemon.until("/v1/health", |health| health["members"] == 0).await;
    // A client of an earlier release does not say.
    daemon.joins.join(join(3)).await.unwrap();
    daemon.joins.leave(&[1; 32], leave(None)).await.unwrap();
}

/// The limits of all places, as bits that are sent.
async fn limits_of_places(daemon: &Daemon) -> Vec<f64> {
    let sent = |controller: &mut Controller, _| {
        let served = |state| matches!(state, MemberState::Held | MemberState::Moving);
        let members = controller.members().filter(|member| served(member.state));
        members.map(|member| member.limits.send.bits).collect()
    };
    daemon.handle.ask(sent).await.unwrap()
}

#[tokio::test]
async fn what_a_credential_grants_bounds_each_place_that_somebody_gets_by_it() {
    let (daemon, _folder) = trusting_with(2).await;
    daemon.world("lobby", 1).await;
    let link = r#"{"ends": ["a", "b"], "bits": 1000000000, "packets": 1000000, "delay_us": 5}"#;
    assert!(daemon.send("POST", "/v1/links", link).await.0.is_success());
    daemon.until("/v1/links", |links| links["links"][0]["usable"] == true).await;
    let near = |relays: &[&str]| -> Vec<canopy_api::Nearness> {
        relays.iter().map(|of| canopy_api::Nearness { relay: (*of).into(), delay_us: 5 }).collect()
    };
    let by = |up_bits| credential("player-1", "lobby", up_bits, &key(5));
    // The credential says nothing of packets, so the world's limits count beside it.
    daemon.joins.join(JoinAsk { measured: near(&["a"]), ..join_by(&by(5000)) }).await.unwrap();
    assert_eq!(limits_of_places(&daemon).await, [5000.0]);
    assert!(daemon.send("POST", "/v1/relays/a/drain", "").await.0.is_success());
    let to = |relays: &[&str]| JoinAsk { measured: near(relays), ..join_by(&by(999)) };
    // There is nowhere to go: what it has stays as it is.
    daemon.joins.relocate(to(&["a"])).await.unwrap_err();
    assert_eq!(limits_of_places(&daemon).await, [5000.0]);
    let nothing = credential_on(2, "player-1", "lobby", 999, &key(5));
    let refused = daemon.joins.renew(join_by(&nothing)).await.unwrap_err();
    assert!(refused.to_string().contains("nothing on the world's comtrees"), "{refused}");
    assert_eq!(limits_of_places(&daemon).await, [5000.0]);
    // The place that it moves to bears what the credential grants; it may stay where it was.
    let moved = daemon.joins.relocate(to(&["a", "b"])).await.unwrap();
    let mut all = limits_of_places(&daemon).await;
    all.sort_by(f64::total_cmp);
    assert_eq!(all, [999.0, 5000.0]);
    let claims = canopy_token::Claims::read_unverified(&moved.token).unwrap();
    assert_eq!(claims.grant.budget.up_bits, Some(999));
    daemon.joins.leave(&[1; 32], leave_by(&by(999))).await.unwrap();
}

#[tokio::test]
async fn who_leaves_after_its_relay_was_lost_does_not_come_back() {
    let daemon = Daemon::start(2).await;
    daemon.world("lobby", 1).await;
    let (_, let_in) = daemon.send("POST", "/v1/worlds/lobby/members", &new_member(1)).await;
    let token = let_in["token"].as_str().unwrap().to_owned();
    daemon.joins.join(JoinAsk { visit: 7, ..join_by(&token) }).await.unwrap();
    let relay = let_in["relay"]["name"].as_str().unwrap();
    daemon.silence(relay);
    let path = format!("/v1/relays/{relay}");
    daemon.until(&path, |relay| relay["state"] == "gone").await;
    let leave = |visit| LeaveAsk { visit: Some(visit), ..leave_by(&token) };
    // A visit that was given up before leaves the later one what it has.
    assert_eq!(daemon.joins.leave(&[1; 32], leave(6)).await.unwrap_err().status, 409);
    daemon.joins.leave(&[1; 32], leave(7)).await.unwrap();
    let over = daemon.joins.renew(join_by(&token)).await.unwrap_err();
    assert!(over.status == 401 && over.to_string().contains("has ended"), "{over}");
    assert_eq!(daemon.joins.leave(&[1; 32], leave(7)).await.unwrap_err().status, 401);
}

#[tokio::test]
async fn an_open_world_refuses_what_is_no_token() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let problem = daemon.joins.join(join_by("let me in")).await.unwrap_err();
    assert!(problem.status == 401 && problem.to_string().contains("or none"), "{problem}");
    // Nobody can tell whose this is, and nobody needs to.
    daemon.joins.join(join_by(&credential("player", "lobby", 1, &key(6)))).await.unwrap();
}

#[tokio::test]
async fn many_join_at_once_and_each_has_an_address_of_its_own() {
    let daemon = Daemon::start(2).await;
    daemon.world("lobby", 1).await;
    let join = |number: u8| {
        let joins = daemon.joins.clone();
        let ask = JoinAsk {
            world: "lobby".to_owned(),
            credential: None,
            client_key: [number; 32],
            budget: None,
            measured: Vec::new(),
            visit: 0,
        };
        tokio::spawn(async move { joins.join(ask).await.unwrap().address })
    };
    let all: Vec<_> = (0..50).map(join).collect();
    let mut addresses = BTreeSet::new();
    for one in all {
        addresses.insert(timeout(SOON, one).await.unwrap().unwrap());
    }
    assert_eq!(addresses.len(), 50);
    let members = daemon.handle.ask(|controller, _| controller.members().count()).await.unwrap();
    assert_eq!(members, 50);
}

#[tokio::test]
async fn a_participant_joins_stays_and_leaves_over_a_channel() {
    use crate::controller::participants::answer;
    use canopy_channel::{Channel, Hello, Join};
    use canopy_session::Identity;
    let daemon = Daemon::start(2).await;
    daemon.world("lobby", 1).await;
    let (participant, controller) = (Identity::new([1; 32]), Identity::new([2; 32]));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (joins, key) = (daemon.joins.clone(), *controller.public());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut channel = Channel::accept(stream, &controller, SOON).await.unwrap();
            let hello = channel.asked(SOON).await.unwrap();
            let caller = *channel.peer();
            let reply = answer(&joins, &caller, hello).await.unwrap();
            channel.reply(&reply).await.unwrap();
        }
    });
    let ask = async |hello: Hello| -> Result<Value, Value> {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut channel = Channel::call(stream, &participant, &key, SOON).await.unwrap();
        channel.ask::<Value>(&hello, SOON).await.map_err(|error| match error {
            canopy_channel::ChannelError::Refused(why) => why,
            other => panic!("{other}"),
        })
    };
    let join = |world: &str, relay: &str| Join {
        world: world.to_owned(),
        credential: None,
        budget: None,
        visit: None,
        measured: vec![canopy_channel::Nearness { relay: relay.to_owned(), delay_us: 5 }],
    };
    let near = ask(Hello::Relays).await.unwrap();
    assert_eq!(near["relays"].as_array().unwrap().len(), 2);
    let joined = ask(Hello::Join(join("lobby", "b"))).await.unwrap();
    assert_eq!((&joined["relay"]["name"], &joined["second"]["name"]), (&json!("b"), &json!("a")));
    let claims = canopy_token::Claims::read_unverified(joined["token"].as_str().unwrap()).unwrap();
    assert_eq!(&claims.client_key, participant.public(), "the token is the caller's alone");
    let renewed = ask(Hello::Renew(join("lobby", "a"))).await.unwrap();
    assert_eq!((&renewed["address"], &renewed["relay"]), (&joined["address"], &joined["relay"]));
    let refused = ask(Hello::Join(join("arena", "b"))).await.unwrap_err();
    assert_eq!(refused["where"], "world arena");
    moves_off_a_relay_that_drains(&daemon, &ask, &joined).await;
    let leave =
        || Hello::Leave { world: "lobby".to_owned(), credential: None, address: None, visit: None };
    ask(leave()).await.unwrap();
    daemon.until("/v1/health", |health| health["members"] == 0).await;
    assert_eq!(ask(leave()).await.unwrap_err()["remedy"], "join it first");
}

/// The participant is at the relay b, and goes to a and back again.
async fn moves_off_a_relay_that_drains(
    daemon: &Daemon,
    ask: &impl AsyncFn(canopy_channel::Hello) -> Result<Value, Value>,
    joined: &Value,
) {
    use canopy_channel::{Hello, Join, Nearness};
    let to = |relays: &[(&str, u32)]| Join {
        world: "lobby".to_owned(),
        credential: None,
        budget: None,
        visit: None,
        measured: relays
            .iter()
            .map(|(relay, delay_us)| Nearness { relay: (*relay).to_owned(), delay_us: *delay_us })
            .collect(),
    };
    let link = r#"{"ends": ["a", "b"], "bits": 1000000000, "packets": 1000000, "delay_us": 5}"#;
    assert!(daemon.send("POST", "/v1/links", link).await.0.is_success());
    daemon.until("/v1/links", |links| links["links"][0]["usable"] == true).await;
    let near = to(&[("a", 19_000), ("b", 20_000)]);
    let stays = ask(Hello::Move(near.clone())).await.unwrap();
    assert_eq!((&stays["address"], &stays["drains"]), (&joined["address"], &json!(false)));
    let gone = ask(Hello::Renew(to(&[("taken-away", 1), ("b", 20_000)]))).await.unwrap();
    assert_eq!(gone["address"], joined["address"], "who has measured it before is not refused");
    assert!(daemon.send("POST", "/v1/relays/b/drain", "").await.0.is_success());
    let renewed = ask(Hello::Renew(near.clone())).await.unwrap();
    assert_eq!((&renewed["address"], &renewed["drains"]), (&joined["address"], &json!(true)));
    let nowhere = ask(Hello::Move(to(&[("b", 1)]))).await.unwrap_err();
    assert!(nowhere["what"].as_str().unwrap().contains("relay"), "{nowhere}");

    let moved = ask(Hello::Move(near.clone())).await.unwrap();
    assert_eq!((&moved["relay"]["name"], &moved["drains"]), (&json!("a"), &json!(false)));
    let again = ask(Hello::Move(near.clone())).await.unwrap();
    assert_eq!(again["address"], moved["address"], "an answer that went astray comes again");
    let members = daemon.get("/v1/worlds/lobby/members").await;
    let states: Vec<_> = members["members"].as_array().unwrap().iter().collect();
    let of = |address: &Value| {
        states.iter().find(|m| m["address"] == *address).unwrap()["state"].clone()
    };
    assert_eq!((of(&joined["address"]), of(&moved["address"])), (json!("moving"), json!("held")));
    let back = |address: &Value| Hello::Leave {
        world: "lobby".to_owned(),
        credential: None,
        address: Some(address.as_str().unwrap().to_owned()),
        visit: None,
    };
    let wrong = ask(back(&json!("nowhere"))).await.unwrap_err();
    assert_eq!(wrong["remedy"], "write site.endpoint, such as 28672.64");
    ask(back(&moved["address"])).await.unwrap();
    let stays = ask(Hello::Renew(near.clone())).await.unwrap();
    assert_eq!(stays["address"], joined["address"], "it stays where it was");

    let moved = ask(Hello::Move(near.clone())).await.unwrap();
    ask(back(&joined["address"])).await.unwrap();
    daemon.until("/v1/health", |health| health["members"] == 1).await;
    let there = ask(Hello::Renew(near)).await.unwrap();
    assert_eq!(there["address"], moved["address"]);
    assert!(daemon.send("POST", "/v1/relays/b/undrain", "").await.0.is_success());
    // Only who would move is moved, and only to what is nearer by far.
    let nearer = to(&[("a", 40_000), ("b", 20_000)]);
    assert_eq!(ask(Hello::Renew(nearer.clone())).await.unwrap()["relay"]["name"], "a");
    assert_eq!(ask(Hello::Move(nearer)).await.unwrap()["relay"]["name"], "b");
}
