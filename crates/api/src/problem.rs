//! Why the API does not do what it is asked.

use canopy_control::Refusal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is answered instead of what was asked for. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What is wrong.
    pub error: Box<Wrong>,
    /// The HTTP status that fits it.
    #[serde(skip)]
    #[schema(ignore)]
    pub status: u16,
}

/// What is wrong, where, and what to do about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Wrong {
    /// What is wrong.
    pub what: String,
    /// Where: a field, a world, a relay, a link.
    #[serde(rename = "where")]
    pub place: String,
    /// What to do about it.
    pub remedy: String,
    /// What was asked of a link or relay that has too little left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// What it has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<String>,
    /// The relay that asks was removed, and is to carry nothing until it is allowed again.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub is_removed: bool,
}

/// What is there already, or is in the way.
const CONFLICT: u16 = 409;
/// What somebody may not do.
const FORBIDDEN: u16 = 403;
/// What is not there.
const NOT_FOUND: u16 = 404;
/// What a relay did not do.
const BAD_GATEWAY: u16 = 502;

impl Problem {
    /// A problem with this status.
    pub fn new(status: u16, what: impl Into<String>, place: &str, remedy: &str) -> Problem {
        let (what, place, remedy) = (what.into(), place.to_owned(), remedy.to_owned());
        let wrong = Wrong { what, place, remedy, ..Wrong::default() };
        Problem { status, error: Box::new(wrong) }
    }

    /// A value that is not allowed.
    pub fn value(place: &str, what: impl Into<String>, remedy: &str) -> Problem {
        Problem::new(400, what, place, remedy)
    }

    /// Something that is not there.
    pub fn missing(place: &str, what: impl Into<String>, remedy: &str) -> Problem {
        Problem::new(NOT_FOUND, what, place, remedy)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Wrong { what, place, remedy, .. } = &*self.error;
        write!(f, "{place}: {what}; {remedy}")
    }
}

impl std::error::Error for Problem {}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let text = refusal.to_string();
        // The last part says what to do: a remedy has no semicolon of its own, a name that somebody
        // has sent may have one.
        let (what, remedy) = text.rsplit_once("; ").unwrap_or((&text, ""));
        let problem = |status, place: &str| Problem::new(status, what, place, remedy);
        match &refusal {
            Refusal::Name(_) => problem(400, "name"),
            Refusal::NoSuchWorld(world) => problem(NOT_FOUND, &format!("world {world}")),
            Refusal::WorldExists(world) | Refusal::Closing(world) => {
                problem(CONFLICT, &format!("world {world}"))
            }
            Refusal::NoSuchRelay(relay) => problem(NOT_FOUND, &format!("relay {relay}")),
            Refusal::OtherKey(relay) | Refusal::TooManyLinks(relay) => {
                problem(CONFLICT, &format!("relay {relay}"))
            }
            Refusal::Removed { relay, .. } => {
                let mut problem = problem(CONFLICT, &format!("relay {relay}"));
                problem.error.is_removed = true;
                problem
            }
            Refusal::NotRemoved(relay) => problem(NOT_FOUND, &format!("relay {relay}")),
            Refusal::Barred { world, .. } => problem(FORBIDDEN, &format!("world {world}")),
            Refusal::HasMembers { world, .. } => problem(CONFLICT, &format!("world {world}")),
            Refusal::NotMoved { world, .. } => problem(CONFLICT, &format!("world {world}")),
            Refusal::StillServes { relay, .. } => problem(CONFLICT, &format!("relay {relay}")),
            Refusal::Areas(_) => problem(400, "areas"),
            Refusal::NoSuchLevel { .. } => problem(400, "rings"),
            Refusal::TooManyTicks { .. } => problem(CONFLICT, "tick_ms"),
            Refusal::NoSuchChannel { world, .. } => problem(NOT_FOUND, &format!("world {world}")),
            Refusal::AreasChanging(world) => problem(CONFLICT, &format!("world {world}")),
            Refusal::Needed { what: place, .. } => problem(CONFLICT, place),
            Refusal::NoSuchLink(link) => problem(NOT_FOUND, &format!("link {link}")),
            Refusal::OwnLink(_) => problem(400, "ends"),
            Refusal::NoRelay(_) => problem(CONFLICT, "relays"),
            Refusal::NoAddress(world) => problem(CONFLICT, &format!("world {world}")),
            Refusal::Apart { relay, .. } => problem(CONFLICT, &format!("relay {relay}")),
            Refusal::NoSuchMember { address, world } => {
                problem(NOT_FOUND, &format!("world {world}, member {address}"))
            }
            Refusal::Full { what: place, asked, free } => {
                let mut problem = problem(CONFLICT, place);
                problem.error.asked = Some(asked.clone());
                problem.error.free = Some(free.clone());
                problem
            }
            Refusal::Relay { relay, why } => Problem::new(
                BAD_GATEWAY,
                format!("the relay refused: {why}"),
                &format!("relay {relay}"),
                "see the relay's log",
            ),
            _ => problem(CONFLICT, "controller"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_control::Name;

    #[test]
    fn a_refusal_names_the_place_what_was_asked_and_what_is_free() {
        let problem = Problem::from(Refusal::Full {
            what: "the link from a to b".to_owned(),
            asked: "2 Mbit/s".to_owned(),
            free: "1 Mbit/s".to_owned(),
        });
        assert_eq!(problem.status, 409);
        let json = serde_json::to_value(&problem).unwrap();
        let expected = serde_json::json!({ "error": {
            "what": "the link from a to b: 2 Mbit/s more is asked for, 1 Mbit/s is free",
            "where": "the link from a to b",
            "remedy": "ask for less, or take another relay",
            "asked": "2 Mbit/s",
            "free": "1 Mbit/s",
        }});
        assert_eq!(json, expected);
    }

    #[test]
    fn what_was_sent_is_never_taken_for_the_remedy() {
        let error = Name::new("a; b").unwrap_err();
        let problem = Problem::from(Refusal::Name(error));
        assert_eq!((problem.status, problem.error.place.as_str()), (400, "name"));
        assert!(problem.error.what.contains("\"a; b\""), "{problem}");
        assert!(problem.error.remedy.starts_with("use a to z"), "{problem}");
    }
}
