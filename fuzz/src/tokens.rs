//! The tokens that participants bring, the keys by which a relay believes them, and what servers say
//! of other bearers. All tokens are signed once: that takes longer than a step.

use crate::input::Input;
use canopy_relay::{Trust, UnixTime};
use canopy_session::{Identity, SessionConfig};
use canopy_token::{
    Budget, Claims, ComtreeGrant, Grant, KeySet, Revocations, Role, Scope, SigningKey, Unicast,
};
use canopy_wire::{Acts, Address, Comtree, Group, Level, Restriction, Verdict};
use std::sync::{Arc, LazyLock};

/// The time of day when a relay starts.
pub(crate) const DAY: UnixTime = UnixTime(1_800_000_000);
/// How many have a key of their own, and tokens for it.
pub(crate) const BEARERS: usize = 4;

/// The bit of a verdict that takes back what the same without it has said.
const RESTORE: u8 = 8;

/// What a token is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Groups 0 to 11 up to level 3, unicast to everybody.
    Usual,
    /// The same under another identifier.
    Again,
    /// A few groups up to level 1, no unicast, few bits a second.
    Narrow,
    /// As usual, for a server.
    Server,
    /// As usual, but it ends soon.
    Short,
    /// For another comtree.
    OtherComtree,
    /// For another world.
    OtherWorld,
    /// Signed by a key that no relay believes.
    Forged,
    /// None at all.
    Missing,
    /// As usual, and it names its bearer's address: the same for all of a comtree.
    Placed,
}

/// New ones go to the end, for the corpus has the numbers.
pub(crate) const FORMS: &[Form] = &[
    Form::Usual,
    Form::Again,
    Form::Narrow,
    Form::Server,
    Form::Short,
    Form::OtherComtree,
    Form::OtherWorld,
    Form::Forged,
    Form::Missing,
    Form::Placed,
];

/// The address that tokens name which name one.
pub(crate) const PLACE: Address = Address::unicast(1, 70);

/// A token, and what it grants where it is believed.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) text: Vec<u8>,
    /// Nothing if a relay never takes it.
    pub(crate) grant: Option<ComtreeGrant>,
    pub(crate) is_servers: bool,
}

/// The token of a bearer, for its own comtree.
pub(crate) fn token(bearer: usize, form: Form) -> &'static Token {
    static TOKENS: LazyLock<Vec<Token>> = LazyLock::new(|| {
        let of = |bearer| FORMS.iter().map(move |form| sign(bearer, *form));
        (0..BEARERS).flat_map(of).collect()
    });
    &TOKENS[bearer * FORMS.len() + form as usize]
}

/// Makes a participant a bearer, who brings a token of its own.
pub(crate) fn bear(config: SessionConfig, bearer: usize, form: Form) -> SessionConfig {
    let identity = Some(identities()[bearer].clone());
    SessionConfig { identity, token: token(bearer, form).text.clone(), ..config }
}

/// What a relay believes: the one key, and of the bearers' usual tokens all but those `revoked`, a
/// bit each; or another key, and so nobody who comes.
pub(crate) fn trust(revoked: u8, is_other_key: bool) -> Arc<Trust> {
    let key = signing_key(if is_other_key { 2 } else { 0 }).public().clone();
    let keys = KeySet::new([key], &[], DAY).expect("no delegations");
    let mut all = Revocations::new(BEARERS);
    for bearer in (0..BEARERS).filter(|bearer| revoked >> bearer & 1 != 0) {
        all.add(&identifier(bearer, Form::Usual), DAY.after(86_400), DAY).expect("it has room");
    }
    Arc::new(Trust { keys, revoked: all })
}

/// What is to be done with a member: a byte that says what and which acts, and for some another one
/// with the first group and the last.
pub(crate) fn verdict(input: &mut Input<'_>) -> Verdict {
    let how = input.byte();
    let what = how & 3;
    if what == 0 {
        return Verdict::ThrowOut;
    }
    let mut restriction = Restriction::MUTE;
    if what != 1 {
        let groups = u32::from(input.byte());
        let (first, last) = (Group::new(groups >> 4), Group::new((groups & 15).max(groups >> 4)));
        restriction = Restriction::new(Acts(how >> 4), first, last);
    }
    if how & RESTORE == 0 { Verdict::Restrict(restriction) } else { Verdict::Restore(restriction) }
}

fn identities() -> &'static [Identity; BEARERS] {
    static IDENTITIES: LazyLock<[Identity; BEARERS]> =
        LazyLock::new(|| std::array::from_fn(|bearer| Identity::new([0x40 + bearer as u8; 32])));
    &IDENTITIES
}

/// The keys that a relay believes, that forgers have, and that nobody signs with.
fn signing_key(which: usize) -> &'static SigningKey {
    static KEYS: LazyLock<[SigningKey; 3]> =
        LazyLock::new(|| [[1; 32], [2; 32], [3; 32]].map(SigningKey::from_seed));
    &KEYS[which]
}

fn identifier(bearer: usize, form: Form) -> String {
    format!("{bearer}-{form:?}")
}

fn groups(range: &str, level: u8) -> Scope {
    Scope { groups: vec![range.parse().expect("a range")], level: Level(level) }
}

fn sign(bearer: usize, form: Form) -> Token {
    let own = Comtree(1 + bearer as u32 % 2);
    let is_narrow = form == Form::Narrow;
    let grant = ComtreeGrant {
        comtree: if form == Form::OtherComtree { Comtree(3) } else { own },
        publish: if is_narrow { groups("2-3", 1) } else { groups("0-11", 3) },
        subscribe: if is_narrow { groups("2-5", 1) } else { groups("0-11", 3) },
        unicast: if is_narrow { Unicast::Nobody } else { Unicast::Anybody },
    };
    let is_servers = form == Form::Server;
    let claims = Claims {
        subject: "somebody".to_owned(),
        id: identifier(bearer, form),
        expires: DAY.after(if form == Form::Short { 2 } else { 86_400 }),
        not_before: None,
        client_key: *identities()[bearer].public(),
        grant: Grant {
            world: if form == Form::OtherWorld { "elsewhere" } else { "main" }.to_owned(),
            address: (form == Form::Placed).then_some(PLACE),
            site: None,
            comtrees: vec![grant.clone()],
            budget: Budget { up_bits: is_narrow.then_some(20_000), ..Budget::default() },
            roles: is_servers.then_some(Role::Server).into_iter().collect(),
        },
    };
    let is_never_taken = [Form::OtherComtree, Form::OtherWorld, Form::Forged, Form::Missing];
    let text = match form {
        Form::Missing => String::new(),
        _ => signing_key((form == Form::Forged).into())
            .issue(&claims)
            .expect("it is within the limits"),
    };
    let is_taken = !is_never_taken.contains(&form);
    Token { text: text.into_bytes(), grant: is_taken.then_some(grant), is_servers }
}
