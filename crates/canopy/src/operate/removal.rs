//! How links and relays are removed: without loss unless it is forced, and taken back until they are gone.

use super::client::{ApiArgs, ApiClient};
use crate::output::print_line;
use anyhow::bail;
use axum::http::{Method, StatusCode};
use clap::Args;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How often what is being removed is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How something is removed.
#[derive(Args)]
pub(super) struct RemovalArgs {
    /// Keep it: what moves away from it may come back
    #[arg(long, conflicts_with_all = ["force", "wait"])]
    undo: bool,
    /// Give worlds other trees at once: updates on their way can be lost
    #[arg(long)]
    force: bool,
    /// Return once it is gone; fail after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    wait: Option<u64>,
}

/// What is to be removed.
pub(super) struct Target {
    /// For people, such as `link 7`.
    pub(super) what: String,
    /// Where the API has it.
    pub(super) path: String,
    /// What the API is asked for to keep it.
    pub(super) keep: String,
}

/// How something stands that is still there.
pub(super) struct Standing {
    /// Whether it is being removed.
    pub(super) removing: bool,
    /// What has yet to move away from it.
    pub(super) left: String,
}

impl Target {
    /// Removes it, or keeps it. `look` says how it stands, and nothing once it is gone.
    pub(super) async fn remove(
        &self,
        api: &ApiArgs,
        how: &RemovalArgs,
        look: impl AsyncFn(&ApiClient) -> anyhow::Result<Option<Standing>>,
    ) -> anyhow::Result<()> {
        let client = api.client()?;
        if how.undo {
            let text = client.ask(Method::POST, &self.keep, String::new()).await?;
            return Ok(print_line(if api.json { text } else { format!("{} stays", self.what) })?);
        }
        let query = if how.force { "?force=true" } else { "" };
        let path = format!("{}{query}", self.path);
        let (status, _) = client.ask_status(Method::DELETE, &path, String::new()).await?;
        let patience = Duration::from_secs(how.wait.unwrap_or(0));
        let standing = match status {
            StatusCode::ACCEPTED => self.until_gone(&client, patience, look).await?,
            _ => None,
        };
        if let (Some(Standing { left, .. }), Some(seconds)) = (&standing, how.wait) {
            bail!(
                "{} is not gone after {seconds} s: {left}; it goes on, so wait longer, or take it back with --undo; \
                 see also `canopy world show --why`",
                self.what
            );
        }
        if api.json {
            return Ok(print_line(json!({ "gone": standing.is_none() }))?);
        }
        Ok(print_line(match standing {
            None => format!("{} is gone", self.what),
            Some(Standing { left, .. }) => format!(
                "{} is being removed: {left}; --wait SECONDS waits until it is gone, --undo keeps it",
                self.what
            ),
        })?)
    }

    /// Looks until it is gone, for so long at most. Returns how it stands if it is there still.
    async fn until_gone(
        &self,
        client: &ApiClient,
        patience: Duration,
        look: impl AsyncFn(&ApiClient) -> anyhow::Result<Option<Standing>>,
    ) -> anyhow::Result<Option<Standing>> {
        let deadline = Instant::now() + patience;
        loop {
            let Some(standing) = look(client).await? else { return Ok(None) };
            if !standing.removing {
                bail!("{} stays: somebody has taken its removal back", self.what);
            }
            if Instant::now() >= deadline {
                return Ok(Some(standing));
            }
            sleep(LOOK_EVERY).await;
        }
    }
}
