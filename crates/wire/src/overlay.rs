//! What relays tell each other over a link: that they are there, which way leads to whom, and which to the root.

use crate::fields::{Fields, encode};
use crate::{Address, Comtree, Header, Kind, Packet, SessionId, WireError};

/// A relay's sign of life on a link, sent by both sides. From those of its neighbour a relay knows
/// whether they hear each other, how long the way there and back takes, and what is lost on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkHello {
    /// The sender's clock; comes back as `echo`.
    pub stamp: u64,
    /// The last stamp of the neighbour's that has arrived; 0 before the first.
    pub echo: u64,
    /// How long ago it arrived, in microseconds.
    pub held: u32,
    /// How many packets the sender has sealed for this link, modulo 2³².
    pub sent: u32,
    /// The share of the neighbour's packets that were lost on the way to the sender, in parts of 65,535.
    pub loss: u16,
    /// How long a subscription lives at the sender without a refresh, in milliseconds.
    pub lifetime: u32,
}

/// The answer to whoever has sent an update that asks for a route (Forest §3.1). It travels from relay
/// to relay, and each of them learns from which neighbour it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteReply {
    /// Who sent the update.
    pub to: Address,
    /// To whom.
    pub about: Address,
    /// Whether the way that the answer comes by leads there. If not, nobody has that address.
    pub is_there: bool,
    /// How many relays it may pass from here on.
    pub hops: u8,
}

/// A relay that has lost its parent on a comtree, and has no controller, looks for another way to the root. The question
/// goes from relay to relay until it reaches the root, and the answer comes back by the same way. Each relay on it learns
/// from which neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaySearch {
    /// The site of the relay that looks.
    pub seeker: u16,
    /// Its number among that relay's searches.
    pub number: u32,
    /// What is said.
    pub word: WayWord,
    /// How many relays it may pass from here on.
    pub hops: u8,
}

/// What is said in a search. The root gives each answer a number: none twice, and later ones have higher ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayWord {
    /// Where is the root?
    Ask,
    /// This way.
    Answer(u64),
    /// To whoever has brought this answer: it is the parent from now on.
    Taken(u64),
    /// To whoever has taken this answer: it is no child here any more.
    Ended(u64),
}

impl LinkHello {
    const LEN: usize = 30;

    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let header = Header::new(Kind::LinkHello, SessionId::NONE, Comtree(0));
        let LinkHello { stamp, echo, held, sent, loss, lifetime } = self;
        let fields: [&[u8]; 6] = [
            &stamp.to_be_bytes(),
            &echo.to_be_bytes(),
            &held.to_be_bytes(),
            &sent.to_be_bytes(),
            &loss.to_be_bytes(),
            &lifetime.to_be_bytes(),
        ];
        encode(&header, &fields, LinkHello::LEN, out)
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<LinkHello, WireError> {
        let mut fields = Fields::new(packet, LinkHello::LEN)?;
        Ok(LinkHello {
            stamp: fields.u64()?,
            echo: fields.u64()?,
            held: fields.u32()?,
            sent: fields.u32()?,
            loss: fields.u16()?,
            lifetime: fields.u32()?,
        })
    }
}

impl WaySearch {
    const LEN: usize = 15;

    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, comtree: Comtree, out: &mut [u8]) -> Result<usize, WireError> {
        let WaySearch { seeker, number, word, hops } = *self;
        let header = Header::new(Kind::WaySearch, SessionId::NONE, comtree);
        let (word, answer) = match word {
            WayWord::Ask => (0, 0),
            WayWord::Answer(answer) => (1, answer),
            WayWord::Taken(answer) => (2, answer),
            WayWord::Ended(answer) => (3, answer),
        };
        let fields: [&[u8]; 4] =
            [&seeker.to_be_bytes(), &number.to_be_bytes(), &[word], &answer.to_be_bytes()];
        encode(&Header { hop_limit: hops, ..header }, &fields, WaySearch::LEN, out)
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`WireError::TooShort`]; [`WireError::Field`] if the word is none of those that there are.
    pub fn decode(packet: &Packet<'_>) -> Result<WaySearch, WireError> {
        let mut fields = Fields::new(packet, WaySearch::LEN)?;
        let (seeker, number) = (fields.u16()?, fields.u32()?);
        let word = match (fields.u8()?, fields.u64()?) {
            (0, _) => WayWord::Ask,
            (1, answer) => WayWord::Answer(answer),
            (2, answer) => WayWord::Taken(answer),
            (3, answer) => WayWord::Ended(answer),
            _ => return Err(WireError::Field("word")),
        };
        Ok(WaySearch { seeker, number, word, hops: packet.header().hop_limit })
    }
}

impl RouteReply {
    const LEN: usize = 9;

    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, comtree: Comtree, out: &mut [u8]) -> Result<usize, WireError> {
        let RouteReply { to, about, is_there, hops } = *self;
        let header = Header::new(Kind::RouteReply, SessionId::NONE, comtree);
        let fields: [&[u8]; 3] =
            [&to.0.to_be_bytes(), &about.0.to_be_bytes(), &[u8::from(is_there)]];
        encode(&Header { hop_limit: hops, ..header }, &fields, RouteReply::LEN, out)
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`WireError::TooShort`]; [`WireError::Field`] if an address is a group, or the answer is
    /// neither yes nor no.
    pub fn decode(packet: &Packet<'_>) -> Result<RouteReply, WireError> {
        let mut fields = Fields::new(packet, RouteReply::LEN)?;
        let (to, about) = (Address(fields.u32()?), Address(fields.u32()?));
        if to.is_group() || about.is_group() {
            return Err(WireError::Field("address"));
        }
        let is_there = match fields.u8()? {
            0 => false,
            1 => true,
            _ => return Err(WireError::Field("answer")),
        };
        Ok(RouteReply { to, about, is_there, hops: packet.header().hop_limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HEADER_LEN, seeded};
    use proptest::prelude::*;

    fn any_word() -> impl Strategy<Value = WayWord> {
        let of_answer = any::<u64>().prop_map(WayWord::Answer);
        let taken = any::<u64>().prop_map(WayWord::Taken);
        prop_oneof![Just(WayWord::Ask), of_answer, taken, any::<u64>().prop_map(WayWord::Ended)]
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn what_relays_tell_each_other_survives_the_wire(
            stamp: u64, echo: u64, held: u32, sent: u32, loss: u16, lifetime: u32,
            to in 0..1u32 << 31, about in 0..1u32 << 31, is_there: bool, hops: u8,
            seeker: u16, number: u32, word in any_word(),
        ) {
            let mut out = [0xff; 64];
            let hello = LinkHello { stamp, echo, held, sent, loss, lifetime };
            let len = hello.encode(&mut out).unwrap();
            prop_assert_eq!(LinkHello::decode(&Packet::new_checked(&out[..len]).unwrap()), Ok(hello));
            let reply = RouteReply { to: Address(to), about: Address(about), is_there, hops };
            let len = reply.encode(Comtree(5), &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            prop_assert_eq!(packet.header().comtree, Comtree(5));
            prop_assert_eq!(RouteReply::decode(&packet), Ok(reply));
            let search = WaySearch { seeker, number, word, hops };
            let len = search.encode(Comtree(5), &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            prop_assert_eq!((packet.header().comtree, WaySearch::decode(&packet)), (Comtree(5), Ok(search)));
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..40)) {
            for kind in [Kind::LinkHello, Kind::RouteReply, Kind::WaySearch] {
                let mut out = [0; 64];
                let header = Header::new(kind, SessionId::NONE, Comtree(1));
                let len = header.encode_packet(&body, &mut out).unwrap();
                prop_assert_eq!(len, HEADER_LEN + body.len());
                let packet = Packet::new_checked(&out[..len]).unwrap();
                let _ = (LinkHello::decode(&packet), RouteReply::decode(&packet));
                let _ = WaySearch::decode(&packet);
            }
        }
    }

    #[test]
    fn a_route_reply_names_no_group_and_says_yes_or_no() {
        let mut out = [0; 64];
        let reply = RouteReply { to: Address(1), about: Address(2), is_there: true, hops: 3 };
        let len = reply.encode(Comtree(1), &mut out).unwrap();
        out[HEADER_LEN + 8] = 2;
        let packet = Packet::new_checked(&out[..len]).unwrap();
        assert_eq!(RouteReply::decode(&packet), Err(WireError::Field("answer")));
        out[HEADER_LEN + 4] = 0x80;
        let packet = Packet::new_checked(&out[..len]).unwrap();
        assert_eq!(RouteReply::decode(&packet), Err(WireError::Field("address")));
    }
}
