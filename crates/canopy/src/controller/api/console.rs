//! The controller's console: a page that asks the API, with the secret that whoever opens it has.

use super::Api;
use crate::web::{Asset, CSS, HTML, JS, pages};
use axum::Router;

/// The page and its modules, embedded.
const ASSETS: &[Asset] = &[
    ("/", HTML, include_str!("../../../../../web/controller.html")),
    ("/console.css", CSS, include_str!("../../../../../web/console.css")),
    ("/controller.js", JS, include_str!("../../../../../web/controller.js")),
    ("/table.js", JS, include_str!("../../../../../web/table.js")),
    ("/overlay.js", JS, include_str!("../../../../../web/overlay.js")),
    ("/happenings.js", JS, include_str!("../../../../../web/happenings.js")),
    ("/format.js", JS, include_str!("../../../../../web/format.js")),
];

/// The console, which everybody may open: it knows nothing itself.
pub(super) fn router() -> Router<Api> {
    pages(ASSETS)
}
