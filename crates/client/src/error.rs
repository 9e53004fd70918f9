//! What can go wrong, and what to do about it.

use canopy_wire::{Comtree, Group, MAX_UPDATE, RefusedReason, SubscribeRefusal};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a world could not be joined. As text it says what to do.
///
/// ```no_run
/// use canopy_client::{ConnectError, PollClient, RefusedReason};
///
/// match PollClient::builder("127.0.0.1:4040").connect_blocking() {
///     Ok(_world) => println!("in the world"),
///     Err(ConnectError::Refused { reason: RefusedReason::Full, .. }) => println!("come back later"),
///     Err(error) => eprintln!("{error}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A relay's name has no address.
    #[error("no address for the relay {relay:?}: {source}; write HOST:PORT, and check the name")]
    Unresolved {
        /// The name.
        relay: String,
        /// What the system said.
        source: io::Error,
    },
    /// None of several relays has taken the client.
    #[error("none of {} relays took the client: {}", .errors.len(), one_after_the_other(.errors))]
    NoneOf {
        /// What became of each, in the order in which they are asked.
        errors: Vec<ConnectError>,
    },
    /// The relay is on another machine, and its key is not known.
    #[error(
        "the relay at {relay} is on another machine and its key is not known, so anyone could answer \
         in its place; give the key that it tells when it starts (`relay_key`), or say \
         `trust_any_relay` where nobody else is on the network"
    )]
    UnknownRelay {
        /// The relay's address.
        relay: SocketAddr,
    },
    /// The system gave no socket, or has no route to the relay.
    #[error("cannot open a UDP socket to the relay at {relay}: {source}")]
    Socket {
        /// The relay's address.
        relay: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system has no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(io::Error),
    /// Nobody answered in time.
    #[error(
        "no relay answered at {relay} within {waited:?}: {}",
        unreachable_remedy(*.nothing_listens)
    )]
    Unreachable {
        /// The address that was asked.
        relay: SocketAddr,
        /// For how long.
        waited: Duration,
        /// The host said that nothing listens on the port.
        nothing_listens: bool,
    },
    /// The token is longer than any.
    #[error(
        "the token has {bytes} bytes, more than a relay takes; let it grant fewer ranges of groups, \
         or shorten its names"
    )]
    LongToken {
        /// How long it is.
        bytes: usize,
    },
    /// Something answered, but not in this version of the protocol.
    #[error(
        "what answers at {relay} does not speak this version of Canopy's protocol; \
         use releases of client and relay that match, and check the port"
    )]
    Incompatible {
        /// The address that was asked.
        relay: SocketAddr,
    },
    /// The relay answered that it does not take the client.
    #[error("the relay at {relay} refused: {}", refusal_remedy(*.reason, *.comtree))]
    Refused {
        /// The relay's address.
        relay: SocketAddr,
        /// The comtree that was asked for.
        comtree: Comtree,
        /// Why.
        reason: RefusedReason,
    },
}

fn one_after_the_other(errors: &[ConnectError]) -> String {
    errors.iter().map(ConnectError::to_string).collect::<Vec<_>>().join(". ")
}

fn unreachable_remedy(nothing_listens: bool) -> &'static str {
    if nothing_listens {
        "nothing listens on that port; start the relay, or check the port"
    } else {
        "check the address, that the relay is running, and that firewalls let UDP through"
    }
}

fn refusal_remedy(reason: RefusedReason, comtree: Comtree) -> String {
    match reason {
        RefusedReason::Full => "it has as many sessions as its settings allow; \
                                try later, or raise its limit of sessions"
            .to_owned(),
        RefusedReason::UnknownComtree => format!(
            "it does not carry comtree {}; add it to the relay's settings, or join another",
            comtree.0
        ),
        RefusedReason::Version => "it speaks another version of the protocol; \
                                   use releases of client and relay that match"
            .to_owned(),
        RefusedReason::Credentials => {
            "it takes none of this client's security suites".to_owned()
        }
        RefusedReason::Token => "it lets in who has a token for this comtree and the key that the \
                                 token names, and does not take what it was given; it may be \
                                 missing, over, revoked, or for another world: the relay's log says \
                                 which. Ask the world's backend for a new one"
            .to_owned(),
        RefusedReason::TooMany => "too many sessions or handshakes come from this address; \
                                   try again later, or raise the relay's limits"
            .to_owned(),
        RefusedReason::AddressTaken => "the address that the token names is another's, or not this \
                                        relay's to give; ask the world's backend for a new token"
            .to_owned(),
        RefusedReason::CannotShare => "updates of this comtree are one datagram for all, so sessions \
                                       cannot share an ip:port; give each a socket of its own, or \
                                       the comtree the downlink member"
            .to_owned(),
        RefusedReason::Key => {
            "it has another key than this client was given; give it the key that the relay tells when \
             it starts"
                .to_owned()
        }
        RefusedReason::Draining => {
            "it is shutting down and takes no one new; try another relay, or later".to_owned()
        }
        other => format!(
            "its reason {} is not known to this release; \
             use releases of client and relay that match",
            other.number()
        ),
    }
}

/// Why an update was not sent.
///
/// ```no_run
/// # fn act(world: &canopy_client::Client, to: canopy_client::Group, input: &[u8])
/// # -> Result<(), canopy_client::PublishError> {
/// use canopy_client::{Level, PublishError};
///
/// match world.publish(to, Level(0), input) {
///     // The next tick has newer input. The client itself looks for its relay.
///     Err(PublishError::NotConnected | PublishError::Busy) => Ok(()),
///     other => other,
/// }
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The relay is lost right now.
    #[error("not connected to the relay right now; updates can be published after Connected")]
    NotConnected,
    /// The world has been left.
    #[error("the world has been left; connect again to publish")]
    Left,
    /// The update does not fit a datagram.
    #[error("the update has {0} bytes, more than {MAX_UPDATE}; split it")]
    TooLong(usize),
    /// The update is for a participant of an earlier session.
    #[error(
        "the update is for a participant of an earlier session, whose address may be another's now; \
         wait until they are heard of again"
    )]
    Stale,
    /// The socket's send buffer is full.
    #[error("the socket's send buffer is full; publish less, or again in a moment")]
    Busy,
    /// The system cannot send, for example because the network is down.
    #[error("the system cannot send to the relay: {0}")]
    Network(io::Error),
}

/// Why a change of subscriptions was not made.
///
/// ```no_run
/// # async fn look(world: canopy_client::Client) {
/// use canopy_client::{Group, Level, SubscribeError};
///
/// let cells = (0..100).map(|cell| (Group::new(cell), Level(0)));
/// if let Err(SubscribeError::Refused { groups }) = world.subscribe_many(cells).await {
///     groups.iter().for_each(|(group, why)| println!("not subscribed to {group}: {why:?}"));
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The relay does not take subscriptions to these groups.
    #[error(
        "the relay refused {} of the subscriptions: {}; {}",
        .groups.len(), first_few(.groups), subscription_remedy(.groups)
    )]
    Refused {
        /// Those that were refused, and why; the others were made.
        groups: Vec<(Group, SubscribeRefusal)>,
    },
    /// The world was left meanwhile.
    #[error("the world has been left; connect again to subscribe")]
    Left,
}

fn subscription_remedy(groups: &[(Group, SubscribeRefusal)]) -> &'static str {
    let all = |reason| groups.iter().all(|(_, why)| *why == reason);
    if all(SubscribeRefusal::Participant) {
        "it allows no more to one participant; unsubscribe from other groups"
    } else if all(SubscribeRefusal::NewGroups) {
        "it allows no more groups to one participant that nobody else has; unsubscribe from others"
    } else if groups.iter().any(|(_, why)| *why == SubscribeRefusal::NotAllowed) {
        "the client's token does not grant all of them; ask the world's backend for one that does"
    } else {
        "its tables are full; try later, or raise its limits of groups and subscriptions"
    }
}

fn first_few(groups: &[(Group, SubscribeRefusal)]) -> String {
    const FEW: usize = 3;
    let mut text: Vec<String> =
        groups.iter().take(FEW).map(|(group, _)| format!("group {group}")).collect();
    if groups.len() > FEW {
        text.push("…".to_owned());
    }
    text.join(", ")
}
