//! Why something is refused or ends, in one byte of a packet.

macro_rules! reasons {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$reason_doc:meta])* $reason:ident = $number:literal,)* }
    )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$reason_doc])* $reason,)*
            /// A reason of another release, by its number. It has the same effect as the others.
            Other(u8),
        }

        impl $name {
            /// The reasons that this release gives.
            pub const ALL: &'static [$name] = &[$($name::$reason,)*];

            /// The number that stands in packets.
            pub const fn number(self) -> u8 {
                match self { $($name::$reason => $number,)* $name::Other(number) => number }
            }

            /// The reason of this number.
            pub const fn from_number(number: u8) -> $name {
                match number { $($number => $name::$reason,)* _ => $name::Other(number) }
            }
        }
    )* };
}

reasons! {
    /// Why a relay does not take a participant.
    RefusedReason {
        /// The session table is full.
        Full = 1,
        /// The relay does not carry the comtree.
        UnknownComtree = 2,
        /// The relay speaks another version.
        Version = 3,
        /// The relay takes none of the participant's security suites.
        Credentials = 4,
        /// The relay is draining.
        Draining = 5,
        /// The handshake was not made for this relay's key.
        Key = 6,
        /// The relay asks for a token and got none, or does not take the one that it got.
        Token = 7,
        /// Too many sessions, or handshakes, come from there.
        TooMany = 8,
        /// Somebody else has the address that the token names, or this relay does not give it out.
        AddressTaken = 9,
        /// Updates go out on the comtree as one datagram for all, so no session can share its ip:port.
        CannotShare = 10,
    }

    /// Why a session ends.
    LeaveReason {
        /// The participant is done.
        Done = 0,
        /// The relay is going away; connect elsewhere or later.
        Draining = 1,
        /// A server has thrown the participant out.
        ThrownOut = 2,
        /// Its token has ended or was revoked, or the key that signed it is trusted no more.
        Revoked = 3,
        /// Its token or its ticket was used by a newer session.
        Elsewhere = 4,
    }

    /// What a member has too much of.
    Excess {
        /// Updates, or their bits: more than the member's own budget.
        Updates = 1,
        /// Updates, or their bits, of all members of the comtree.
        Comtree = 2,
        /// Changes of subscriptions.
        Subscriptions = 3,
        /// Keepalives.
        Keepalives = 4,
        /// Requests.
        Requests = 5,
    }

    /// What bounds the budget of a receiver: the least of three.
    Bound {
        /// It has no budget.
        Nothing = 0,
        /// What it was admitted for.
        Admitted = 1,
        /// What it asked for.
        Asked = 2,
        /// What its path bears.
        Path = 3,
    }

    /// Why a relay refuses a subscription.
    SubscribeRefusal {
        /// The relay's table of groups or subscriptions is full.
        Table = 1,
        /// The participant has as many subscriptions as one may have.
        Participant = 2,
        /// The participant's token does not grant it, or a server has taken it away.
        NotAllowed = 3,
        /// The participant has opened as many groups as one may: groups that nobody else had.
        NewGroups = 4,
    }

    /// What became of a request.
    RequestStatus {
        /// It is done; of a member that another data thread serves, it is on its way there.
        Done = 0,
        /// Only servers may ask for it.
        NotAllowed = 1,
        /// No member has the address.
        UnknownAddress = 2,
        /// The relay does not take the token.
        Token = 3,
        /// As much is restricted as the relay has room for.
        Full = 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_reason_and_every_reason_has_its_number() {
        for number in 0..=u8::MAX {
            assert_eq!(RefusedReason::from_number(number).number(), number);
            assert_eq!(LeaveReason::from_number(number).number(), number);
            assert_eq!(SubscribeRefusal::from_number(number).number(), number);
            assert_eq!(RequestStatus::from_number(number).number(), number);
            assert_eq!(Excess::from_number(number).number(), number);
            assert_eq!(Bound::from_number(number).number(), number);
        }
        let named = |number| !matches!(RefusedReason::from_number(number), RefusedReason::Other(_));
        assert_eq!((0..=u8::MAX).filter(|number| named(*number)).count(), RefusedReason::ALL.len());
    }
}
