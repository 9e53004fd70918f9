//! What the demo's page may do: cut and mend links, kill, revive and drain relays, move the world, and
//! limit what a viewer is sent, or everyone.

use super::relays::{Deed, DemoRelays};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use canopy_bots::View;
use std::net::IpAddr;
use std::sync::Arc;

type Demo = (Arc<DemoRelays>, Arc<View>);

/// What a page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Deed(Deed),
    /// A viewer is sent this many bits a second at most, or what everyone is.
    Limit(u32, Option<u64>),
    /// Everyone is sent this many bits a second at most, or everything.
    LimitEveryone(Option<u64>),
}

/// Serves `POST /demo/{links|relays}/{number}/{deed}` and `POST /demo/viewers/{number|all}/{bits|everything}`.
pub(super) fn router(relays: Arc<DemoRelays>, view: Arc<View>) -> Router {
    Router::new().route("/demo/{what}/{which}/{deed}", post(act)).with_state((relays, view))
}

async fn act(
    State((relays, view)): State<Demo>,
    headers: HeaderMap,
    Path((what, which, deed)): Path<(String, String, String)>,
) -> Response {
    if !is_own_page(&headers) {
        let why = "only the demo's own page may do this\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let Some(deed) = parse(&what, &which, &deed) else {
        return (StatusCode::NOT_FOUND, "there is no such deed\n").into_response();
    };
    let deed = match deed {
        Asked::Deed(deed) => deed,
        Asked::Limit(walker, bits) => {
            if view.limit(walker, bits) {
                return StatusCode::NO_CONTENT.into_response();
            }
            let why = "no page looks through that viewer\n";
            return (StatusCode::CONFLICT, why).into_response();
        }
        Asked::LimitEveryone(bits) => {
            view.limit_everyone(bits);
            return StatusCode::NO_CONTENT.into_response();
        }
    };
    match relays.act(deed).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => (StatusCode::CONFLICT, format!("{error:#}\n")).into_response(),
    }
}

fn parse(what: &str, which: &str, deed: &str) -> Option<Asked> {
    let deed = match (what, deed) {
        ("links", "cut") => Deed::Cut(which.parse().ok()?),
        ("links", "mend") => Deed::Mend(which.parse().ok()?),
        ("relays", "kill") => Deed::Kill(which.parse().ok()?),
        ("relays", "revive") => Deed::Revive(which.parse().ok()?),
        ("relays", "drain") => Deed::Drain(which.parse().ok()?),
        ("relays", "undrain") => Deed::Undrain(which.parse().ok()?),
        ("relays", "root") => Deed::Move(which.parse().ok()?),
        ("viewers", bits) => {
            let bits = match bits {
                "everything" => None,
                bits => Some(bits.parse().ok().filter(|bits| *bits > 0)?),
            };
            return Some(match which {
                "all" => Asked::LimitEveryone(bits),
                viewer => Asked::Limit(viewer.parse().ok()?, bits),
            });
        }
        _ => return None,
    };
    Some(Asked::Deed(deed))
}

/// Whether a request comes from the page that is served here. A browser says with every POST which
/// page it is from; and the host has to be an address, because a foreign page's name may be made to
/// lead here.
fn is_own_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &_| value.to_str().ok());
    let (Some(host), Some(origin)) = (text(HOST), text(ORIGIN)) else { return false };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_address = name == "localhost" || name.parse::<IpAddr>().is_ok();
    is_address && origin.strip_prefix("http://") == Some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_page_may_do_something() {
        let is_own = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(ORIGIN, origin.parse().unwrap());
            }
            is_own_page(&headers)
        };
        for host in ["127.0.0.1:8080", "[::1]:8080", "localhost:8080"] {
            assert!(is_own(host, Some(&format!("http://{host}"))), "{host}");
            assert!(!is_own(host, Some("http://evil.example")), "{host}");
            assert!(!is_own(host, Some("null")) && !is_own(host, None), "{host}");
        }
        assert!(!is_own("evil.example:8080", Some("http://evil.example:8080")), "a name of theirs");
    }

    #[test]
    fn deeds_are_named_by_their_path() {
        assert_eq!(parse("links", "2", "cut"), Some(Asked::Deed(Deed::Cut(2))));
        assert_eq!(parse("relays", "0", "revive"), Some(Asked::Deed(Deed::Revive(0))));
        assert_eq!(parse("viewers", "7", "64000"), Some(Asked::Limit(7, Some(64_000))));
        assert_eq!(parse("viewers", "7", "everything"), Some(Asked::Limit(7, None)));
        for nonsense in ["0", "-5", "much", ""] {
            assert_eq!(parse("viewers", "7", nonsense), None, "{nonsense:?}");
            assert_eq!(parse("viewers", "all", nonsense), None, "{nonsense:?}");
        }
        assert_eq!(parse("viewers", "all", "64000"), Some(Asked::LimitEveryone(Some(64_000))));
        assert_eq!(parse("viewers", "all", "everything"), Some(Asked::LimitEveryone(None)));
        assert_eq!(parse("viewers", "some", "64000"), None);
        assert_eq!(parse("relays", "all", "kill"), None);
        assert_eq!(parse("relays", "3", "drain"), Some(Asked::Deed(Deed::Drain(3))));
        assert_eq!(parse("relays", "1", "root"), Some(Asked::Deed(Deed::Move(1))));
        assert_eq!(parse("relays", "0", "cut"), None);
    }
}
