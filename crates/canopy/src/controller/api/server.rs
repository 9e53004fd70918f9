//! Connections to the API: bounded in number, and nobody may take their time.

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// The most connections at a time. Whoever comes then waits until one has ended.
const MOST: usize = 512;
/// The head of a request may take so long; between two requests, a connection may rest for so long.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// How long nobody is let in when the process has no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves a router until the process ends.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    serve_some(listener, router, MOST).await;
}

/// Serves so many connections at a time.
async fn serve_some(listener: TcpListener, router: Router, most: usize) {
    let places = Arc::new(Semaphore::new(most));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = answer(stream, router.clone());
                tokio::spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!("the API cannot take a connection: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let service = TowerToHyperService::new(router);
    // Whoever breaks off a connection does not hear why that was wrong.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// The clock stands still until everybody waits, and then goes on to what is due next.
    #[tokio::test(start_paused = true)]
    async fn who_takes_their_time_makes_room_for_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "here"));
        tokio::spawn(serve_some(listener, router, 1));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
        let mut next = TcpStream::connect(address).await.unwrap();
        next.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let read = tokio::time::timeout(6 * HEAD_WITHIN, next.read_to_string(&mut answer));
        read.await.expect("there is room by then").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
        let mut refusal = Vec::new();
        let _ = slow.read_to_end(&mut refusal).await;
        assert!(!refusal.starts_with(b"HTTP/1.1 200"), "it was not answered");
    }
}
