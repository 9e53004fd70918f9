//! The controller's API: HTTP with JSON, below `/v1`, for operators, backends and the command line.

mod answer;
mod console;
mod events;
mod page;
mod routes;
mod server;
#[cfg(test)]
mod tests;

use super::driver::Handle;
use super::joins::Joins;
use crate::controller_folder::{ADDRESS_FILE, ApiSecret};
use answer::Failure;
use anyhow::Context;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HeaderValue};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use canopy_api::{MOST_BODY, Problem};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Components, Content, InfoBuilder, OpenApi, OpenApiBuilder, Ref, ResponseBuilder,
};
use utoipa_axum::router::OpenApiRouter;

/// Serves the API until the process ends, with the secret of the controller's folder; and says in a
/// file there where it is, for commands on this machine.
///
/// # Errors
/// The folder cannot be written to, or its secret cannot be used.
pub(crate) fn serve(listener: TcpListener, folder: &Path, api: Api) -> anyhow::Result<()> {
    let secret = ApiSecret::open(folder)?;
    let path = folder.join(ADDRESS_FILE);
    let address = listener.local_addr()?;
    std::fs::write(&path, format!("{address}\n"))
        .with_context(|| format!("cannot write {}", path.display()))?;
    tokio::spawn(server::serve(listener, api.router(secret)));
    Ok(())
}

/// What the answers come from.
#[derive(Clone)]
pub(crate) struct Api {
    handle: Handle,
    joins: Joins,
}

impl Api {
    pub(crate) fn new(handle: Handle, joins: Joins) -> Api {
        Api { handle, joins }
    }

    /// The API, whose callers need the secret, and its description, which everybody may read.
    pub(crate) fn router(self, secret: ApiSecret) -> Router {
        let (router, description) = routes::all().split_for_parts();
        let description = Arc::new(complete(description));
        let json = Arc::new(serde_json::to_value(&*description).unwrap_or_default());
        let page = Arc::new(page::of(&json));
        router
            .layer(from_fn_with_state(Arc::new(secret), only_with_secret))
            .merge(routes::health_route().split_for_parts().0)
            .route("/v1/openapi.json", get(async move || axum::Json((*json).clone())))
            .route("/v1", get(async move || axum::response::Html((*page).clone())))
            .fallback(async || Failure::from(nowhere()))
            .method_not_allowed_fallback(async || Failure::from(not_so()))
            .layer(DefaultBodyLimit::max(MOST_BODY))
            .layer(from_fn(never_kept))
            .merge(console::router())
            .with_state(self)
    }
}

/// The description of all routes.
fn complete(described: OpenApi) -> OpenApi {
    let info = InfoBuilder::new()
        .title("Canopy's controller")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Worlds, their members, relays and links. Every route but /v1/health and this page needs \
             the header 'Authorization: Bearer SECRET'; the secret is in the file api.secret of the \
             controller's folder. What is refused is answered with {error: {what, where, remedy}}.",
        ))
        .build();
    let mut whole = OpenApiBuilder::new().info(info).build();
    let mut parts = described;
    parts.merge(routes::health_route().split_for_parts().1);
    whole.merge(parts);
    let components = whole.components.get_or_insert_with(Components::new);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    whole.security = Some(vec![SecurityRequirement::new("bearer", [] as [&str; 0])]);
    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
    let refused = ResponseBuilder::new()
        .description("What is wrong, where, and what to do about it")
        .content("application/json", problem)
        .build();
    for item in whole.paths.paths.values_mut() {
        let operations =
            [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            operation.responses.responses.insert("default".to_owned(), refused.clone().into());
        }
    }
    whole
}

/// Lets a request pass that has the secret.
async fn only_with_secret(
    State(secret): State<Arc<ApiSecret>>,
    request: Request,
    next: Next,
) -> Response {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = header.and_then(|text| text.split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match given {
        Some((_, given)) if secret.is(given.trim()) => next.run(request).await,
        _ => {
            let what = if header.is_none() { "there is none" } else { "it is another" };
            let remedy = "send 'Authorization: Bearer SECRET' with what is in api.secret of the \
                          controller's folder";
            Failure::from(Problem::new(401, what, "credential", remedy)).into_response()
        }
    }
}

/// Answers are true for a moment, and some have tokens.
async fn never_kept(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn nowhere() -> Problem {
    Problem::missing("path", "there is nothing", "see /v1 for what there is")
}

fn not_so() -> Problem {
    Problem::new(405, "it cannot be asked in this way", "method", "see /v1 for the ways")
}

/// The routes with their description.
type Routes = OpenApiRouter<Api>;
