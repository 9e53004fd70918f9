//! The controller's API, for commands.

use crate::controller_folder::{ADDRESS_FILE, ApiSecret, DEFAULT_ADDRESS};
use crate::output::{nobody_reads, print_note};
use crate::page::client;
use anyhow::{Context, bail};
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode, Uri};
use canopy_api::{Problem, Wrong};
use clap::Args;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long the controller may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest answer in bytes: ten thousand worlds with their trees.
const MAX_ANSWER: usize = 256 << 20;

/// Which controller, and the secret of its API.
#[derive(Args, Clone, Debug)]
pub(super) struct ApiArgs {
    /// Where the controller serves its API [default: what its folder says, or 127.0.0.1:4042]
    #[arg(long, value_name = "HOST:PORT", env = "CANOPY_API", hide_env_values = true)]
    api: Option<String>,
    /// The controller's folder, which has the secret of its API. CANOPY_API_SECRET is taken instead,
    /// where it is set
    #[arg(long, value_name = "FOLDER", env = "CANOPY_CONTROLLER_DIR", hide_env_values = true)]
    controller_dir: Option<PathBuf>,
    /// Print what the API answers, as JSON, and on stderr what goes wrong: {"error": …}
    #[arg(long)]
    pub(super) json: bool,
}

/// Asks the API.
pub(crate) struct ApiClient {
    address: String,
    secret: ApiSecret,
}

impl ApiArgs {
    /// The API that is meant.
    pub(super) fn client(&self) -> anyhow::Result<ApiClient> {
        let secret = std::env::var("CANOPY_API_SECRET").ok().filter(|secret| !secret.is_empty());
        let secret = match (secret, &self.controller_dir) {
            (Some(secret), _) => ApiSecret::new(&secret),
            (None, Some(folder)) => ApiSecret::read(folder)?,
            (None, None) => bail!(
                "the controller asks for a secret: name its folder with --controller-dir, or set \
                 CANOPY_API_SECRET"
            ),
        };
        let written = self.controller_dir.as_ref().map(|folder| folder.join(ADDRESS_FILE));
        let written = written.and_then(|path| std::fs::read_to_string(path).ok());
        let address = self.api.clone().or(written).unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
        Ok(ApiClient { address: address.trim().to_owned(), secret })
    }
}

impl ApiClient {
    /// The API of a controller at an address, whose folder has the secret.
    ///
    /// # Errors
    /// The folder has none.
    pub(crate) fn of(
        api: std::net::SocketAddr,
        folder: &std::path::Path,
    ) -> anyhow::Result<ApiClient> {
        Ok(ApiClient { address: api.to_string(), secret: ApiSecret::read(folder)? })
    }

    /// What the API answers to this, as text.
    ///
    /// # Errors
    /// No controller answers there, or it refuses.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> anyhow::Result<String> {
        Ok(self.ask_status(method, path, body).await?.1)
    }

    /// The same, with the status.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn ask_status(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> anyhow::Result<(StatusCode, String)> {
        let address = &self.address;
        let silent = || {
            format!(
                "no controller answers at {address}; start one with `canopy controller`, or name \
                 where it serves its API with --api HOST:PORT"
            )
        };
        let uri: Uri = format!("http://{address}{path}")
            .parse()
            .with_context(|| format!("{address:?} is no address; write it like 127.0.0.1:4042"))?;
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("authorization", format!("Bearer {}", self.secret.text()))
            .header("content-type", "application/json")
            .body(Body::from(body))
            .context("CANOPY_API_SECRET has characters that no secret can have")?;
        let answer = tokio::time::timeout(PATIENCE, client().request(request)).await;
        let answer = answer.with_context(silent)?.with_context(silent)?;
        let status = answer.status();
        let bytes = to_bytes(Body::new(answer.into_body()), MAX_ANSWER).await?;
        let text = String::from_utf8(bytes.into())?;
        if status.is_success() {
            return Ok((status, text));
        }
        match serde_json::from_str::<Problem>(&text) {
            Ok(problem) => Err(problem.into()),
            Err(_) => bail!("{address} answers {status}; {}", silent()),
        }
    }

    /// The same, as a value.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let text = self.ask(Method::GET, path, String::new()).await?;
        self.read(&text)
    }

    /// An answer as a value.
    pub(super) fn read<T: DeserializeOwned>(&self, text: &str) -> anyhow::Result<T> {
        serde_json::from_str(text)
            .with_context(|| format!("what {} answers is no controller's", self.address))
    }
}

/// A name as a part of a path.
pub(super) fn segment(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                text.push(char::from(byte));
            }
            // Writing to a String cannot fail.
            _ => _ = write!(text, "%{byte:02X}"),
        }
    }
    text
}

/// Runs a command that asks the API. With `json`, whatever reads it can read what goes wrong, too.
pub(super) fn run(
    json: bool,
    command: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(command) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if json && !nobody_reads(&error) => {
            print_note(serde_json::to_string(&problem(&error))?);
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error),
    }
}

/// What the API says is wrong, or the command.
fn problem(error: &anyhow::Error) -> Problem {
    error.downcast_ref::<Problem>().cloned().unwrap_or_else(|| {
        let wrong = Wrong { what: format!("{error:#}"), ..Wrong::default() };
        Problem { error: Box::new(wrong), status: 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_so_that_they_stay_one_part_of_a_path() {
        assert_eq!(segment("eu/lobby-1.a"), "eu%2Flobby-1.a");
        assert_eq!(segment("a b?ü"), "a%20b%3F%C3%BC");
    }
}
