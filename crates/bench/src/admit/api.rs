//! The controller's API, asked by a plain client.

use anyhow::{Context, bail};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A connection to the API, for one question after the other.
pub(super) struct Api {
    stream: BufReader<TcpStream>,
    secret: String,
}

impl Api {
    pub(super) async fn connect(address: SocketAddr, folder: &Path) -> anyhow::Result<Api> {
        let path = folder.join("api.secret");
        let secret = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Api { stream: BufReader::new(stream), secret: secret.trim().to_owned() })
    }

    pub(super) async fn get(&mut self, path: &str) -> anyhow::Result<Value> {
        self.ask("GET", path, "").await
    }

    pub(super) async fn post(&mut self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask("POST", path, &body.to_string()).await
    }

    async fn ask(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.secret,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        let status = self.line().await?;
        let mut length = 0;
        loop {
            let line = self.line().await?;
            match line.split_once(':') {
                None => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse()?;
                }
                Some(_) => {}
            }
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).await?;
        if !status.starts_with("HTTP/1.1 2") {
            let why = String::from_utf8_lossy(&answer);
            bail!("{method} {path}: the controller answered {status}: {why}");
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            bail!("the controller has ended the connection to its API");
        }
        Ok(line.trim_end().to_owned())
    }
}
