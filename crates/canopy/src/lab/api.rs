//! What a relay tells of its links over HTTP.

use anyhow::{Context, bail};
use axum::body::{Body, to_bytes};
use axum::http::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;

/// How long a relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer.
const MAX_ANSWER: usize = 16 << 20;

/// A relay's links, as `/net` tells them.
#[derive(Debug, Deserialize)]
pub(super) struct Links {
    links: Vec<Link>,
}

#[derive(Debug, Deserialize)]
struct Link {
    #[serde(default)]
    name: String,
    is_up: bool,
}

impl Links {
    /// Whether there are as many as wanted, and all are up.
    pub(super) fn are_up(&self, wanted: usize) -> bool {
        self.links.len() == wanted && self.links.iter().all(|link| link.is_up)
    }

    /// What they lack.
    pub(super) fn in_words(&self, wanted: usize) -> String {
        let down: Vec<&str> =
            self.links.iter().filter(|link| !link.is_up).map(|link| &*link.name).collect();
        match down.is_empty() {
            true => format!("it has {} of {wanted} links", self.links.len()),
            false => format!("down are the links with {}", down.join(", ")),
        }
    }
}

/// Asks a relay for its links.
pub(super) async fn links_of(api: SocketAddr) -> anyhow::Result<Links> {
    let uri: Uri = format!("http://{api}/net").parse()?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let answer = tokio::time::timeout(PATIENCE, client.get(uri)).await;
    let answer = answer.with_context(|| format!("{api} does not answer"))??;
    if answer.status() != StatusCode::OK {
        bail!("{api} answers {} when asked for its links", answer.status());
    }
    let bytes = to_bytes(Body::new(answer.into_body()), MAX_ANSWER).await?;
    serde_json::from_slice(&bytes).with_context(|| format!("{api} tells of its links otherwise"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_up_if_all_are_there_and_up() {
        let links = |text: &str| serde_json::from_str::<Links>(text).unwrap();
        let up =
            links(r#"{"links": [{"name": "a", "is_up": true, "round_trip_us": 7}], "more": 1}"#);
        assert!(up.are_up(1) && !up.are_up(2));
        assert_eq!(up.in_words(2), "it has 1 of 2 links");
        let down =
            links(r#"{"links": [{"name": "a", "is_up": true}, {"name": "b", "is_up": false}]}"#);
        assert!(!down.are_up(2));
        assert_eq!(down.in_words(2), "down are the links with b");
    }
}
