//! Pages that are embedded in the binary, and how pages are served.

use anyhow::Context;
use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// A file of a page: its path, media type and content.
pub(crate) type Asset = (&'static str, &'static str, &'static str);

pub(crate) const HTML: &str = "text/html; charset=utf-8";
pub(crate) const CSS: &str = "text/css; charset=utf-8";
pub(crate) const JS: &str = "text/javascript; charset=utf-8";

/// A page loads nothing from anywhere else and runs nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves a page's files.
pub(crate) fn pages<S: Clone + Send + Sync + 'static>(assets: &'static [Asset]) -> Router<S> {
    assets.iter().fold(Router::new(), |router, (path, media, content)| {
        let asset = move || async move {
            let headers = [
                (CONTENT_TYPE, *media),
                (CACHE_CONTROL, "no-cache"),
                (CONTENT_SECURITY_POLICY, POLICY),
            ];
            (headers, *content).into_response()
        };
        router.route(path, get(asset))
    })
}

/// Binds an HTTP listener, if there is to be one.
pub(crate) async fn bind(
    what: &str,
    address: Option<SocketAddr>,
) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot serve {what} on {address}; choose another address with --{what}")
    })?;
    Ok(Some(listener))
}

/// Where a listener listens, if there is one.
pub(crate) fn address_of(listener: &Option<TcpListener>) -> Option<SocketAddr> {
    listener.as_ref().and_then(|listener| listener.local_addr().ok())
}

/// Serves pages on a listener, if there is one, until the process ends.
pub(crate) fn serve_pages(listener: Option<TcpListener>, pages: Router) {
    if let Some(listener) = listener {
        tokio::spawn(axum::serve(listener, pages).into_future());
    }
}
