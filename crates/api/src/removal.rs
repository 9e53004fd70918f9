//! How links and relays are removed.

use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

/// How a link or a relay is removed.
#[derive(Clone, Debug, Default, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemovalAsk {
    /// Whether worlds that run over it get other trees at once, so that updates on their way can be lost. A relay that
    /// serves members stays all the same.
    #[serde(default)]
    pub force: bool,
}
