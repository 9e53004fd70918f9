//! Pages that are embedded in the binary, and how they are served.

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;

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
