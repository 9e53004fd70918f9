//! A lab with a controller, which decides what the relays carry.

use super::process::{ControllerProcess, RelayProcess};
use super::{ASK_EVERY, UP_LIMIT};
use crate::operate::ApiClient;
use anyhow::bail;
use axum::http::Method;
use canopy_relay::DEFAULT_WORLD;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;
use tokio::time::sleep;

/// The flags by which a relay finds the controller.
pub(super) fn flags(controller: &ControllerProcess, relay: usize) -> Vec<String> {
    let ready = &controller.ready;
    let (name, listen) = (super::files::name(relay), ready.listen.to_string());
    let flags = ["--name", &name, "--controller", &listen, "--controller-key", &ready.key];
    flags.map(str::to_owned).to_vec()
}

/// Waits until the controller has all relays, and makes the world.
///
/// # Errors
/// A relay ends, or they are not ready after [`UP_LIMIT`].
pub(super) async fn all_up(
    controller: &ControllerProcess,
    folder: &Path,
    relays: &mut [RelayProcess],
) -> anyhow::Result<()> {
    let api = ApiClient::of(controller.ready.api, folder)?;
    let started = Instant::now();
    loop {
        for relay in &mut *relays {
            if let Some(status) = relay.ended() {
                let how = super::in_words(status);
                bail!("{} {how}; what it says above tells why", relay.name);
            }
        }
        let told: Value = api.get("/v1/relays").await?;
        let states = told["relays"].as_array().into_iter().flatten();
        let up = states.filter(|relay| relay["state"] == "up").count();
        if up == relays.len() {
            break;
        }
        if started.elapsed() > UP_LIMIT {
            bail!("{up} of {} relays are up after {} s", relays.len(), UP_LIMIT.as_secs());
        }
        sleep(ASK_EVERY).await;
    }
    let world = json!({ "name": DEFAULT_WORLD });
    api.ask(Method::POST, "/v1/worlds", world.to_string()).await?;
    Ok(())
}
