//! What relays tell all others of their links: it passes from neighbour to neighbour. Whoever is near is told in detail,
//! and whoever is far gets a summary (Forest §3.1).

use crate::fields::{Fields, concatenate};
use crate::{Comtree, HEADER_LEN, Header, Kind, Packet, SessionId, WireError};

/// How many of its links a relay tells of in one packet at most. They fit the shortest datagram that any path takes.
pub const MAX_LINK_STATES: usize = 64;
/// How many states one packet acknowledges at most.
pub const MAX_LINK_STATE_ACKS: usize = 24;
/// The longest name of a relay in it, bytes.
pub const MAX_RELAY_NAME: usize = 64;

/// How many relays a state passes at most.
const MOST_HOPS: u8 = u8::MAX;
const DETAILED: u8 = 0;
const SUMMARY: u8 = 1;
/// A link in detail, and in a summary.
const DETAIL_LEN: usize = 14;
const SUMMARY_LEN: usize = 4;
/// What stands before the name, after it, and an acknowledgement.
const FRONT_LEN: usize = 53;
const ACK_LEN: usize = 46;

/// Which state of a relay's links, and how new it is: the higher life counts, and within one the higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkStateId {
    /// The key of the relay whose links they are.
    pub relay: [u8; 32],
    /// Which part: a relay with more than [`MAX_LINK_STATES`] links has several.
    pub part: u8,
    /// The relay's life: its time of day when it started, nanoseconds since the Unix epoch.
    pub life: u64,
    /// Counts what it has said in this life.
    pub number: u32,
}

/// One of a relay's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkDetail {
    /// The controller's number of the link, the same at both its ends.
    pub link: u32,
    /// Whether the relay hears the neighbour.
    pub is_up: bool,
    /// The time one way, microseconds; 0 if it is not known.
    pub delay_us: u32,
    /// The share of the relay's datagrams that are lost on the way there, in 255ths.
    pub loss: u8,
    /// What nothing is reserved of, towards the neighbour, kbit/s.
    pub free_kbit: u32,
}

/// The links of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkList<'a> {
    /// All of them, for who is near.
    Detailed(&'a [u8]),
    /// The numbers of those that are up.
    Summary(&'a [u8]),
}

/// What a relay says of its links, or of a part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState<'a> {
    /// Which, and how new.
    pub id: LinkStateId,
    /// For how long it has been under way and was kept by relays, seconds.
    pub age: u16,
    /// How many links it has passed, this one with it: 1 from the relay itself.
    pub distance: u8,
    /// What is free on the one of its links that has the most left, kbit/s.
    pub free_kbit: u32,
    /// What people call the relay: ASCII without spaces, at most [`MAX_RELAY_NAME`] bytes.
    pub name: &'a str,
    /// The links.
    pub links: LinkList<'a>,
}

/// The number of an encoded link of a summary.
fn number(link: &[u8; SUMMARY_LEN]) -> u32 {
    u32::from_be_bytes(*link)
}

impl LinkDetail {
    /// It as a state has it.
    pub fn to_bytes(&self) -> [u8; DETAIL_LEN] {
        let mut out = [0; DETAIL_LEN];
        let fields: [&[u8]; 5] = [
            &self.link.to_be_bytes(),
            &[u8::from(self.is_up)],
            &self.delay_us.to_be_bytes(),
            &[self.loss],
            &self.free_kbit.to_be_bytes(),
        ];
        // There is room.
        _ = concatenate(&fields, DETAIL_LEN, &mut out);
        out
    }

    fn of(bytes: &[u8; DETAIL_LEN]) -> Result<LinkDetail, WireError> {
        let mut fields = Fields(bytes);
        let link = fields.u32()?;
        let is_up = match fields.u8()? {
            0 => false,
            1 => true,
            _ => return Err(WireError::Field("up")),
        };
        let (delay_us, loss, free_kbit) = (fields.u32()?, fields.u8()?, fields.u32()?);
        Ok(LinkDetail { link, is_up, delay_us, loss, free_kbit })
    }
}

impl<'a> LinkList<'a> {
    /// The links in detail; none of a summary.
    pub fn details(&self) -> impl Iterator<Item = LinkDetail> + use<'a> {
        let bytes = match *self {
            LinkList::Detailed(bytes) => bytes,
            LinkList::Summary(_) => &[],
        };
        // They were checked.
        bytes.as_chunks().0.iter().filter_map(|link| LinkDetail::of(link).ok())
    }

    /// The numbers of the links that are up.
    pub fn up(&self) -> impl Iterator<Item = u32> + use<'a> {
        let summary = match *self {
            LinkList::Detailed(_) => &[],
            LinkList::Summary(bytes) => bytes,
        };
        let detailed = self.details().filter(|link| link.is_up).map(|link| link.link);
        detailed.chain(summary.as_chunks().0.iter().map(number))
    }

    fn check(form: u8, count: u8, bytes: &'a [u8]) -> Result<LinkList<'a>, WireError> {
        let len = match form {
            DETAILED => DETAIL_LEN,
            SUMMARY => SUMMARY_LEN,
            _ => return Err(WireError::Field("form")),
        };
        if usize::from(count) > MAX_LINK_STATES {
            return Err(WireError::Field("count"));
        }
        let bytes = bytes.get(..usize::from(count) * len).ok_or(WireError::Length)?;
        if form == SUMMARY {
            return Ok(LinkList::Summary(bytes));
        }
        bytes.as_chunks().0.iter().try_for_each(|link| LinkDetail::of(link).map(drop))?;
        Ok(LinkList::Detailed(bytes))
    }

    fn form(&self) -> (u8, usize, &'a [u8]) {
        match *self {
            LinkList::Detailed(bytes) => (DETAILED, DETAIL_LEN, bytes),
            LinkList::Summary(bytes) => (SUMMARY, SUMMARY_LEN, bytes),
        }
    }
}

impl<'a> LinkState<'a> {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short, or the name or the list too long; [`WireError::Field`] if the
    /// distance is 0.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let LinkState { id, age, distance, free_kbit, name, links } = self;
        let passed = distance.checked_sub(1).ok_or(WireError::Field("distance"))?;
        let header = Header::new(Kind::LinkState, SessionId::NONE, Comtree(0));
        let header = Header { hop_limit: MOST_HOPS - passed, ..header };
        let (form, len, list) = links.form();
        let count = list.len() / len;
        if name.len() > MAX_RELAY_NAME || count > MAX_LINK_STATES {
            return Err(WireError::Length);
        }
        let fields: [&[u8]; 11] = [
            &id.relay,
            &[id.part],
            &id.life.to_be_bytes(),
            &id.number.to_be_bytes(),
            &age.to_be_bytes(),
            &[form],
            &free_kbit.to_be_bytes(),
            &[name.len() as u8],
            name.as_bytes(),
            &[count as u8],
            list,
        ];
        crate::fields::encode(&header, &fields, 0, out)
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`WireError::TooShort`] or [`WireError::Length`]; [`WireError::Field`] for a name that is too long or not ASCII, a form
    /// that there is not, too many links, or a link that is neither up nor down.
    pub fn decode(packet: &Packet<'a>) -> Result<LinkState<'a>, WireError> {
        let mut fields = Fields::new(packet, FRONT_LEN + 1)?;
        let relay = fields.array()?;
        let (part, life, number) = (fields.u8()?, fields.u64()?, fields.u32()?);
        let (age, form, free_kbit) = (fields.u16()?, fields.u8()?, fields.u32()?);
        let len = usize::from(fields.u8()?);
        if len > MAX_RELAY_NAME {
            return Err(WireError::Field("name"));
        }
        let Fields(rest) = fields;
        let (name, rest) = rest.split_at_checked(len).ok_or(WireError::Length)?;
        let is_name = name.iter().all(u8::is_ascii_graphic);
        let name = core::str::from_utf8(name).ok().filter(|_| is_name);
        let name = name.ok_or(WireError::Field("name"))?;
        let (count, rest) = rest.split_first().ok_or(WireError::Length)?;
        let links = LinkList::check(form, *count, rest)?;
        let distance = (MOST_HOPS - packet.header().hop_limit).saturating_add(1);
        let id = LinkStateId { relay, part, life, number };
        Ok(LinkState { id, age, distance, free_kbit, name, links })
    }
}

/// What a relay has heard from a neighbour and holds now, and how near it takes each to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStateAck<'a>(&'a [[u8; ACK_LEN]]);

impl<'a> LinkStateAck<'a> {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short, or these are more than [`MAX_LINK_STATE_ACKS`].
    pub fn encode(acks: &[(LinkStateId, u8)], out: &mut [u8]) -> Result<usize, WireError> {
        let header = Header::new(Kind::LinkStateAck, SessionId::NONE, Comtree(0));
        if acks.len() > MAX_LINK_STATE_ACKS {
            return Err(WireError::Length);
        }
        let len = crate::fields::encode(&header, &[&[acks.len() as u8]], 0, out)?;
        let list = out.get_mut(len..len + acks.len() * ACK_LEN).ok_or(WireError::Length)?;
        for ((id, distance), place) in acks.iter().zip(list.as_chunks_mut::<ACK_LEN>().0) {
            let fields: [&[u8]; 5] = [
                &id.relay,
                &[id.part],
                &id.life.to_be_bytes(),
                &id.number.to_be_bytes(),
                &[*distance],
            ];
            concatenate(&fields, ACK_LEN, place)?;
        }
        Ok(len + acks.len() * ACK_LEN)
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`WireError::TooShort`]; [`WireError::Length`] if there are fewer than it says; [`WireError::Field`] if there are more
    /// than it may have.
    pub fn decode(packet: &Packet<'a>) -> Result<LinkStateAck<'a>, WireError> {
        let mut fields = Fields::new(packet, 1)?;
        let count = usize::from(fields.u8()?);
        if count > MAX_LINK_STATE_ACKS {
            return Err(WireError::Field("count"));
        }
        let Fields(rest) = fields;
        Ok(LinkStateAck(rest.as_chunks().0.get(..count).ok_or(WireError::Length)?))
    }

    /// Each state that it holds, and how many links that one has passed.
    pub fn states(&self) -> impl Iterator<Item = (LinkStateId, u8)> + use<'a> {
        let state = |bytes: &[u8; ACK_LEN]| {
            let mut fields = Fields(bytes);
            let (relay, part) = (fields.array()?, fields.u8()?);
            let (life, number) = (fields.u64()?, fields.u32()?);
            Ok::<_, WireError>((LinkStateId { relay, part, life, number }, fields.u8()?))
        };
        // They are as long as that.
        self.0.iter().filter_map(move |bytes| state(bytes).ok())
    }
}

/// The longest packet of a state fits the shortest datagram, sealed.
const _: () = {
    let longest = FRONT_LEN + MAX_RELAY_NAME + 1 + MAX_LINK_STATES * DETAIL_LEN;
    let acks = 1 + MAX_LINK_STATE_ACKS * ACK_LEN;
    let room = crate::SAFE_DATAGRAM - crate::SEAL_LEN - HEADER_LEN;
    assert!(longest <= room && acks <= room);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded;
    use proptest::prelude::*;

    fn any_id() -> impl Strategy<Value = LinkStateId> {
        let id = |(relay, part, life, number)| LinkStateId { relay, part, life, number };
        any::<([u8; 32], u8, u64, u32)>().prop_map(id)
    }

    fn any_link() -> impl Strategy<Value = LinkDetail> {
        let link = |(link, is_up, delay_us, loss, free_kbit)| LinkDetail {
            link,
            is_up,
            delay_us,
            loss,
            free_kbit,
        };
        any::<(u32, bool, u32, u8, u32)>().prop_map(link)
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn what_relays_say_of_their_links_survives_the_wire(
            id in any_id(), age: u16, distance in 1..=u8::MAX, free_kbit: u32, is_detailed: bool,
            name in "[a-z0-9/.-]{0,16}", links in proptest::collection::vec(any_link(), 0..=MAX_LINK_STATES),
            acks in proptest::collection::vec((any_id(), any::<u8>()), 0..=MAX_LINK_STATE_ACKS),
        ) {
            let mut out = [0xff; crate::SAFE_DATAGRAM - crate::SEAL_LEN];
            let detailed: Vec<u8> = links.iter().flat_map(LinkDetail::to_bytes).collect();
            let up: Vec<u32> = links.iter().filter(|link| link.is_up).map(|link| link.link).collect();
            let summary: Vec<u8> = up.iter().flat_map(|link| link.to_be_bytes()).collect();
            let list = if is_detailed { LinkList::Detailed(&detailed) } else { LinkList::Summary(&summary) };
            let state = LinkState { id, age, distance, free_kbit, name: &name, links: list };
            let len = state.encode(&mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            let read = LinkState::decode(&packet).unwrap();
            prop_assert_eq!(read, state);
            prop_assert_eq!(read.links.up().collect::<Vec<_>>(), up);
            let details = if is_detailed { links } else { Vec::new() };
            prop_assert_eq!(read.links.details().collect::<Vec<_>>(), details);

            let len = LinkStateAck::encode(&acks, &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            let read: Vec<_> = LinkStateAck::decode(&packet).unwrap().states().collect();
            prop_assert_eq!(read, acks);
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200), form in 0..3_u8) {
            for kind in [Kind::LinkState, Kind::LinkStateAck] {
                let mut body = body.clone();
                if let Some(at) = body.get_mut(47) {
                    *at = form;
                }
                let mut out = [0; 300];
                let header = Header::new(kind, SessionId::NONE, Comtree(0));
                let len = header.encode_packet(&body, &mut out).unwrap();
                let packet = Packet::new_checked(&out[..len]).unwrap();
                if let Ok(state) = LinkState::decode(&packet) {
                    prop_assert!(state.links.up().count() <= MAX_LINK_STATES);
                }
                if let Ok(acks) = LinkStateAck::decode(&packet) {
                    prop_assert!(acks.states().count() <= MAX_LINK_STATE_ACKS);
                }
            }
        }
    }

    #[test]
    fn what_no_relay_says_is_refused() {
        let id = LinkStateId { relay: [1; 32], part: 0, life: 1, number: 1 };
        let state = LinkState {
            id,
            age: 0,
            distance: 1,
            free_kbit: 0,
            name: "eu-1",
            links: LinkList::Summary(&[0; 8]),
        };
        let mut out = [0; 200];
        let len = state.encode(&mut out).unwrap();
        let fault = |at: usize, byte: u8, len: usize| {
            let mut out = out;
            out[at] = byte;
            LinkState::decode(&Packet::new_checked(&out[..len]).unwrap()).unwrap_err()
        };
        let form = HEADER_LEN + 47;
        assert_eq!(fault(form, 2, len), WireError::Field("form"));
        let name = HEADER_LEN + FRONT_LEN;
        assert_eq!(fault(name, 0xff, len), WireError::Field("name"));
        assert_eq!(fault(name - 1, 65, len), WireError::Field("name"));
        assert_eq!(fault(name + 4, 65, len), WireError::Field("count"));
        assert_eq!(fault(name + 4, 3, len), WireError::Length);
        assert_eq!(fault(form, 0, len), WireError::Length);
        assert!(LinkState { distance: 0, ..state }.encode(&mut out).is_err());
        let detail = LinkDetail { link: 1, is_up: true, delay_us: 2, loss: 3, free_kbit: 4 };
        let mut bytes = detail.to_bytes();
        bytes[4] = 2;
        let state = LinkState { links: LinkList::Detailed(&bytes), ..state };
        let len = state.encode(&mut out).unwrap();
        let read = LinkState::decode(&Packet::new_checked(&out[..len]).unwrap());
        assert_eq!(read, Err(WireError::Field("up")));
    }
}
