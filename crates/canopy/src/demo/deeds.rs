//! What the demo's page may do to the relays: cut and mend links, kill and revive relays.

use super::relays::{Deed, DemoRelays};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use std::net::IpAddr;
use std::sync::Arc;

/// Serves `POST /demo/{links|relays}/{number}/{deed}`.
pub(super) fn router(relays: Arc<DemoRelays>) -> Router {
    Router::new().route("/demo/{what}/{number}/{deed}", post(act)).with_state(relays)
}

async fn act(
    State(relays): State<Arc<DemoRelays>>,
    headers: HeaderMap,
    Path((what, number, deed)): Path<(String, usize, String)>,
) -> Response {
    if !is_own_page(&headers) {
        let why = "only the demo's own page may do this\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let Some(deed) = parse(&what, number, &deed) else {
        return (StatusCode::NOT_FOUND, "there is no such deed\n").into_response();
    };
    // It waits for the data threads.
    match tokio::task::spawn_blocking(move || relays.act(deed)).await {
        Ok(Ok(())) => StatusCode::NO_CONTENT.into_response(),
        Ok(Err(error)) => (StatusCode::CONFLICT, format!("{error:#}\n")).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn parse(what: &str, number: usize, deed: &str) -> Option<Deed> {
    match (what, deed) {
        ("links", "cut") => Some(Deed::Cut(number)),
        ("links", "mend") => Some(Deed::Mend(number)),
        ("relays", "kill") => Some(Deed::Kill(number)),
        ("relays", "revive") => Some(Deed::Revive(number)),
        _ => None,
    }
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
        assert_eq!(parse("links", 2, "cut"), Some(Deed::Cut(2)));
        assert_eq!(parse("relays", 0, "revive"), Some(Deed::Revive(0)));
        assert_eq!(parse("relays", 0, "cut"), None);
    }
}
