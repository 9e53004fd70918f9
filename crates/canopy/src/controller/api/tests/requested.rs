//! Requests as anybody may send them, without a socket: whatever their method, target, headers and body are, the answer
//! is one that the API gives, and the accounts are right. What bodies do is the fuzz target `api`'s, which begins there.

use super::*;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use tower::ServiceExt;

/// How many bytes from a request's start are changed, one by one.
const FIRST_BYTES: usize = 120;
const WORLD: &str = r#"{"name": "eu/lobby", "core": "all", "levels": 1,
    "channels": [{"name": "here", "first": 64, "groups": 200}]}"#;
const AREAS: &str = r#"{"grid": 10, "over": [0, 0, 40, 30], "rings": [{"radius": 5, "level": 1}]}"#;
const LINK: &str = r#"{"ends": ["a", "b"], "bits": 1000000, "packets": 1000, "delay_us": 500}"#;
const MEMBERS: [&str; 2] = [
    r#"{"subject": "p", "client_key": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE",
        "measured": [{"relay": "a", "delay_us": 7}]}"#,
    r#"{"subject": "q", "client_key": "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI"}"#,
];

/// A request of each route, in an order in which each does something: method, target, body, and the answer's status.
const ASKED: [(&str, &str, &str, u16); 32] = [
    ("POST", "/v1/worlds", WORLD, 201),
    ("GET", "/v1/worlds", "", 200),
    ("GET", "/v1/worlds/eu%2Flobby", "", 200),
    ("PATCH", "/v1/worlds/eu%2Flobby", r#"{"levels": 2}"#, 200),
    ("PUT", "/v1/worlds/eu%2Flobby/areas", AREAS, 200),
    ("GET", "/v1/worlds/eu%2Flobby/areas", "", 200),
    ("POST", "/v1/links", LINK, 201),
    ("GET", "/v1/links", "", 200),
    ("POST", "/v1/worlds/eu%2Flobby/members", MEMBERS[0], 200),
    ("POST", "/v1/worlds/eu%2Flobby/members", MEMBERS[1], 200),
    ("GET", "/v1/worlds/eu%2Flobby/members?most=1&after=1.1&subject=p", "", 200),
    ("GET", "/v1/worlds/eu%2Flobby/members/28672.64", "", 200),
    ("GET", "/v1/worlds/eu%2Flobby/move?root=a&method=spt", "", 200),
    ("POST", "/v1/worlds/eu%2Flobby/move?method=stretch&stretch=1.5", "", 200),
    ("GET", "/v1/relays", "", 200),
    ("GET", "/v1/relays-to-measure", "", 200),
    ("GET", "/v1/relays/a", "", 200),
    ("GET", "/v1/accounts", "", 200),
    ("GET", "/v1/overlay?world=eu%2Flobby", "", 200),
    ("GET", "/v1/health", "", 200),
    ("GET", "/v1/events", "", 200),
    ("GET", "/v1/openapi.json", "", 200),
    ("GET", "/v1", "", 200),
    ("DELETE", "/v1/worlds/eu%2Flobby/members/28672.65?bar_s=1", "", 202),
    ("DELETE", "/v1/worlds/eu%2Flobby/members?subject=p&bar_s=1", "", 202),
    ("POST", "/v1/relays/b/drain", "", 200),
    ("POST", "/v1/relays/b/undrain", "", 200),
    ("POST", "/v1/links/1/keep", "", 200),
    ("DELETE", "/v1/links/1?force=true", "", 204),
    ("DELETE", "/v1/worlds/eu%2Flobby", "", 202),
    ("DELETE", "/v1/relays/b?force=true", "", 204),
    ("POST", "/v1/relays/b/allow", "", 204),
];

/// A request as text: a line of its method and target, its headers, an empty line, its body.
fn written(method: &str, target: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("{method} {target}\n{headers}\n\n{body}").into_bytes()
}

/// The request, if it is one that a server hands on.
fn read(bytes: &[u8]) -> Option<Request<Body>> {
    let end = bytes.windows(2).position(|two| two == b"\n\n")?;
    let mut lines = bytes[..end].split(|byte| *byte == b'\n');
    let first = lines.next()?;
    let space = first.iter().position(|byte| *byte == b' ')?;
    let mut request = Request::builder()
        .method(Method::from_bytes(&first[..space]).ok()?)
        .uri(Uri::try_from(&first[space + 1..]).ok()?);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        request = request.header(name, value);
    }
    request.body(Body::from(bytes[end + 2..].to_vec())).ok()
}

/// What is wrong with a request in one place: cut or longer, or a byte of it changed.
fn one_step_away(request: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let lengths = [1, 2].map(|less| request[..request.len() - less].to_vec());
    let longer = [request, &[0]].concat();
    let changed = (0..request.len().min(FIRST_BYTES)).flat_map(|at| {
        let byte = request[at];
        [byte ^ 1, byte ^ 0x80, !byte, byte.wrapping_sub(1), b'%', b'/'].map(|other| {
            let mut bytes = request.to_vec();
            bytes[at] = other;
            bytes
        })
    });
    lengths.into_iter().chain([longer]).chain(changed)
}

/// Whether whoever sends this may ask for anything.
fn has_secret(request: &Request<Body>) -> bool {
    let header = request.headers().get("authorization").map(HeaderValue::as_bytes);
    let Some((scheme, secret)) = header.and_then(|bytes| bytes.split_at_checked(7)) else {
        return false;
    };
    scheme.eq_ignore_ascii_case(b"bearer ") && secret.trim_ascii() == SECRET.as_bytes()
}

/// Sends a request, if it is one, and looks at the answer. Returns its status.
async fn send(daemon: &Daemon, bytes: &[u8]) -> Option<u16> {
    let request = read(bytes)?;
    let is_head = request.method() == Method::HEAD;
    let path = request.uri().path().to_owned();
    let is_open =
        !path.starts_with("/v1/") || ["/v1/health", "/v1/openapi.json"].contains(&path.as_str());
    let may = is_open || has_secret(&request);
    let response = daemon.router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let told = String::from_utf8_lossy(bytes);
    assert!(may || [401, 404, 405].contains(&status), "{status}: {told}");
    assert!((200..600).contains(&status) && status != 500, "{status}: {told}");
    if response.headers().get(CONTENT_TYPE).is_some_and(|of| of == "text/event-stream") {
        return Some(status);
    }
    let body = to_bytes(response.into_body(), 4 << 20).await.unwrap();
    if status >= 400 && path.starts_with("/v1") && !is_head {
        let problem: Problem = serde_json::from_slice(&body).expect(&told);
        let wrong = [&problem.error.what, &problem.error.place, &problem.error.remedy];
        assert!(!wrong.iter().any(|part| part.is_empty()), "{problem}: {told}");
    }
    Some(status)
}

#[tokio::test]
async fn requests_and_what_is_one_step_from_them_are_answered_as_the_api_says() {
    let daemon = Daemon::start(2).await;
    let headers = format!("authorization: Bearer {SECRET}\ncontent-type: application/json");
    let mut sent = 0;
    for (method, target, body, expected) in ASKED {
        let request = written(method, target, &headers, body);
        assert_eq!(send(&daemon, &request).await, Some(expected), "{method} {target}");
        for bytes in one_step_away(&request) {
            sent += usize::from(send(&daemon, &bytes).await.is_some());
        }
        let audit = daemon.handle.ask(|controller, _| controller.audit()).await.unwrap();
        assert_eq!(audit, Ok(()), "after what is near {method} {target}");
    }
    assert!(sent > 5_000, "{sent}");
}

#[tokio::test]
async fn nothing_is_told_by_another_credential() {
    let daemon = Daemon::start(0).await;
    let cut = &SECRET[..SECRET.len() - 1];
    let others = [
        "x: y".to_owned(),
        "authorization:".to_owned(),
        "authorization: Bearer".to_owned(),
        format!("authorization: {SECRET}"),
        format!("authorization: Basic {SECRET}"),
        format!("authorization: Bearer {cut}"),
        format!("authorization: Bearer {SECRET}x"),
        format!("authorization: Bearer\t{SECRET}"),
        format!("authorization: Bearer wrong\nauthorization: Bearer {SECRET}"),
    ];
    for headers in others {
        let request = written("GET", "/v1/worlds", &headers, "");
        assert_eq!(send(&daemon, &request).await, Some(401), "{headers}");
    }
    let request = written("GET", "/v1/worlds", &format!("Authorization:  bEARER   {SECRET} "), "");
    assert_eq!(send(&daemon, &request).await, Some(200));
}

#[tokio::test]
async fn each_route_that_is_described_is_among_the_requests() {
    let daemon = Daemon::start(0).await;
    let description = daemon.get("/v1/openapi.json").await;
    let is_asked = |method: &str, path: &str| {
        ASKED.iter().any(|(of, target, ..)| {
            let target = target.split('?').next().unwrap();
            let pairs = || path.split('/').zip(target.split('/'));
            of.eq_ignore_ascii_case(method)
                && path.split('/').count() == target.split('/').count()
                && pairs().all(|(one, other)| one.starts_with('{') || one == other)
        })
    };
    for (path, ways) in description["paths"].as_object().unwrap() {
        for method in ways.as_object().unwrap().keys() {
            assert!(is_asked(method, path), "{method} {path}");
        }
    }
}
