//! For which session a datagram from a relay is.

use crate::fields::Fields;
use crate::{Kind, Packet, Refused, Sealed, SessionId, WireError};

/// For which of the sessions at one ip:port a datagram from their relay is, as can be told without
/// a key. Nothing of it is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recipient {
    /// For the one with this number.
    Session(SessionId),
    /// For the one that shakes hands with this nonce.
    Handshake(u64),
}

impl Recipient {
    /// For whom a datagram is; `None` if it is nothing that a relay sends to a session that
    /// [shares](crate::Join::SHARES) its ip:port.
    pub fn of(datagram: &[u8]) -> Option<Recipient> {
        if let Some(Sealed { session, .. }) = Sealed::of(datagram) {
            return Some(Recipient::Session(session));
        }
        let packet = match Packet::new_checked(datagram) {
            Ok(packet) => packet,
            Err(WireError::Version(_)) => {
                return Refused::nonce_of_any_version(datagram).map(Recipient::Handshake);
            }
            Err(_) => return None,
        };
        match packet.header().kind {
            Kind::Cookie | Kind::Connected | Kind::Refused => {
                let nonce = Fields::new(&packet, 8).and_then(|mut fields| fields.u64()).ok()?;
                Some(Recipient::Handshake(nonce))
            }
            Kind::Unknown => Some(Recipient::Session(packet.header().session)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CLEAR_LEN, Class, Comtree, Connected, Cookie, Flags, Header, Hello, MAX_DATAGRAM, Record,
        RefusedReason, Unknown, VERSION, encode_update,
    };

    const NONCE: u64 = 0x0102_0304_0506_0708;

    #[test]
    fn whom_a_datagram_is_for_can_be_told_by_its_session_or_its_nonce() {
        let mut out = [0; MAX_DATAGRAM];
        let len = Cookie { nonce: NONCE, cookie: [1; 16], relay_key: [2; 32] }
            .encode(Comtree(0), &mut out)
            .unwrap();
        assert_eq!(Recipient::of(&out[..len]), Some(Recipient::Handshake(NONCE)));
        let len = Connected { nonce: NONCE, message: b"message" }.encode(&mut out).unwrap();
        assert_eq!(Recipient::of(&out[..len]), Some(Recipient::Handshake(NONCE)));
        let refused = Refused { nonce: NONCE, reason: RefusedReason::Full };
        let len = refused.encode(Comtree(0), &mut out).unwrap();
        assert_eq!(Recipient::of(&out[..len]), Some(Recipient::Handshake(NONCE)));
        // A relay of another version refuses in a way that can be read.
        let refused = Refused { nonce: NONCE, reason: RefusedReason::Version };
        let len = refused.encode(Comtree(0), &mut out).unwrap();
        out[0] = VERSION ^ 0x10;
        assert_eq!(Recipient::of(&out[..len]), Some(Recipient::Handshake(NONCE)));
        let session = SessionId::new(0x0001_0203);
        let len = Unknown { echo: 9 }.encode(Comtree(1), session, &mut out).unwrap();
        assert_eq!(Recipient::of(&out[..len]), Some(Recipient::Session(session)));
        let mut sealed = [7; 60];
        sealed[..CLEAR_LEN].fill(0);
        sealed[..4].copy_from_slice(&[VERSION | Class::Sealed as u8, 1, 2, 3]);
        let session = SessionId::new(0x01_02_03);
        assert_eq!(Recipient::of(&sealed), Some(Recipient::Session(session)));
    }

    #[test]
    fn what_names_nobody_is_nobodys() {
        let mut out = [0; MAX_DATAGRAM];
        let header = Header::new(Kind::Updates, SessionId::NONE, Comtree(1));
        let record = Record { flags: Flags(0), ..Record::new(crate::Address(1 << 31), 0, b"x") };
        let len = encode_update(&header, &record, &mut out).unwrap();
        assert_eq!(Recipient::of(&out[..len]), None, "updates in clear");
        let len = Hello { nonce: NONCE }.encode(Comtree(0), &mut out).unwrap();
        assert_eq!(Recipient::of(&out[..len]), None, "no relay says hello");
        for len in 0..len {
            assert_eq!(Recipient::of(&out[..len]), None, "{len} bytes of it");
        }
        out[0] = VERSION | Class::Group as u8;
        assert_eq!(Recipient::of(&out[..100]), None, "sealed for all");
    }
}
