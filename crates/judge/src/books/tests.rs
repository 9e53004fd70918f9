use super::sessions::Agreed;
use super::*;
use canopy_relay::{
    ADDRESS_REST, Budgets, ComtreeConfig, Gate, Mode, Places, RelayConfig, Siblings,
};
use canopy_session::{
    GroupKeyMaker, Keyring, PacketsPerKey, Session, SessionConfig, SessionLimits,
};
use canopy_wire::{
    Address, Comtree, Downlink, Flags, Group, Header, Hello, Level, MAX_DATAGRAM, Record,
    SAFE_DATAGRAM, SEAL_LEN, SessionId, Suite, Time, encode_update,
};

fn relay() -> Relay {
    relay_of(PacketsPerKey::PROTOCOL)
}

fn relay_of(packets_per_key: PacketsPerKey) -> Relay {
    let config = RelayConfig {
        mode: Mode::Immediate,
        comtrees: vec![ComtreeConfig::new(Comtree(1), 1)],
        trust: None,
        origin: canopy_relay::UnixTime(0),
        places: Places::new(2),
        max_sessions: 2,
        max_datagram: SAFE_DATAGRAM as u16,
        slow_suites: 0,
        address_rest: ADDRESS_REST,
        life: None,
        log_keys: true,
        packets_per_key,
        limits: SessionLimits::default(),
        tables: TableLimits::default(),
        budgets: Budgets::default(),
        gate: Gate::open(),
        smallest_set: None,
    };
    Relay::new(config, Siblings::alone(), Keyring::new([1; 16]), &[2; 16])
}

fn books() -> Books {
    let tables = TableLimits::default();
    Books::new(Limits { max_sessions: 2, tables, one_session: true })
}

fn stranger() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 7], 7))
}

fn hello() -> Vec<u8> {
    let mut out = [0; 100];
    let len = Hello { nonce: 1 }.encode(Comtree(1), &mut out).unwrap();
    out[..len].to_vec()
}

/// A relay is greeted; what it answers is noted if `noted`.
fn greeted(noted: bool) -> Verdict {
    let (mut relay, mut books) = (relay(), books());
    let mut page = Page::begin(&relay);
    let before = relay.counters().clone();
    relay.handle_datagram(Time::ZERO, stranger(), &mut hello());
    books.handled(&mut page, stranger(), &hello(), (&before, relay.counters()))?;
    let mut sent = Vec::new();
    relay.transmit(Time::ZERO, |batch| {
        for transmit in batch.transmits() {
            sent.push(batch.parts(transmit).flatten().copied().collect::<Vec<u8>>());
        }
    });
    assert_eq!(sent.len(), 1);
    if noted {
        books.sends(&mut page, stranger(), &sent[0], relay.counters())?;
    }
    books.turn_ends(&relay, &page)
}

#[test]
fn a_send_that_was_not_counted_or_not_made_is_found() {
    assert_eq!(greeted(true), Ok(()));
    assert!(greeted(false).unwrap_err().contains("the relay counted"));
}

#[test]
fn a_datagram_that_is_not_counted_is_found() {
    let (counters, mut page) = (Counters::default(), Page::begin(&relay()));
    let moved = (&counters, &counters);
    assert!(books().handled(&mut page, stranger(), &hello(), moved).is_err());
    let mut after = counters.clone();
    (after.datagrams_in, after.bytes_in) = (1, 3);
    assert!(books().handled(&mut page, stranger(), b"abc", (&counters, &after)).is_err());
    after.drop(DropReason::Version);
    assert_eq!(books().handled(&mut page, stranger(), b"abc", (&counters, &after)), Ok(()));
}

#[test]
fn what_is_sealed_for_no_session_is_to_be_answered() {
    let (mut relay, mut books) = (relay(), books());
    let (mut page, before) = (Page::begin(&relay), relay.counters().clone());
    let mut sealed = [7; 40];
    sealed[0] = VERSION | Class::Sealed as u8;
    relay.handle_datagram(Time::ZERO, stranger(), &mut sealed.clone());
    let moved = (&before, relay.counters());
    assert_eq!(books.handled(&mut page, stranger(), &sealed, moved), Ok(()));
    let error = books.turn_ends(&relay, &page).unwrap_err();
    assert!(error.contains("not answered"), "{error}");
}

/// A relay and a session on it. Everybody who is made so has the same keys.
struct Pair {
    relay: Relay,
    session: Session,
    keys: LoggedKeys,
}

impl Pair {
    fn new() -> Pair {
        let (mut relay, mut out) = (relay(), [0; MAX_DATAGRAM]);
        let mut session = Session::new(SessionConfig::new(Comtree(1), [3; 16]));
        while let Some(len) = session.poll_transmit(Time::ZERO, &mut out) {
            relay.handle_datagram(Time::ZERO, stranger(), &mut out[..len]);
            for mut answer in transmitted(&mut relay) {
                session.handle_datagram(Time::ZERO, &mut answer, |_| {}).unwrap();
            }
        }
        let keys = relay.poll_key_log().unwrap();
        Pair { relay, session, keys }
    }

    /// An update that the session publishes and wants back.
    fn publish(&mut self, payload: &[u8]) -> Vec<u8> {
        let (dst, mut out) = (self.session.address(), [0; MAX_DATAGRAM]);
        let flags = Flags::ECHO;
        let len = self.session.publish(dst, Level(0), flags, payload, &mut out).unwrap();
        out[..len].to_vec()
    }

    /// What the relay sends when an update comes.
    fn carried(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut update = self.publish(payload);
        self.relay.handle_datagram(Time::ZERO, stranger(), &mut update);
        transmitted(&mut self.relay).pop().expect("its publisher wants it back")
    }
}

fn transmitted(relay: &mut Relay) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    relay.transmit(Time::ZERO, |batch| {
        for transmit in batch.transmits() {
            sent.push(batch.parts(transmit).flatten().copied().collect());
        }
    });
    sent
}

#[test]
fn what_is_sealed_and_accepted_a_second_time_is_found() {
    let (mut pair, mut books) = (Pair::new(), books());
    let update = pair.publish(b"an update");
    books.opened(pair.keys);
    let (mut page, before) = (Page::begin(&pair.relay), pair.relay.counters().clone());
    pair.relay.handle_datagram(Time::ZERO, stranger(), &mut update.clone());
    let moved = (&before, pair.relay.counters());
    assert_eq!(books.handled(&mut page, stranger(), &update, moved), Ok(()));
    let error = books.handled(&mut page, stranger(), &update, moved).unwrap_err();
    assert!(error.contains("a second time"), "{error}");
}

/// A datagram of a participant's is handled by the relay, and the books are told; what comes of it, too.
fn handle(relay: &mut Relay, books: &mut Books, now: Time, datagram: &[u8]) -> Vec<Vec<u8>> {
    handle_from(stranger(), relay, books, now, datagram)
}

/// The same, from any ip:port.
fn handle_from(
    from: SocketAddr,
    relay: &mut Relay,
    books: &mut Books,
    now: Time,
    datagram: &[u8],
) -> Vec<Vec<u8>> {
    let (mut page, before) = (Page::begin(relay), relay.counters().clone());
    relay.handle_datagram(now, from, &mut datagram.to_vec());
    let moved = (&before, relay.counters());
    assert_eq!(books.handled(&mut page, from, datagram, moved), Ok(()));
    while let Some(keys) = relay.poll_key_log() {
        books.opened(keys);
    }
    let mut said: Vec<Vec<u8>> = Vec::new();
    relay.transmit(now, |batch| {
        let all = batch.transmits().iter();
        said.extend(all.map(|one| batch.parts(one).flatten().copied().collect()));
    });
    for datagram in &said {
        assert_eq!(books.sends(&mut page, from, datagram, relay.counters()), Ok(()));
    }
    said
}

/// What a session has to say is said, and answered.
fn talk(relay: &mut Relay, books: &mut Books, now: Time, session: &mut Session) {
    let mut out = [0; MAX_DATAGRAM];
    while let Some(len) = session.poll_transmit(now, &mut out) {
        for mut said in handle(relay, books, now, &out[..len]) {
            session.handle_datagram(now, &mut said, |_| {}).unwrap();
        }
    }
}

/// Somebody comes and goes many times, and publishes a lot: of what has ended, little is kept.
#[test]
fn books_do_not_grow_with_time() {
    const LIVES: u8 = 40;
    let (mut relay, mut books) = (relay(), books());
    for life in 1..=LIVES {
        let mut session = Session::new(SessionConfig::new(Comtree(1), [life; 16]));
        let now = Time::from_millis(u64::from(life) * 1000);
        talk(&mut relay, &mut books, now, &mut session);
        let dst = Group::new(3).address();
        for _ in 0..1500 {
            let mut out = [0; MAX_DATAGRAM];
            let len = session.publish(dst, Level(0), Flags(0), b"an update", &mut out).unwrap();
            handle(&mut relay, &mut books, now, &out[..len]);
        }
        session.leave();
        talk(&mut relay, &mut books, now, &mut session);
    }
    let [rest @ .., taken] = books.sessions.sizes();
    assert!(rest.iter().all(|size| *size <= 2 * 16), "of two places: {rest:?}");
    assert!(taken <= 2 * 16 * 1024, "{taken} packets");
}

#[test]
fn two_packets_of_a_participant_with_one_number_are_found() {
    let (mut pair, mut other, mut books) = (Pair::new(), Pair::new(), books());
    let [one, another] = [pair.publish(b"an update"), other.publish(b"another")];
    assert_eq!(one[..8], another[..8], "session and number");
    books.opened(pair.keys);
    let (mut page, before) = (Page::begin(&pair.relay), pair.relay.counters().clone());
    pair.relay.handle_datagram(Time::ZERO, stranger(), &mut one.clone());
    let moved = (&before, pair.relay.counters());
    assert_eq!(books.handled(&mut page, stranger(), &one, moved), Ok(()));
    let error = books.handled(&mut page, stranger(), &another, moved).unwrap_err();
    assert!(error.contains("two packets were sealed with number"), "{error}");
}

#[test]
fn two_packets_of_a_relay_with_one_number_are_found() {
    let (mut pair, mut other) = (Pair::new(), Pair::new());
    let [one, another] = [pair.carried(b"an update"), other.carried(b"another")];
    assert_eq!(one[..8], another[..8], "session and number");
    let mut books = books_on_a_session();
    let account = books.accounts.get_mut(&stranger()).unwrap();
    account.session = Some(Agreed::with(&pair.keys));
    account.bytes_in = 1000;
    books.opened(pair.keys);
    assert_eq!(sent(&mut books, &one), Ok(()));
    let error = sent(&mut books, &another).unwrap_err();
    assert!(error.contains("two packets were sealed with number"), "{error}");
}

/// A counter must not begin again with the next key, whoever seals.
#[test]
fn a_counter_that_begins_again_with_a_key_is_found() {
    let packets_per_key = PacketsPerKey::at_least(64);
    let (mut relay, mut books, now) = (relay_of(packets_per_key), books(), Time::ZERO);
    let config = SessionConfig::new(Comtree(1), [3; 16]);
    let mut session = Session::new(SessionConfig { packets_per_key, ..config });
    talk(&mut relay, &mut books, now, &mut session);
    let (mut update, mut answers, mut out) = (Vec::new(), Vec::new(), [0; MAX_DATAGRAM]);
    for _ in 0..100 {
        let (dst, echo) = (session.address(), Flags::ECHO);
        let len = session.publish(dst, Level(0), echo, b"an update", &mut out).unwrap();
        update = out[..len].to_vec();
        assert_eq!(books.said(&update), Ok(true));
        answers = handle(&mut relay, &mut books, now, &update);
    }
    for number in [0, 63, 64, 90] {
        let again = books.seal_as(&update, false, number).unwrap();
        let error = books.said(&again).unwrap_err();
        assert!(error.contains(&format!("number {number} ")), "{error}");
        let again = books.seal_as(&answers[0], true, number).unwrap();
        let error = sent(&mut books, &again).unwrap_err();
        assert!(error.contains(&format!("number {number} ")), "{error}");
    }
}

/// A relay with a session whose keys seal so many packets, the books on it, and updates of that session.
struct Talk {
    relay: Relay,
    books: Books,
    updates: Vec<Vec<u8>>,
}

impl Talk {
    fn new(packets_per_key: PacketsPerKey, updates: usize) -> Talk {
        let (mut relay, mut books) = (relay_of(packets_per_key), books());
        let config = SessionConfig::new(Comtree(1), [3; 16]);
        let mut session = Session::new(SessionConfig { packets_per_key, ..config });
        talk(&mut relay, &mut books, Time::ZERO, &mut session);
        let dst = Group::new(3).address();
        let update = |_| {
            let mut out = [0; MAX_DATAGRAM];
            let len = session.publish(dst, Level(0), Flags(0), b"an update", &mut out).unwrap();
            assert_eq!(books.said(&out[..len]), Ok(true));
            out[..len].to_vec()
        };
        let updates = (0..updates).map(update).collect();
        Talk { relay, books, updates }
    }

    /// An update comes. Returns whether the relay has opened and taken it.
    fn comes(&mut self, from: SocketAddr, update: usize) -> bool {
        let before = self.relay.counters().updates_in;
        let update = &self.updates[update];
        handle_from(from, &mut self.relay, &mut self.books, Time::ZERO, update);
        self.relay.counters().updates_in > before
    }

    /// The same of one that comes late: the books know before the relay does whether it is too late.
    fn comes_late(&mut self, update: usize) -> bool {
        let is_too_late = self.books.is_too_late(&self.updates[update]);
        let is_taken = self.comes(stranger(), update);
        assert_eq!(is_taken, !is_too_late, "update {update}");
        is_taken
    }
}

/// Every fifth update is on its way for so long that so many others overtake it.
#[test]
fn what_comes_too_late_to_be_opened_is_known() {
    let protocol = PacketsPerKey::PROTOCOL;
    let cases: [(_, &[usize]); 2] = [
        (PacketsPerKey::at_least(64), &[1, 31, 32, 33, 50, 63, 64, 65, 80, 95, 96, 97, 128, 300]),
        (protocol, &[1, 500, 1022, 1023, 1024, 1025, 1026, 1500]),
    ];
    for (packets_per_key, lags) in cases {
        let mut talk = Talk::new(packets_per_key, 4000);
        let (mut late, mut taken) = (BTreeMap::new(), [0; 2]);
        for number in 0..talk.updates.len() {
            if number % 5 == 0 {
                let lag = lags[number / 5 % lags.len()];
                late.entry(number + lag).or_insert_with(Vec::new).push(number);
            } else {
                assert!(talk.comes(stranger(), number));
            }
            for late in late.remove(&number).into_iter().flatten() {
                taken[usize::from(talk.comes_late(late))] += 1;
            }
        }
        assert!(taken.iter().all(|count| *count > 50), "{packets_per_key:?}: {taken:?}");
    }
}

#[test]
fn what_comes_from_elsewhere_makes_nothing_late() {
    let mut talk = Talk::new(PacketsPerKey::at_least(64), 300);
    let elsewhere = SocketAddr::from(([192, 0, 2, 8], 7));
    assert!(talk.comes(stranger(), 1));
    for number in 2..200 {
        assert!(!talk.comes(elsewhere, number));
    }
    assert!(talk.comes_late(0), "its session has moved nowhere");
    // The key of what is too far ahead is not there either, and only its own path brings that nearer.
    assert!(!talk.comes(stranger(), 250));
    assert!(talk.comes_late(2));
    for number in 3..200 {
        assert!(talk.comes(stranger(), number));
    }
    assert!(!talk.comes_late(2));
}

#[test]
fn sessions_that_nobody_proved_are_found_without_their_keys() {
    let pair = Pair::new();
    let error = books().holds(1, 1).unwrap_err();
    assert!(error.contains("1 sessions were opened, where 0 handshakes"), "{error}");
    let page = Page::begin(&pair.relay);
    let error = books().turn_ends(&pair.relay, &page).unwrap_err();
    assert!(error.contains("where 0 handshakes"), "{error}");
    let (mut relay, mut books) = (relay(), books());
    let mut session = Session::new(SessionConfig::new(Comtree(1), [3; 16]));
    talk(&mut relay, &mut books, Time::ZERO, &mut session);
    assert_eq!(books.holds(1, 1), Ok(()));
    let error = books.holds(1, 2).unwrap_err();
    assert!(error.contains("2 sessions, where 1 paths"), "{error}");
}

/// Somebody joins, and the books see what of that is `seen`; the relay tells `told` of the session.
fn joined(seen: impl Fn(Kind) -> bool, told: SocketAddr) -> Verdict {
    let (mut relay, mut books, mut out) = (relay(), books(), [0; MAX_DATAGRAM]);
    let mut session = Session::new(SessionConfig::new(Comtree(1), [3; 16]));
    let is_seen = |datagram: &[u8]| match Packet::new_checked(datagram) {
        Ok(packet) => seen(packet.header().kind),
        Err(_) => true,
    };
    while let Some(len) = session.poll_transmit(Time::ZERO, &mut out) {
        let datagram = &mut out[..len];
        let (mut page, before) = (Page::begin(&relay), relay.counters().clone());
        relay.handle_datagram(Time::ZERO, stranger(), &mut datagram.to_vec());
        if is_seen(datagram) {
            let moved = (&before, relay.counters());
            books.handled(&mut page, stranger(), datagram, moved)?;
        }
        while let Some(keys) = relay.poll_key_log() {
            books.opened(keys);
        }
        for mut answer in transmitted(&mut relay) {
            let is_welcome = Packet::new_checked(&answer)
                .is_ok_and(|packet| packet.header().kind == Kind::Connected);
            let to = if is_welcome { told } else { stranger() };
            if is_seen(&answer) {
                books.sends(&mut page, to, &answer, relay.counters())?;
            }
            session.handle_datagram(Time::ZERO, &mut answer, |_| {}).unwrap();
        }
        books.turn_ends(&relay, &page)?;
    }
    Ok(())
}

#[test]
fn a_session_of_who_proved_nothing_is_found() {
    let all = |_| true;
    assert_eq!(joined(all, stranger()), Ok(()));
    let another = SocketAddr::from(([192, 0, 2, 8], 7));
    let error = joined(all, another).unwrap_err();
    assert!(error.contains("192.0.2.8:7, which proved nothing in this handshake"), "{error}");
    let error = joined(|kind| kind != Kind::Connect, stranger()).unwrap_err();
    assert!(error.contains("was told of a session"), "{error}");
    let neither = |kind| !matches!(kind, Kind::Connect | Kind::Connected);
    let error = joined(neither, stranger()).unwrap_err();
    assert!(error.contains("was opened for an ip:port that proved nothing"), "{error}");
}

#[test]
fn more_than_came_is_not_sent_to_who_proved_nothing() {
    let error = sent(&mut books(), &hello()).unwrap_err();
    assert!(error.contains("proved nothing"), "{error}");
}

fn sent(books: &mut Books, datagram: &[u8]) -> Verdict {
    let page = &mut Page::begin(&relay());
    books.sends(page, stranger(), datagram, &Counters::default())
}

/// The books on a relay that has told someone of session 5, which may be sent 1,232 bytes, and of
/// whose updates nothing is sealed.
fn books_on_a_session() -> Books {
    let mut books = books();
    let account = books.accounts.entry(stranger()).or_default();
    (account.bytes_in, account.is_proved) = (60, true);
    account.session = Some(Agreed {
        id: SessionId::new(5),
        nonce: 1,
        comtree: Comtree(1),
        address: Address::unicast(1, 7),
        max_datagram: SAFE_DATAGRAM as u16,
        downlink: Downlink::None,
    });
    books
}

fn update(comtree: u32, dst: Address, session: SessionId) -> Vec<u8> {
    let mut out = [0; MAX_DATAGRAM];
    let header = Header::new(Kind::Updates, session, Comtree(comtree));
    let len = encode_update(&header, &Record::new(dst, 0, b"an update"), &mut out).unwrap();
    out[..len].to_vec()
}

#[test]
fn what_is_not_for_the_session_there_is_found() {
    let (own, group) = (Address::unicast(1, 7), Group::new(3).address());
    let mut books = books_on_a_session();
    for dst in [own, group] {
        assert_eq!(sent(&mut books, &update(1, dst, SessionId::NONE)), Ok(()));
    }
    let wrong = [
        update(1, Address::unicast(1, 8), SessionId::NONE),
        update(2, group, SessionId::NONE),
        update(1, group, SessionId::new(5)),
    ];
    for datagram in wrong {
        let error = sent(&mut books, &datagram).unwrap_err();
        assert!(error.contains("another's"), "{error}");
    }
    // Acknowledgements are sealed always.
    let stray = Header::new(Kind::SubscribeAck, SessionId::new(5), Comtree(1));
    let error = sent(&mut books, &[&stray.encode(0)[..], &[0; 4]].concat()).unwrap_err();
    assert!(error.contains("of class 1"), "{error}");
}

#[test]
fn what_all_members_could_read_is_for_all() {
    let mut books = books_on_a_session();
    let account = books.accounts.get_mut(&stranger()).unwrap();
    account.session = account.session.map(|it| Agreed { downlink: Downlink::Group, ..it });
    let mut sealer = GroupKeyMaker::new(&[1; 16], 0, 1).make(Suite::Aes128Gcm);
    let mut sealed = |dst| {
        let mut datagram = update(1, dst, SessionId::NONE);
        datagram.resize(datagram.len() + SEAL_LEN, 0);
        assert!(sealer.seal(&mut datagram));
        datagram
    };
    let (to_all, to_one) = (sealed(Group::new(3).address()), sealed(Address::unicast(1, 7)));
    let error = sent(&mut books, &to_all).unwrap_err();
    assert!(error.contains("nobody can open"), "{error}");
    books.made(&sealer.to_tell());
    assert_eq!(sent(&mut books, &to_all), Ok(()));
    let error = sent(&mut books, &to_one).unwrap_err();
    assert!(error.contains("another's"), "{error}");
    let clear = update(1, Group::new(3).address(), SessionId::NONE);
    let error = sent(&mut books, &clear).unwrap_err();
    assert!(error.contains("of class 1"), "{error}");
}

#[test]
fn a_longer_datagram_than_agreed_is_found() {
    let mut books = books_on_a_session();
    let mut datagram = update(1, Group::new(3).address(), SessionId::NONE);
    datagram.resize(SAFE_DATAGRAM - SEAL_LEN, 0);
    assert_eq!(sent(&mut books, &datagram), Ok(()));
    datagram.push(0);
    let error = sent(&mut books, &datagram).unwrap_err();
    assert!(error.contains("1233 bytes"), "{error}");
}
