//! What controller and relays say to each other.

use crate::codec::{CodecError, Coded, MOSTLY, Reader, coded, coded_enum};
use crate::model::{Downlink, Key, LinkId, Mode, Sharing};
use crate::name::Name;
use crate::signal::{LinkLoad, Measure, Measured, loads};
use canopy_plan::{Limits, Rate};
use canopy_wire::{Address, Comtree};
use core::net::SocketAddr;

/// The version of these messages, their first byte.
const VERSION: u8 = 1;

/// What a relay can be told to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ItemKey {
    /// A link.
    Link(LinkId),
    /// A comtree, with the relay's branches on it.
    Comtree(Comtree),
    /// A member.
    Member(Comtree, Address),
}

/// Something that a relay has, as the controller wants it.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A link with a neighbour.
    Link {
        /// Which.
        id: LinkId,
        /// The neighbour's key.
        key: Key,
        /// Where it is.
        native: SocketAddr,
        /// Whether this relay calls.
        calls: bool,
        /// What may be sent over it a second.
        capacity: Rate,
    },
    /// A comtree.
    Comtree {
        /// Which.
        id: Comtree,
        /// The name of its world: tokens are for a world.
        world: Name,
        /// The relay's site on it.
        site: u16,
        /// When updates leave.
        mode: Mode,
        /// How they are protected.
        downlink: Downlink,
        /// The highest level.
        levels: u8,
        /// What members get who cannot be sent everything.
        sharing: Sharing,
        /// The branches, in order of their links. They change together, so that a relay never has
        /// two parents.
        branches: Vec<Branch>,
    },
    /// Somebody who may come.
    Member {
        /// On which comtree.
        comtree: Comtree,
        /// With which address.
        address: Address,
        /// What it sends and receives at most.
        limits: Limits,
    },
}

/// A neighbour on a comtree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Branch {
    /// Over which link.
    pub link: LinkId,
    /// The neighbour's site.
    pub site: u16,
    /// What the neighbour is to this relay.
    pub role: Role,
    /// What is reserved towards the neighbour: the branch's guarantee.
    pub send: Rate,
    /// What is reserved from the neighbour: its budget.
    pub receive: Rate,
}

/// What a neighbour is to a relay on a comtree (Forest §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The way to the core.
    Parent,
    /// Both are in the core.
    Core,
    /// Both are in a meshed core: neither passes on to others of it what came from one (federated games
    /// §3.1).
    CorePeer,
    /// One of the two joins a meshed core, or leaves it, without loss: it gets what a core peer gets, while one core
    /// peer brings each what the other sends, too.
    NextPeer,
    /// One of the two has left a meshed core: nothing is sent there any more, and what is on its way is taken. Only a
    /// next peer becomes it.
    LastPeer,
    /// Its way to the core leads here.
    Child,
    /// It is to be the parent in place of the one that there is, without loss; the relay says in its
    /// beats once it is the way to the core. If it has no other parent it is that.
    NextParent,
    /// It takes the place of the parent if the link to that fails and the controller says nothing; until
    /// then there is no branch.
    StandbyParent,
    /// It has this relay as its standby parent.
    StandbyChild,
    /// It is on the comtree, too, and a way to the root may be found over it while there is no controller; until then
    /// there is no branch.
    Spare,
}

impl Role {
    /// Whether nothing flows before something has failed.
    pub fn is_standby(self) -> bool {
        matches!(self, Role::StandbyParent | Role::StandbyChild | Role::Spare)
    }

    /// Whether both are in a meshed core, join it or leave it.
    pub fn is_peer(self) -> bool {
        matches!(self, Role::CorePeer | Role::NextPeer | Role::LastPeer)
    }
}

impl Item {
    /// What it is known by.
    pub fn key(&self) -> ItemKey {
        match self {
            Item::Link { id, .. } => ItemKey::Link(*id),
            Item::Comtree { id, .. } => ItemKey::Comtree(*id),
            Item::Member { comtree, address, .. } => ItemKey::Member(*comtree, *address),
        }
    }

    /// At most as many bytes as it is long.
    pub(crate) fn most_bytes(&self) -> usize {
        match self {
            Item::Comtree { world, branches, .. } => {
                FRAME + world.as_str().len() + branches.len() * MOST_OF_BRANCH
            }
            Item::Link { .. } | Item::Member { .. } => 2 * FRAME,
        }
    }

    /// What a relay of an earlier release takes of it.
    pub(crate) fn for_earlier_release(mut self) -> Item {
        if let Item::Comtree { sharing, branches, .. } = &mut self {
            *sharing = Sharing::default();
            branches.retain(|branch| branch.role != Role::Spare);
        }
        self
    }
}

/// How many bytes of a message are left for what is not items. No comtree is longer without its branches and its
/// world's name.
pub(crate) const FRAME: usize = 64;
/// The longest branch: two numbers of up to 32 bits, a role, and four of up to 54 bits.
const MOST_OF_BRANCH: usize = 48;

/// A comtree with a sharing of its own is marked by this, as relays of an earlier release read none.
const SHARED: u8 = 3;

/// What a relay is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Have this, as it is here: create, or modify what is there.
    Set(Item),
    /// Have this no more; done at once if it is not there.
    Remove(ItemKey),
    /// Say what there is, behind this key.
    List(Option<ItemKey>),
    /// Several of [`Call::Set`] and [`Call::Remove`] in this order, at most [`MOST_TOGETHER`]. If one is refused, the
    /// others are done all the same.
    Together(Vec<Call>),
}

/// How many changes one call has at most.
pub const MOST_TOGETHER: usize = 64;

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Done, all of it.
    Done,
    /// It was not done, and nothing has changed.
    Refused(String),
    /// What there is, and whether there is more. Where nothing is, a relay that takes a [`Sharing`], and
    /// [`Call::Together`], says that there is more: one of an earlier release never does, and a controller of an earlier release asks no further.
    Items(Vec<Item>, bool),
    /// To [`Call::Together`], if not all is done: why each was refused, or nothing if it is done.
    Together(Vec<Option<String>>),
}

/// How a relay finds one of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// Which.
    pub link: LinkId,
    /// Whether the neighbour is heard.
    pub up: bool,
    /// The measured time one way, microseconds.
    pub delay_us: u32,
}

/// A message. The lives are those of the two processes, counted by their starts: what is of
/// another life is not meant for this one.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// From the controller.
    Call {
        /// The controller's life.
        controller: u32,
        /// The life of the relay that it is for.
        relay: u32,
        /// The call's number, from 1 on.
        number: u64,
        /// All calls below this number are answered, and their answers need not be kept.
        settled: u64,
        /// The call.
        call: Call,
    },
    /// From the relay.
    Answer {
        /// The life of the controller that it is for.
        controller: u32,
        /// The relay's life.
        relay: u32,
        /// The number of the call.
        number: u64,
        /// What became of it.
        answer: Answer,
    },
    /// From the relay, every now and then: it is there.
    Beat {
        /// The relay's life.
        relay: u32,
        /// The newest life of the controller that has called; 0 before.
        controller: u32,
        /// It has answered the calls of that life up to this number, and says what follows after them.
        answered: u64,
        /// How it finds its links.
        links: Vec<LinkReport>,
        /// On which comtrees the next parent is the way to the core now, and over which link; at most
        /// [`MOST_SUCCEEDED`]. It says so until it is told that this is the parent.
        succeeded: Vec<(Comtree, LinkId)>,
    },
    /// From the controller: measure how far these relays are, and say so once.
    Measure(Measure),
    /// From the relay: how far they are.
    Measured(Measured),
    /// From the relay: what it sends over its links, as many as it can have.
    Loads(Vec<LinkLoad>),
    /// From the relay, before each beat that finds it on a detour: on which comtrees its standby parent is the way up,
    /// at most [`MOST_DETOURS`]. A beat without it says that there is none. Controllers of releases that do not know this
    /// message ignore it.
    Detours(Vec<Comtree>),
    /// From the relay, before each beat that finds it on ways that it has found by itself: which, at most
    /// [`MOST_DETOURS`]. It is as with [`Message::Detours`].
    Ways(Vec<FoundWay>),
    /// From the controller: of which of these relays, by their keys, do relays say among each other that links lead there? It
    /// hears nothing of them itself. At most [`MOST_ASKED_AFTER`]. Relays of releases that do not know this message ignore it.
    AskAfter(Vec<Key>),
    /// From the relay: of these, once.
    Reachable(Vec<Key>),
}

/// A way to the root that a relay has found by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundWay {
    /// On which comtree.
    pub comtree: Comtree,
    /// Over this link to its parent.
    pub over: LinkId,
    /// And not over this one, as it is told.
    pub instead_of: LinkId,
}

/// For how many comtrees at most a beat says that the next parent is the way to the core. The others follow
/// once those are done.
pub const MOST_SUCCEEDED: usize = 256;

/// After how many relays a message asks at most.
pub const MOST_ASKED_AFTER: usize = 128;

/// For how many comtrees at most a relay says that it is on a detour: as many as it carries.
pub const MOST_DETOURS: usize = 1_024;

impl Message {
    /// The longest message, bytes: a comtree with a branch over each of
    /// [`MOST_LINKS`](crate::MOST_LINKS) links fits.
    pub const MOST: usize = 8_192;

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MOSTLY);
        out.push(VERSION);
        self.put(&mut out);
        out
    }

    /// The bytes of a call between these lives, which its caller keeps: with its number, and the one below which all
    /// are settled.
    pub(crate) fn encode_call(lives: (u32, u32), numbers: (u64, u64), call: &Call) -> Vec<u8> {
        let mut out = Vec::with_capacity(MOSTLY);
        out.push(VERSION);
        put_call(&mut out, lives, numbers, call);
        out
    }

    /// Reads a message.
    ///
    /// # Errors
    /// Why the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Message, CodecError> {
        if bytes.len() > Message::MOST {
            return Err(CodecError::Value("length"));
        }
        match bytes.split_first() {
            Some((&VERSION, rest)) => Message::of_bytes(rest),
            Some(_) => Err(CodecError::Value("version")),
            None => Err(CodecError::Short("version")),
        }
    }
}

coded! {
    Branch { link, site, role, send, receive }
    LinkReport { link, up, delay_us }
    FoundWay { comtree, over, instead_of }
}
coded_enum!(Role {
    Parent = 0, Core = 1, Child = 2, NextParent = 3, StandbyParent = 4, StandbyChild = 5, CorePeer = 6,
    NextPeer = 7, LastPeer = 8, Spare = 9
});

impl Coded for (Comtree, LinkId) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<(Comtree, LinkId), CodecError> {
        Ok((Comtree::take(from)?, LinkId::take(from)?))
    }
}

impl Coded for ItemKey {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            ItemKey::Link(id) => {
                out.push(0);
                id.put(out);
            }
            ItemKey::Comtree(id) => {
                out.push(1);
                id.put(out);
            }
            ItemKey::Member(comtree, address) => {
                out.push(2);
                comtree.put(out);
                address.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<ItemKey, CodecError> {
        let tag = from.array("item")?;
        ItemKey::of(tag, from)
    }
}

impl ItemKey {
    /// The rest of one that begins so.
    fn of(tag: [u8; 1], from: &mut Reader<'_>) -> Result<ItemKey, CodecError> {
        Ok(match tag {
            [0] => ItemKey::Link(Coded::take(from)?),
            [1] => ItemKey::Comtree(Coded::take(from)?),
            [2] => ItemKey::Member(Coded::take(from)?, Coded::take(from)?),
            _ => return Err(CodecError::Value("item")),
        })
    }
}

impl Coded for Item {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Item::Link { id: _, key, native, calls, capacity } => {
                self.key().put(out);
                key.put(out);
                native.put(out);
                calls.put(out);
                capacity.put(out);
            }
            Item::Comtree { id, world, site, mode, downlink, levels, sharing, branches } => {
                if *sharing == Sharing::default() {
                    self.key().put(out);
                } else {
                    out.push(SHARED);
                    id.put(out);
                    sharing.put(out);
                }
                world.put(out);
                site.put(out);
                mode.put(out);
                downlink.put(out);
                levels.put(out);
                branches.put(out);
            }
            Item::Member { comtree: _, address: _, limits } => {
                self.key().put(out);
                limits.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Item, CodecError> {
        let tag = from.array("item")?;
        let (key, sharing) = match tag {
            [SHARED] => (ItemKey::Comtree(Coded::take(from)?), Coded::take(from)?),
            _ => (ItemKey::of(tag, from)?, Sharing::default()),
        };
        Ok(match key {
            ItemKey::Link(id) => Item::Link {
                id,
                key: Coded::take(from)?,
                native: Coded::take(from)?,
                calls: Coded::take(from)?,
                capacity: Coded::take(from)?,
            },
            ItemKey::Comtree(id) => Item::Comtree {
                id,
                world: Coded::take(from)?,
                site: Coded::take(from)?,
                mode: Coded::take(from)?,
                downlink: Coded::take(from)?,
                levels: Coded::take(from)?,
                sharing,
                branches: Coded::take(from)?,
            },
            ItemKey::Member(comtree, address) => {
                Item::Member { comtree, address, limits: Coded::take(from)? }
            }
        })
    }
}

impl Call {
    /// The change of this tag: what can be called together with others.
    fn change(tag: [u8; 1], from: &mut Reader<'_>) -> Result<Call, CodecError> {
        match tag {
            [0] => Ok(Call::Set(Coded::take(from)?)),
            [1] => Ok(Call::Remove(Coded::take(from)?)),
            _ => Err(CodecError::Value("call")),
        }
    }
}

impl Coded for Call {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Call::Set(item) => {
                out.push(0);
                item.put(out);
            }
            Call::Remove(key) => {
                out.push(1);
                key.put(out);
            }
            Call::List(after) => {
                out.push(2);
                after.put(out);
            }
            Call::Together(calls) => {
                out.push(3);
                calls.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Call, CodecError> {
        match from.array("call")? {
            [2] => Ok(Call::List(Coded::take(from)?)),
            [3] => {
                let count = usize::from(u8::take(from)?);
                if count > MOST_TOGETHER {
                    return Err(CodecError::Value("calls"));
                }
                let change = |_| from.array("call").and_then(|tag| Call::change(tag, from));
                (0..count).map(change).collect::<Result<_, _>>().map(Call::Together)
            }
            tag => Call::change(tag, from),
        }
    }
}

impl Coded for Answer {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Answer::Done => out.push(0),
            Answer::Refused(why) => {
                out.push(1);
                why.put(out);
            }
            Answer::Items(items, more) => {
                out.push(2);
                items.put(out);
                more.put(out);
            }
            Answer::Together(whys) => {
                out.push(3);
                whys.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Answer, CodecError> {
        Ok(match from.array("answer")? {
            [0] => Answer::Done,
            [1] => Answer::Refused(Coded::take(from)?),
            [2] => Answer::Items(Coded::take(from)?, Coded::take(from)?),
            [3] => Answer::Together(Coded::take(from)?),
            _ => return Err(CodecError::Value("answer")),
        })
    }
}

fn asked_after(from: &mut Reader<'_>) -> Result<Vec<Key>, CodecError> {
    let relays: Vec<Key> = Coded::take(from)?;
    if relays.len() > MOST_ASKED_AFTER {
        return Err(CodecError::Value("relays"));
    }
    Ok(relays)
}

fn put_call(
    out: &mut Vec<u8>,
    (controller, relay): (u32, u32),
    (number, settled): (u64, u64),
    call: &Call,
) {
    out.push(0);
    controller.put(out);
    relay.put(out);
    number.put(out);
    settled.put(out);
    call.put(out);
}

impl Coded for Message {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Message::Call { controller, relay, number, settled, call } => {
                put_call(out, (*controller, *relay), (*number, *settled), call);
            }
            Message::Answer { controller, relay, number, answer } => {
                out.push(1);
                controller.put(out);
                relay.put(out);
                number.put(out);
                answer.put(out);
            }
            Message::Beat { relay, controller, answered, links, succeeded } => {
                out.push(2);
                relay.put(out);
                controller.put(out);
                answered.put(out);
                links.put(out);
                succeeded.put(out);
            }
            Message::Measure(measure) => {
                out.push(3);
                measure.put(out);
            }
            Message::Measured(measured) => {
                out.push(4);
                measured.put(out);
            }
            Message::Loads(loads) => {
                out.push(5);
                loads.put(out);
            }
            Message::Detours(comtrees) => {
                out.push(6);
                comtrees.put(out);
            }
            Message::Ways(ways) => {
                out.push(7);
                ways.put(out);
            }
            Message::AskAfter(relays) => {
                out.push(8);
                relays.put(out);
            }
            Message::Reachable(relays) => {
                out.push(9);
                relays.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Message, CodecError> {
        Ok(match from.array("message")? {
            [0] => Message::Call {
                controller: Coded::take(from)?,
                relay: Coded::take(from)?,
                number: Coded::take(from)?,
                settled: Coded::take(from)?,
                call: Coded::take(from)?,
            },
            [1] => Message::Answer {
                controller: Coded::take(from)?,
                relay: Coded::take(from)?,
                number: Coded::take(from)?,
                answer: Coded::take(from)?,
            },
            [2] => Message::Beat {
                relay: Coded::take(from)?,
                controller: Coded::take(from)?,
                answered: Coded::take(from)?,
                links: Coded::take(from)?,
                succeeded: Coded::take(from)?,
            },
            [3] => Message::Measure(Coded::take(from)?),
            [4] => Message::Measured(Coded::take(from)?),
            [5] => Message::Loads(loads::take(from)?),
            [6] => {
                let comtrees: Vec<Comtree> = Coded::take(from)?;
                if comtrees.len() > MOST_DETOURS {
                    return Err(CodecError::Value("detours"));
                }
                Message::Detours(comtrees)
            }
            [7] => {
                let ways: Vec<FoundWay> = Coded::take(from)?;
                if ways.len() > MOST_DETOURS {
                    return Err(CodecError::Value("ways"));
                }
                Message::Ways(ways)
            }
            [8] => Message::AskAfter(asked_after(from)?),
            [9] => Message::Reachable(asked_after(from)?),
            _ => return Err(CodecError::Value("message")),
        })
    }
}
