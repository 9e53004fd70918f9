//! What packets there are, and who they are of.

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $number:literal,)*) => {
        /// What a packet is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $variant = $number,)* }

        impl Kind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            pub(crate) const fn from_number(number: u8) -> Option<Kind> {
                match number { $($number => Some(Kind::$variant),)* _ => None }
            }
        }
    };
}

kinds! {
    /// Updates, each to a group or an endpoint.
    Updates = 0x01,
    /// Subscription changes.
    Subscribe = 0x03,
    /// Answer to a subscribe: what was applied, and what was refused.
    SubscribeAck = 0x04,
    /// A relay's answer to an update that asks for a route (Forest §3.1).
    RouteReply = 0x08,
    /// A relay's sign of life on a link.
    LinkHello = 0x09,
    /// Relays look for a way to a comtree's root without a controller, or have found one.
    WaySearch = 0x0a,
    /// What a relay says of its links, to all others.
    LinkState = 0x0b,
    /// That it was heard.
    LinkStateAck = 0x0c,
    /// First packet of a participant.
    Hello = 0x10,
    /// The relay's stateless answer to a hello.
    Cookie = 0x11,
    /// The cookie brought back: the return path is proved.
    Connect = 0x12,
    /// The session's address and parameters.
    Connected = 0x13,
    /// The relay does not take the participant.
    Refused = 0x14,
    /// A participant's sign of life.
    Keepalive = 0x15,
    /// Its echo.
    KeepaliveAck = 0x16,
    /// Either side ends the session.
    Leave = 0x17,
    /// The relay has forgotten the session.
    Left = 0x18,
    /// The relay asks for a proof of the return path and the session behind an unexpected path.
    Challenge = 0x19,
    /// The proof.
    Rebind = 0x1a,
    /// The relay knows no such session.
    Unknown = 0x1b,
    /// The relay has nobody at the address that something was sent to.
    Gone = 0x1c,
    /// The relay drops a part of what a member sends.
    Busy = 0x1d,
    /// A member asks for something beyond updates and subscriptions.
    Request = 0x20,
    /// The relay's answer to a request.
    Response = 0x21,
    /// A key by which updates to groups are sealed for all members of a comtree.
    GroupKey = 0x24,
    /// The newest of those keys that the participant has; if there is another, it asks for it.
    GroupKeyHeld = 0x25,
    /// The relay asks what has arrived, and tells the participant its thinning.
    Probe = 0x28,
    /// The participant's answer to a probe, and what it asks for.
    Report = 0x29,
}

/// Who a packet is of: it stands in the first byte, so that the kernel can bring strangers' packets to
/// a socket of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// What comes from those who have no session, and the answers to them.
    Stranger = 0,
    /// In cleartext: what goes to many whose world asked for no protection.
    Session = 1,
    /// A session's, sealed with its keys from the ninth byte on.
    Sealed = 2,
    /// Updates to groups, sealed alike for all members of a comtree with its group key.
    Group = 3,
}

impl Kind {
    /// Who packets of this kind are of.
    pub const fn class(self) -> Class {
        match self {
            Kind::Hello
            | Kind::Cookie
            | Kind::Connect
            | Kind::Connected
            | Kind::Refused
            | Kind::Unknown => Class::Stranger,
            _ => Class::Session,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_number() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(*kind as u8), Some(*kind));
        }
    }
}
