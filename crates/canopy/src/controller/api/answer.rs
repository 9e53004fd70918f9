//! Requests as values, and values as responses.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use canopy_api::{MOST_BODY, Problem, parse};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::timeout;

/// A body may take so long.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// What is answered instead of what was asked for.
#[derive(Debug)]
pub(super) struct Failure(Problem);

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure(problem)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.0)).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let how = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, how);
        }
        response
    }
}

/// A body of JSON.
pub(super) struct Ask<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Ask<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Ask<T>, Failure> {
        let body = timeout(BODY_WITHIN, Bytes::from_request(request, state)).await;
        let slow = || {
            let what = format!("it took longer than {} s", BODY_WITHIN.as_secs());
            Problem::new(408, what, "body", "send it whole and at once")
        };
        let body = body.map_err(|_| slow())?.map_err(|rejection| {
            let status = rejection.status();
            let remedy = format!("send at most {MOST_BODY} bytes, whole");
            Problem::new(status.as_u16(), rejection.body_text(), "body", &remedy)
        })?;
        Ok(Ask(parse(&body)?))
    }
}

/// What stands in the path.
pub(super) struct Place<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Place<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Place<T>, Failure> {
        let path = Path::from_request_parts(parts, state).await;
        let Path(place) = path.map_err(|rejection| {
            Problem::value("path", rejection.body_text(), "write '/' within a name as %2F")
        })?;
        Ok(Place(place))
    }
}

/// What stands behind the path's question mark.
pub(super) struct Which<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Which<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Which<T>, Failure> {
        let query = Query::from_request_parts(parts, state).await;
        let Query(which) = query.map_err(|rejection| {
            Problem::value("query", rejection.body_text(), "see /v1 for the parameters")
        })?;
        Ok(Which(which))
    }
}
