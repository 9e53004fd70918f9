//! Members of worlds: listed, sent away. Who enters is asked for here, and let in by the daemon.

use crate::body::{Budget, address, hex, name};
use crate::problem::Problem;
use crate::relays::name_of;
use canopy_control::{Controller, Member, MemberState};
use canopy_token::UnixTime;
use canopy_wire::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// The most members in one answer.
pub const MOST_LISTED: usize = 1000;

/// For how many seconds somebody who was sent away is kept out, unless the request says otherwise.
const USUAL_BAR_S: u64 = 60;
/// A year, in seconds.
const LONGEST_BAR_S: u64 = 31_536_000;

/// Which members are listed.
#[derive(Clone, Debug, Default, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MembersAsk {
    /// The address behind which the list begins: the last of the list before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How many at most, 1 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
    /// Only those who are called this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

/// Members of a world.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Members {
    /// In order of their addresses.
    pub members: Vec<MemberView>,
    /// Whether there are more behind the last.
    pub more: bool,
}

/// A member of a world.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct MemberView {
    /// Its address on each of the world's comtrees, such as `28672.64`.
    pub address: String,
    /// What its credential, or the backend that let it in, calls it; `anybody` where no credential is asked for.
    #[serde(default)]
    pub subject: String,
    /// Who it is: a digest of its credential, 32 hexadecimal digits.
    pub owner: String,
    /// The name of the relay that serves it.
    pub relay: String,
    /// Where its membership stands: `held`; `moving` while it has another place, to which it goes; or
    /// `leaving` while its relay is told.
    pub state: String,
    /// What it may send and be sent.
    pub budget: Budget,
    /// When its lease ends unless it is renewed, like `2026-11-21T20:00:00Z`.
    pub until: String,
}

/// Somebody to be let into a world, by a backend that answers for them.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// Who it is, as the backend names them: 1 to 64 bytes. Who is asked for again gets what it has.
    #[schema(example = "player-17")]
    pub subject: String,
    /// The public key of its client (X25519, base64url): whoever uses the token must have its secret.
    pub client_key: String,
    /// What it may send and be sent; what the world gives if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// How near relays are. If none is named, all count as equally near.
    #[serde(default)]
    pub measured: Vec<Nearness>,
}

/// How near a relay is to somebody.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nearness {
    /// The relay's name.
    pub relay: String,
    /// The time one way, microseconds.
    pub delay_us: u32,
}

impl NewMember {
    /// Whether the subject is one.
    ///
    /// # Errors
    /// It is empty or too long.
    pub fn check_subject(&self) -> Result<(), Problem> {
        if self.subject.is_empty() || self.subject.len() > canopy_token::MAX_NAME {
            let remedy = format!("give 1 to {} bytes", canopy_token::MAX_NAME);
            let what = format!("{} bytes are not allowed", self.subject.len());
            return Err(Problem::value("subject", what, &remedy));
        }
        Ok(())
    }

    /// The client's public key.
    ///
    /// # Errors
    /// It is none.
    pub fn key(&self) -> Result<[u8; 32], Problem> {
        canopy_token::parse_client_key(&self.client_key).map_err(|error| {
            let (what, remedy) = error.split_once("; ").unwrap_or((&error, ""));
            Problem::value("client_key", what, remedy)
        })
    }
}

/// The members of a world, without addresses that rest.
///
/// # Errors
/// There is no such world, or a value is not allowed.
pub fn members(controller: &Controller, of: &str, ask: &MembersAsk) -> Result<Members, Problem> {
    let world = controller.world(&name("world", of)?)?.id;
    let after = ask.after.as_deref().map(|text| address("after", text)).transpose()?;
    let most = ask.most.unwrap_or(MOST_LISTED);
    if !(1..=MOST_LISTED).contains(&most) {
        let remedy = format!("give 1 to {MOST_LISTED}");
        return Err(Problem::value("most", format!("{most} is not allowed"), &remedy));
    }
    let there = controller.members_of(world, after);
    let is_meant = |member: &&Member| {
        let named = ask.subject.as_ref().is_none_or(|subject| *subject == member.subject);
        named && member.state != MemberState::Resting
    };
    let mut there = there.filter(is_meant);
    let members = there.by_ref().take(most).map(|member| view(controller, member)).collect();
    Ok(Members { members, more: there.next().is_some() })
}

/// The member of a world that has this address.
///
/// # Errors
/// There is no such world, or nobody has the address.
pub fn member(controller: &Controller, of: &str, at: &str) -> Result<MemberView, Problem> {
    let world = controller.world(&name("world", of)?)?.id;
    let address = address("address", at)?;
    let mut there = controller.members_of(world, None);
    let found =
        there.find(|member| member.address == address && member.state != MemberState::Resting);
    found.map(|member| view(controller, member)).ok_or_else(|| {
        let (address, world) = (at.to_owned(), of.to_owned());
        canopy_control::Refusal::NoSuchMember { address, world }.into()
    })
}

/// How somebody is sent away.
#[derive(Clone, Debug, Default, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct KickAsk {
    /// For so many seconds it may not come back; 60 if nothing is said, at most a year.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar_s: Option<u64>,
}

/// Sends a member away, and keeps it out for a while.
///
/// # Errors
/// There is no such world, nobody has the address, or a value is not allowed.
pub fn kick(
    controller: &mut Controller,
    now: Time,
    of: &str,
    at: &str,
    ask: &KickAsk,
) -> Result<(), Problem> {
    let world = controller.world(&name("world", of)?)?.id;
    Ok(controller.kick(now, world, address("address", at)?, bar(ask.bar_s)?)?)
}

/// Who is sent away together.
#[derive(Clone, Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct KickAllAsk {
    /// All who are called this.
    #[param(example = "player-17")]
    pub subject: String,
    /// For so many seconds they may not come back; 60 if nothing is said, at most a year.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar_s: Option<u64>,
}

/// Who was sent away together.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Kicked {
    /// How many they are, with those who are leaving, have just left or have lost their relay: they are kept out, too.
    pub kicked: usize,
}

/// Sends all away who are called so, from all places that they have, and keeps them out for a while.
///
/// # Errors
/// There is no such world, nobody is called so, or a value is not allowed.
pub fn kick_all(
    controller: &mut Controller,
    now: Time,
    of: &str,
    ask: &KickAllAsk,
) -> Result<Kicked, Problem> {
    let world = controller.world(&name("world", of)?)?.id;
    if ask.subject.is_empty() {
        let remedy = "name who is meant; whom nobody has named is sent away by address";
        return Err(Problem::value("subject", "it is empty", remedy));
    }
    let kicked = controller.kick_subject(now, world, &ask.subject, bar(ask.bar_s)?);
    if kicked == 0 {
        let what = format!("nobody in it has the address or the name {:?}", ask.subject);
        let remedy = format!("`canopy world show {of} --members` lists who is there");
        return Err(Problem::missing(&format!("world {of}"), what, &remedy));
    }
    Ok(Kicked { kicked })
}

/// For how long somebody is kept out.
fn bar(seconds: Option<u64>) -> Result<Duration, Problem> {
    let seconds = seconds.unwrap_or(USUAL_BAR_S);
    if seconds > LONGEST_BAR_S {
        let what = format!("{seconds} s are not allowed");
        return Err(Problem::value("bar_s", what, &format!("give at most {LONGEST_BAR_S}")));
    }
    Ok(Duration::from_secs(seconds))
}

/// A time of the controller, which is counted from 1970, as text.
pub(crate) fn time_text(time: Time) -> String {
    UnixTime(time.as_nanos() / 1_000_000_000).to_string()
}

fn view(controller: &Controller, member: &Member) -> MemberView {
    MemberView {
        address: member.address.to_string(),
        subject: member.subject.clone(),
        owner: hex(&member.owner),
        relay: name_of(controller, member.relay),
        state: match member.state {
            MemberState::Held => "held",
            MemberState::Moving => "moving",
            MemberState::Leaving => "leaving",
            MemberState::Resting => "resting",
        }
        .to_owned(),
        budget: member.limits.into(),
        until: time_text(member.until),
    }
}
