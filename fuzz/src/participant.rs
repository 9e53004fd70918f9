//! A [`Session`] that is held to its promises at every call.

use crate::is_sealed;
use crate::tokens::{Form, PLACE, bear, token};
use canopy_session::{Event, RequestNumber, Session, SessionConfig, SessionError, State, Update};
use canopy_token::ComtreeGrant;
use canopy_wire::{
    Address, Comtree, Flags, Kind, Level, MAX_DATAGRAM, MAX_UPDATE, Packet, Record, RequestStatus,
    SessionId, Time, Verdict, WireError,
};
use std::collections::BTreeSet;

/// What a participant sends besides updates.
const SAID: [Kind; 9] = [
    Kind::Hello,
    Kind::Connect,
    Kind::Keepalive,
    Kind::Subscribe,
    Kind::Leave,
    Kind::Rebind,
    Kind::GroupKeyHeld,
    Kind::Report,
    Kind::Request,
];
/// What of it is not sealed.
const SAID_IN_CLEAR: [Kind; 2] = [Kind::Hello, Kind::Connect];
/// A rebind, a keepalive, a report, a held key, a subscribe and a request; no other state has more to say
/// at once.
const MAX_PACKETS_AT_ONCE: usize = 6;

/// Opens what a participant has sealed, with the keys that its relay has.
pub(crate) type Opener<'a> = &'a dyn Fn(&[u8]) -> Option<Vec<u8>>;

pub(crate) struct Participant {
    pub(crate) session: Session,
    /// Which of the bearers of tokens it is, if any.
    bearer: Option<usize>,
    /// What the tokens of its own grant on its comtree that it has brought, where a relay takes them.
    granted: Vec<ComtreeGrant>,
    /// One of them lets it judge others.
    is_server: bool,
    /// All of them name this address.
    placed: Option<Address>,
    comtree: Comtree,
    closed: bool,
    /// Its requests to judge somebody.
    judged: BTreeSet<RequestNumber>,
}

/// An update that was heard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    pub(crate) dst: Address,
    pub(crate) level: Level,
}

/// Where a session stands, as far as it shows.
#[derive(Debug, PartialEq)]
pub(crate) struct Standing {
    state: State,
    address: Address,
    id: SessionId,
    due: Option<Time>,
    subscriptions: usize,
}

impl Standing {
    /// Whether all is as before, but for when something is to be said.
    pub(crate) fn is_as(&self, before: Standing) -> bool {
        *self == Standing { due: self.due, ..before }
    }

    /// Whether there is a session, so that what is sealed is opened.
    pub(crate) fn is_in_session(&self) -> bool {
        matches!(self.state, State::Connected | State::Leaving)
    }
}

impl Participant {
    pub(crate) fn new(config: SessionConfig) -> Participant {
        let comtree = config.comtree;
        let session = Session::new(config);
        Participant {
            session,
            bearer: None,
            granted: Vec::new(),
            is_server: false,
            placed: None,
            comtree,
            closed: false,
            judged: BTreeSet::new(),
        }
    }

    /// A bearer of tokens, who brings this one of its own.
    pub(crate) fn with_token(config: SessionConfig, bearer: usize, form: Form) -> Participant {
        let mut participant = Participant::new(bear(config, bearer, form));
        participant.bearer = Some(bearer);
        participant.placed = (form == Form::Placed).then_some(PLACE);
        participant.is_granted(bearer, form);
        participant
    }

    /// It brings a token from now on, which may be another's. Returns what that grants it.
    pub(crate) fn renew(&mut self, bearer: usize, form: Form) -> Option<ComtreeGrant> {
        self.placed = self.placed.filter(|_| form == Form::Placed);
        if self.session.state() == State::Greeting {
            // It has brought nothing yet that could still be taken.
            self.granted.clear();
            self.is_server = false;
        }
        // If too many requests wait, the relay is not asked, but it is brought the next time.
        let _ = self.session.set_token(token(bearer, form).text.clone());
        self.is_granted(bearer, form)
    }

    fn is_granted(&mut self, bearer: usize, form: Form) -> Option<ComtreeGrant> {
        let is_own = self.bearer == Some(bearer);
        let grant = token(bearer, form).grant.clone();
        let grant = grant.filter(|grant| is_own && grant.comtree == self.comtree)?;
        self.is_server |= token(bearer, form).is_servers;
        self.granted.push(grant.clone());
        Some(grant)
    }

    /// What its tokens have granted it so far.
    pub(crate) fn granted(&self) -> &[ComtreeGrant] {
        &self.granted
    }

    /// Everything that it wants sent at `now`.
    pub(crate) fn say(&mut self, now: Time, open: Opener<'_>) -> Vec<Vec<u8>> {
        let is_due = self.session.poll_timeout().is_some_and(|at| at <= now);
        let mut said = Vec::new();
        let mut out = [0; 2 * MAX_DATAGRAM];
        while let Some(len) = self.session.poll_transmit(now, &mut out) {
            assert!(is_due, "a packet before its time");
            self.check(&out[..len], open);
            said.push(out[..len].to_vec());
            assert!(said.len() <= MAX_PACKETS_AT_ONCE, "no end of packets");
        }
        let (state, next) = (self.session.state(), self.session.poll_timeout());
        assert_eq!(next.is_none(), state == State::Closed);
        assert!(next.is_none_or(|at| at > now), "{state:?} has said everything and is due again");
        self.hear_events();
        said
    }

    /// A datagram of its own is no longer than agreed, and no one but the relay can read it, unless
    /// there is no session yet.
    fn check(&self, datagram: &[u8], open: Opener<'_>) {
        let len = datagram.len();
        assert!(len <= self.session.max_datagram(), "a packet of {len} bytes");
        let opened = open(datagram).expect("its relay cannot open what it said");
        let header = *Packet::new_checked(&opened).unwrap().header();
        assert!(SAID.contains(&header.kind), "{header:?}");
        if is_sealed(datagram) {
            assert_eq!((header.comtree, header.session), (self.comtree, self.session.id()));
        } else {
            // Which comtree it wants, only the relay reads.
            let is_silent = header.comtree == Comtree(0);
            assert!(SAID_IN_CLEAR.contains(&header.kind) && is_silent, "{header:?} in clear");
        }
    }

    /// Hears a datagram. Returns how many updates are in it.
    pub(crate) fn hear(&mut self, now: Time, datagram: &[u8]) -> Result<usize, WireError> {
        self.hear_each(now, datagram, |_| {})
    }

    /// The same, and hands over each update.
    pub(crate) fn hear_each(
        &mut self,
        now: Time,
        datagram: &[u8],
        mut each: impl FnMut(Heard),
    ) -> Result<usize, WireError> {
        let before = self.standing();
        let mut updates = 0;
        let deliver = |update: Update<'_>| {
            assert!(update.payload.len() < MAX_DATAGRAM);
            updates += 1;
            each(Heard { dst: update.dst, level: update.level });
        };
        let heard = self.session.handle_datagram(now, &mut datagram.to_vec(), deliver);
        assert!(updates == 0 || before.state == State::Connected, "an update outside of a session");
        if heard.is_err() {
            let fresh = self.session.poll_event();
            assert!(updates == 0 && fresh.is_none(), "{fresh:?} of a datagram that is wrong");
            assert_eq!(self.standing(), before, "changed by a datagram that is wrong");
        }
        self.hear_events();
        heard.map(|()| updates)
    }

    /// The packet of an update; `None` if it cannot be published.
    pub(crate) fn publish(
        &mut self,
        dst: Address,
        (level, flags): (Level, Flags),
        payload: &[u8],
        open: Opener<'_>,
    ) -> Option<Vec<u8>> {
        let mut out = vec![0; 2 * MAX_DATAGRAM];
        let series = self.session.take_series(0);
        match self.session.publish(dst, level, flags, payload, &mut out) {
            Ok(len) => out.truncate(len),
            Err(SessionError::NotConnected) => {
                assert_ne!(self.session.state(), State::Connected);
                return None;
            }
            Err(error) => {
                assert_eq!(error, SessionError::TooLong(payload.len()));
                assert!(payload.len() > MAX_UPDATE);
                return None;
            }
        }
        assert_eq!(self.session.take_series(0), series.wrapping_add(1));
        assert!(is_sealed(&out) && out.len() <= self.session.max_datagram());
        let opened = open(&out).expect("its relay cannot open what it published");
        let packet = Packet::new_checked(&opened).unwrap();
        let header = packet.header();
        assert_eq!((header.session, header.comtree), (self.session.id(), self.comtree));
        let known = Flags(flags.0 & (Flags::ECHO.0 | Flags::FILLER.0));
        let update = Record { flags: known, level, ..Record::new(dst, series, payload) };
        // What says of itself that it is filler is none.
        let is_filler = flags.contains(Flags::FILLER);
        assert!(packet.updates().unwrap().eq((!is_filler).then_some(update)));
        Some(out)
    }

    /// Asks the relay to do something with a member.
    pub(crate) fn judge(&mut self, whom: Address, verdict: Verdict) {
        self.judged.extend(self.session.judge(whom, verdict));
    }

    /// Whoever is in the world was granted that by some token that it has brought; what it hears, it may
    /// subscribe to, and somebody of its comtree may publish by one of all tokens.
    pub(crate) fn check_grants(&self, heard: &[Heard], all: &[ComtreeGrant]) {
        let is_in = self.session.state() == State::Connected;
        assert!(!is_in || !self.granted.is_empty(), "let in without a token");
        let place = self.placed.filter(|_| is_in);
        assert!(place.is_none_or(|place| place == self.session.address()), "elsewhere");
        for Heard { dst, level } in heard {
            let Some(comtree) = self.granted.first().map(|grant| grant.comtree) else { break };
            let mut own = self.granted.iter();
            let mut all = all.iter().filter(|grant| grant.comtree == comtree);
            let is_granted = match dst.group() {
                Some(group) => {
                    own.any(|grant| grant.subscribe.allows(group, *level))
                        && all.any(|grant| grant.publish.allows(group, *level))
                }
                None => all.any(|grant| grant.unicast.allows(*dst)),
            };
            assert!(is_granted, "{dst:?} at {level:?} was heard, which no token grants");
        }
    }

    pub(crate) fn leave(&mut self) {
        self.session.leave();
        assert!(matches!(self.session.state(), State::Leaving | State::Closed));
        self.hear_events();
    }

    pub(crate) fn standing(&self) -> Standing {
        let session = &self.session;
        Standing {
            state: session.state(),
            address: session.address(),
            id: session.id(),
            due: session.poll_timeout(),
            subscriptions: session.subscriptions(),
        }
    }

    fn hear_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            assert!(!self.closed, "{event:?} of a session that was left");
            self.closed = event == Event::Closed;
            if let Event::Answered(number, RequestStatus::Done) = event {
                let is_allowed = self.is_server || !self.judged.contains(&number);
                assert!(is_allowed, "a verdict of who is no server");
            }
        }
        assert_eq!(self.closed, self.session.state() == State::Closed);
    }
}
