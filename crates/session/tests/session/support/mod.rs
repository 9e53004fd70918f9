//! A session and the relay that it talks to, hand to hand: a test says what each of them hears.

use canopy_session::{
    Answer, Event, Keyring, Knock, LoggedKeys, PacketsPerKey, Proof, PublicKey, Reader, Session,
    SessionConfig, SessionIndex, SessionLimits, Sessions, SessionsConfig, State, Terms,
};
use canopy_wire::{
    Address, CLEAR_LEN, Comtree, Connect, Cookie, Downlink, DropReason, Hello, Join, Keepalive,
    Kind, Lane, MAX_DATAGRAM, Packet, Path, SAFE_DATAGRAM, Sealed, SessionId, Suite, Tag, Time,
    Unknown, VERSION, WireError,
};
use snow::Builder;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) const COMTREE: Comtree = Comtree(1);
/// The relay's number for the session.
pub(crate) const ID: SessionId = SessionId::at(PLACE, Lane::of(COMTREE), THREAD, THREAD + 1);
/// The data thread that has it, the last of the relay's.
const THREAD: u16 = 63;
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(2);
/// The only place that the relay has.
const PLACE: SessionIndex = 0;

pub(crate) const TERMS: Terms = Terms {
    address: Address::unicast(1, 64),
    suite: Suite::Aes128Gcm,
    downlink: Downlink::Member,
    max_datagram: SAFE_DATAGRAM as u16,
    features: 0,
};

pub(crate) fn at(port: u16) -> Path {
    SocketAddr::from(([10, 0, 0, 1], port)).into()
}

pub(crate) fn config() -> SessionConfig {
    SessionConfig::new(COMTREE, [9; 16])
}

pub(crate) fn packet(datagram: &[u8]) -> Packet<'_> {
    Packet::new_checked(datagram).unwrap()
}

pub(crate) fn kind_of(datagram: &[u8]) -> Kind {
    packet(datagram).header().kind
}

pub(crate) fn is_sealed(datagram: &[u8]) -> bool {
    Sealed::of(datagram).is_some()
}

/// What is in a datagram, if it is sealed; itself otherwise.
pub(crate) fn opened(reader: &Reader, datagram: &[u8]) -> Vec<u8> {
    if is_sealed(datagram) { reader.peek(datagram).unwrap() } else { datagram.to_vec() }
}

/// The cookie of a relay for whoever greets from a path.
pub(crate) fn cookie_for(relay: &Sessions, now: Time, path: Path, nonce: u64) -> Cookie {
    let (mut out, mut answer) = ([0; MAX_DATAGRAM], Answer::new());
    let len = Hello { nonce }.encode(COMTREE, &mut out).unwrap();
    relay.hello(now, path, &packet(&out[..len]), &mut answer).unwrap();
    Cookie::decode(&packet(answer.bytes())).unwrap()
}

/// A session, and a relay with one place.
pub(crate) struct Pair {
    pub(crate) session: Session,
    pub(crate) relay: Sessions,
    pub(crate) keys: Option<LoggedKeys>,
}

impl Pair {
    pub(crate) fn new(config: SessionConfig) -> Pair {
        Pair::with(config, Keyring::new([5; 16]))
    }

    pub(crate) fn with(config: SessionConfig, keyring: Keyring) -> Pair {
        let table = SessionsConfig {
            max_sessions: 1,
            thread: THREAD,
            threads: THREAD + 1,
            unix_zero: UNIX_ZERO,
            log_keys: true,
            packets_per_key: PacketsPerKey::PROTOCOL,
            limits: SessionLimits { keepalive: KEEPALIVE, ..SessionLimits::default() },
        };
        let relay = Sessions::new(table, keyring, &[6; 16]);
        Pair { session: Session::new(config), relay, keys: None }
    }

    /// A session that is connected, and when.
    pub(crate) fn connected() -> (Pair, Time) {
        Pair::connected_on(TERMS)
    }

    pub(crate) fn connected_on(terms: Terms) -> (Pair, Time) {
        let (mut pair, now) = (Pair::new(config()), Time::from_millis(1));
        pair.connect(now, terms);
        (pair, now)
    }

    /// Another participant's session, which has the same number at another relay.
    pub(crate) fn connected_elsewhere() -> (Pair, Time) {
        let config = SessionConfig::new(COMTREE, [10; 16]);
        let (mut pair, now) = (Pair::with(config, Keyring::new([4; 16])), Time::from_millis(1));
        pair.connect(now, TERMS);
        (pair, now)
    }

    /// Lets a session in that greets at `now`. Returns what it asked for: how long its datagrams may
    /// be.
    pub(crate) fn connect(&mut self, now: Time, terms: Terms) -> u16 {
        let connect = self.greet(now);
        let knock = self.knock(now, &connect).unwrap();
        let asked = knock.1.join().unwrap().max_datagram;
        let welcome = self.let_in(now, knock, &terms);
        self.session.handle_datagram(now, &mut welcome.clone(), |_| ()).unwrap();
        assert_eq!((self.session.state(), self.session.id()), (State::Connected, ID));
        asked
    }

    /// Hello and cookie pass; returns the session's connect.
    pub(crate) fn greet(&mut self, now: Time) -> Vec<u8> {
        let hello = self.sent(now).remove(0);
        let nonce = Hello::decode(&packet(&hello)).unwrap().nonce;
        let (mut out, cookie) = ([0; 1500], cookie_for(&self.relay, now, at(1), nonce));
        let len = cookie.encode(COMTREE, &mut out).unwrap();
        self.session.handle_datagram(now, &mut out[..len], |_| ()).unwrap();
        self.sent(now).remove(0)
    }

    /// The relay reads a connect.
    pub(crate) fn knock(
        &mut self,
        now: Time,
        connect: &[u8],
    ) -> Result<(Proof, Knock), DropReason> {
        let connect = Packet::new_checked(connect)?;
        if connect.header().kind != Kind::Connect {
            return Err(DropReason::UnexpectedKind);
        }
        let (connect, proof) = self.relay.prove(now, at(1), &connect)?;
        Ok((proof, self.relay.knock(&connect)?))
    }

    /// The relay opens the session; returns its welcome.
    pub(crate) fn let_in(
        &mut self,
        now: Time,
        (proof, knock): (Proof, Knock),
        terms: &Terms,
    ) -> Vec<u8> {
        if self.relay.live() > 0 {
            let _ = self.relay.end(PLACE);
        }
        assert_eq!(self.relay.open(now, at(1), proof, knock, terms), Some(PLACE));
        self.keys = self.relay.poll_key_log();
        self.relay.welcome(PLACE).unwrap().to_vec()
    }

    /// All that the session sends at `now`, as it is on the wire.
    pub(crate) fn sent(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut out = [0; 1500];
        let send = || self.session.poll_transmit(now, &mut out).map(|len| out[..len].to_vec());
        std::iter::from_fn(send).collect()
    }

    /// The packet in what the session sent.
    pub(crate) fn open(&mut self, datagram: &[u8]) -> Vec<u8> {
        match &self.keys {
            Some(keys) => opened(&keys.from_participant, datagram),
            None => datagram.to_vec(),
        }
    }

    /// The packets in all that the session sends at `now`.
    pub(crate) fn packets(&mut self, now: Time) -> Vec<Vec<u8>> {
        self.sent(now).iter().map(|datagram| self.open(datagram)).collect()
    }

    /// A packet of the relay's, sealed for the session.
    pub(crate) fn seal(
        &mut self,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
    ) -> Vec<u8> {
        let mut out = [0; 1500];
        let len = encode(&mut out).unwrap();
        let len = self.relay.seal(PLACE, &mut out, len).unwrap();
        out[..len].to_vec()
    }

    /// The relay says something to the session.
    pub(crate) fn say(
        &mut self,
        now: Time,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
    ) {
        let mut datagram = self.seal(encode);
        self.hear(now, &mut datagram).unwrap();
    }

    pub(crate) fn hear(&mut self, now: Time, datagram: &mut [u8]) -> Result<(), WireError> {
        self.session.handle_datagram(now, datagram, |_| ())
    }

    /// The answer to a keepalive with this stamp: what the next one is to bring back.
    pub(crate) fn acknowledge_with(&mut self, now: Time, stamp: u64, path_stamp: u64) {
        self.say(now, |out| Keepalive { stamp, path_stamp }.encode_ack(COMTREE, ID, out));
    }

    pub(crate) fn acknowledge(&mut self, now: Time, stamp: u64) {
        self.acknowledge_with(now, stamp, 1_000);
    }

    /// Somebody says that the relay knows no such session.
    pub(crate) fn say_unknown(&mut self, now: Time, echo: u64) {
        let mut out = [0; 1500];
        let len = Unknown { echo }.encode(COMTREE, ID, &mut out).unwrap();
        self.hear(now, &mut out[..len]).unwrap();
    }

    /// What the relay would have a keepalive bring back now.
    pub(crate) fn path_stamp(&mut self, now: Time) -> u64 {
        let (mut out, mut answer) = ([0; 100], Answer::new());
        let len = Keepalive { stamp: 7, path_stamp: 0 }.encode(COMTREE, ID, &mut out).unwrap();
        self.relay.keepalive(now, PLACE, &packet(&out[..len]), &mut answer).unwrap();
        let echo = opened(&self.keys.as_ref().unwrap().from_relay, answer.bytes());
        Keepalive::decode(&packet(&echo)).unwrap().path_stamp
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }
}

/// What an answer that no such session is known says of a sealed datagram.
pub(crate) fn echo_of(datagram: &[u8]) -> u64 {
    u64::from_be_bytes(datagram[CLEAR_LEN..CLEAR_LEN + 8].try_into().unwrap())
}

/// The nonce of a hello or of a connect.
pub(crate) fn nonce_of(datagram: &[u8]) -> u64 {
    let packet = packet(datagram);
    match packet.header().kind {
        Kind::Hello => Hello::decode(&packet).unwrap().nonce,
        _ => Connect::decode(&packet).unwrap().nonce,
    }
}

/// The Unix time in seconds at which the relay's clock begins.
pub(crate) const UNIX_ZERO: u64 = 1_800_000_000;

/// A cookie that nobody made.
pub(crate) const NO_COOKIE: Tag = [1; 16];

/// What a participant asks for, if nothing else is said.
pub(crate) const JOIN: Join<'static> = Join {
    comtree: COMTREE,
    features: 0,
    max_datagram: SAFE_DATAGRAM as u16,
    suites: Suite::Aes128Gcm.bit() | Suite::ChaCha20Poly1305.bit(),
    slow_suites: 0,
    token: &[],
    ticket: &[],
};

/// What the messages of a handshake are bound to: the version, and the connect that the first is in.
pub(crate) fn prologue(version: u8, nonce: u64, cookie: &Tag) -> Vec<u8> {
    [b"canopy", &[version][..], &nonce.to_be_bytes(), cookie].concat()
}

/// The first message of a participant that is written by hand.
pub(crate) fn first_message(relay: &PublicKey, prologue: &[u8], payload: &[u8]) -> Vec<u8> {
    first_message_of([2; 32], relay, prologue, payload)
}

/// The same of whoever has this private key.
fn first_message_of(own: [u8; 32], relay: &PublicKey, prologue: &[u8], payload: &[u8]) -> Vec<u8> {
    let (ephemeral, mut message) = ([3; 32], [0; 1500]);
    let pattern = "Noise_IK_25519_ChaChaPoly_BLAKE2s".parse().unwrap();
    let builder = Builder::with_resolver(pattern, Box::new(NoChance));
    let builder = builder.local_private_key(&own).unwrap().remote_public_key(relay).unwrap();
    let builder = builder.prologue(prologue).unwrap();
    let mut state =
        builder.fixed_ephemeral_key_for_testing_only(&ephemeral).build_initiator().unwrap();
    let len = state.write_message(payload, &mut message).unwrap();
    message[..len].to_vec()
}

/// A connect with such a message.
pub(crate) fn connect_with(cookie: &Cookie, join: &Join<'_>) -> Vec<u8> {
    connect_of([2; 32], cookie, join)
}

/// The same of whoever has this private key.
pub(crate) fn connect_of(own: [u8; 32], cookie: &Cookie, join: &Join<'_>) -> Vec<u8> {
    let (mut payload, mut out) = ([0; 1500], [0; 1500]);
    let len = join.encode(&mut payload).unwrap();
    let prologue = prologue(VERSION, cookie.nonce, &cookie.cookie);
    let message = &first_message_of(own, &cookie.relay_key, &prologue, &payload[..len]);
    let connect = Connect { nonce: cookie.nonce, cookie: cookie.cookie, message };
    let len = connect.encode(&mut out).unwrap();
    out[..len].to_vec()
}

/// The primitives, without random numbers.
struct NoChance;

impl Random for NoChance {
    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), snow::Error> {
        Err(snow::Error::Rng)
    }
}

impl CryptoResolver for NoChance {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(NoChance))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}
